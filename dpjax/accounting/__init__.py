"""Accounting: the epsilon of what ran, by Google's dp-accounting."""

from dpjax.accounting.as_printed import auto_dp_sgd_epsilon_as_printed
from dpjax.accounting.bound import Bound, delta, epsilon
from dpjax.accounting.calibration import calibrate, largest_batch, max_steps
from dpjax.accounting.events import Event, event
from dpjax.accounting.rdp import TAIL_ORDERS

__all__ = [
    "TAIL_ORDERS",
    "Bound",
    "Event",
    "auto_dp_sgd_epsilon_as_printed",
    "calibrate",
    "delta",
    "epsilon",
    "event",
    "largest_batch",
    "max_steps",
]
