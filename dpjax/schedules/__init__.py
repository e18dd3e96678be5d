"""Schedules: public, data-independent curves for thresholds and noise multipliers.

A schedule is a frozen record that is called with the number t of logical steps released before
this one and returns the value for this step. Curves per epoch take ``steps_per_epoch = N / B`` and
read ``epoch = floor(t / steps_per_epoch)``, from 0. Beyond its end a schedule holds its last value.
"""

from dpjax.schedules.base import (
    FloatOrSchedule,
    Schedule,
    epoch_of,
    largest,
    number_or_schedule,
    value_at,
)
from dpjax.schedules.noise import exponential_decay, geometric, step_decay, time_decay
from dpjax.schedules.table import scaled, table
from dpjax.schedules.threshold import du_decay, power_decay, yu_linear

__all__ = [
    "FloatOrSchedule",
    "Schedule",
    "du_decay",
    "epoch_of",
    "exponential_decay",
    "geometric",
    "largest",
    "number_or_schedule",
    "power_decay",
    "scaled",
    "step_decay",
    "table",
    "time_decay",
    "value_at",
    "yu_linear",
]
