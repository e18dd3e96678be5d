"""Accounting: the epsilon of what ran, by Google's dp-accounting."""

from dpjax.accounting.bound import Bound, delta, epsilon
from dpjax.accounting.events import Event, event

__all__ = ["Bound", "Event", "delta", "epsilon", "event"]
