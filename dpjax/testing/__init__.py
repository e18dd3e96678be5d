"""Checks of the contract of rules and thresholds, also for those written outside the package."""

from dpjax._contract import SLACK, ContractViolation
from dpjax.testing.rules import check_rule
from dpjax.testing.thresholds import check_threshold
from dpjax.testing.trials import hostile_norms

__all__ = ["SLACK", "ContractViolation", "check_rule", "check_threshold", "hostile_norms"]
