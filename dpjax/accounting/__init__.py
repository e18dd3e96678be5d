"""Privacy accounting of mechanisms under a sampling, built on Google's dp-accounting."""

from dpjax.accounting import tuning
from dpjax.accounting.bound import Bound, delta, epsilon
from dpjax.accounting.budget import Budget, BudgetExceededError
from dpjax.accounting.calibration import calibrate, largest_batch, max_steps
from dpjax.accounting.events import Event, event
from dpjax.accounting.ledger import Ledger, Steps, Together, published_together
from dpjax.accounting.queries import DeclaredQuery, GaussianQuery, LaplaceQuery
from dpjax.accounting.rdp import TAIL_ORDERS
from dpjax.accounting.statement import privacy_statement

__all__ = [
    "TAIL_ORDERS",
    "Bound",
    "Budget",
    "BudgetExceededError",
    "DeclaredQuery",
    "Event",
    "GaussianQuery",
    "LaplaceQuery",
    "Ledger",
    "Steps",
    "Together",
    "calibrate",
    "delta",
    "epsilon",
    "event",
    "largest_batch",
    "max_steps",
    "privacy_statement",
    "published_together",
    "tuning",
]
