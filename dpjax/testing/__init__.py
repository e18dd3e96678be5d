"""The contract of rules and thresholds, as checks that a rule written elsewhere can call too."""

from dpjax._contract import SLACK, ContractViolation
from dpjax.testing.points import hostile_norms
from dpjax.testing.rules import check_rule
from dpjax.testing.thresholds import check_threshold

__all__ = ["SLACK", "ContractViolation", "check_rule", "check_threshold", "hostile_norms"]
