"""Schedules made of other things: a table of values, and a curve times a factor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.schedules.base import (
    FloatOrSchedule,
    Schedule,
    epoch_of,
    largest,
    number_or_schedule,
    value_at,
)

__all__ = ["scaled", "table"]


@dataclass(frozen=True)
class table(Schedule):
    """Reads values from a list, one per epoch (or per step), and holds the last one.

    ``values[min(floor(t / steps_per_epoch), len(values) - 1)]``. Lin's Transfer is a table of the
    thresholds found on a public data set.

    Args:
        values: the values, each > 0.
        steps_per_epoch: how many steps one value lasts; 1 for a value per step.

    Example:
        >>> curve = table(values=(3.0, 2.0), steps_per_epoch=10)
        >>> [float(curve(t)) for t in (0, 9, 10, 99)]
        [3.0, 3.0, 2.0, 2.0]
    """

    values: tuple[float, ...]
    steps_per_epoch: float = 1.0

    def __post_init__(self) -> None:
        """Checks the fields."""
        if not isinstance(self.values, list | tuple) or not self.values:
            raise ValueError(f"values = {self.values!r}: expected at least one number")
        self._set(
            values=tuple(_checks.normal(f"values[{i}]", v) for i, v in enumerate(self.values)),
            steps_per_epoch=_checks.normal("steps_per_epoch", self.steps_per_epoch),
        )

    @classmethod
    def from_callable(cls, curve: Callable[[Any], Any], steps: int) -> Self:
        """Tabulates any callable, an optax schedule for instance, over the first `steps` steps.

        >>> table.from_callable(lambda t: 1.0 / (1 + t), steps=2)
        table(values=(1.0, 0.5), steps_per_epoch=1.0)
        """
        steps = _checks.integer("steps", steps, at_least=1)
        return cls(values=tuple(float(curve(step)) for step in range(steps)))

    def __call__(self, step: Any) -> jax.Array:
        """Returns the value for this step."""
        last = len(self.values) - 1
        row = jnp.minimum(epoch_of(step, self.steps_per_epoch), last).astype(jnp.int32)
        return jnp.asarray(self.values, jnp.float32)[row]

    def largest(self) -> float:
        """Returns the largest value of the table."""
        return max(self.values)


@dataclass(frozen=True)
class scaled(Schedule):
    """Multiplies a curve and leaves its shape alone: what calibration returns.

    ``factor * schedule(t)``.

    Args:
        schedule: the curve.
        factor: the factor, > 0.

    Example:
        >>> curve = scaled(table(values=(3.0, 2.0)), factor=2.0)
        >>> float(curve(1)), curve.largest()
        (4.0, 6.0)
    """

    schedule: FloatOrSchedule
    factor: float

    def __post_init__(self) -> None:
        """Checks the fields."""
        if not callable(self.schedule):
            raise TypeError(f"schedule = {self.schedule!r}: expected a schedule")
        number_or_schedule("schedule", self.schedule)
        self._set(factor=_checks.normal("factor", self.factor))
        if isinstance(self.schedule, Schedule):
            _checks.normal("factor times the schedule's largest value", self.largest())

    def __call__(self, step: Any) -> jax.Array:
        """Returns the value for this step."""
        return self.factor * value_at(self.schedule, step)

    def largest(self) -> float:
        """Returns the factor times the curve's largest value."""
        return self.factor * largest(self.schedule)
