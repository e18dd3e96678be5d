"""The budget guard: refuses the step that would spend more than there is."""

from dataclasses import dataclass
from typing import Any, ClassVar

from dpjax import _checks
from dpjax._record import Record
from dpjax.accounting.bound import rounded_up
from dpjax.accounting.ledger import Ledger, Steps
from dpjax.accounting.queries import Query
from dpjax.accounting.relation import check_accountant
from dpjax.accounting.solve import largest_integer
from dpjax.accounting.tuning import Search
from dpjax.mechanism import Mechanism
from dpjax.methods import Method
from dpjax.sampling import Sampling

__all__ = ["Budget", "BudgetExceededError"]


class BudgetExceededError(ValueError):
    """A release would have cost more than the budget; it did not take place."""


class _BudgetRecord(Record):
    role: ClassVar[str] = "budget"


@dataclass(frozen=True)
class Budget(_BudgetRecord):
    """How much may be spent on a data set, and who counts.

    Args:
        epsilon: the most that a ledger may cost.
        delta: at this delta.
        accountant: "pld" or "rdp": a budget is a guarantee.

    Privacy:
        Epsilon holds for releases whose noise, sampling and number were fixed beforehand, or chosen
        without a look at what was released. For RDP it also holds when they were chosen by it.

    Example:
        >>> import dpjax
        >>> method, sampling = dpjax.methods.dp_sgd(1.0), dpjax.sampling.Poisson.with_rate(0.01)
        >>> budget = Budget(epsilon=2.0, delta=1e-5)
        >>> ledger = budget.admit(Ledger("digits"), Steps(method, sampling, 1000))
        >>> budget.steps_left(ledger, method, sampling)
        202
        >>> budget.admit(ledger, Steps(method, sampling, 203, start=1000))
        Traceback (most recent call last):
        ...
        dpjax.accounting.budget.BudgetExceededError: ...: expected at most 2 in all
    """

    epsilon: float
    delta: float
    accountant: str = "pld"

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            epsilon=_checks.positive("epsilon", self.epsilon),
            delta=_checks.fraction("delta", self.delta),
        )
        if check_accountant(self.accountant) not in ("pld", "rdp"):
            raise ValueError(f"accountant = {self.accountant!r}: expected 'pld' or 'rdp'")

    def spent(self, ledger: Ledger) -> float:
        """Returns what a ledger costs, as this budget counts."""
        return ledger.upper_epsilon(self.delta, self.accountant)

    def admit(self, ledger: Ledger, entry: Steps | Query | Search) -> Ledger:
        """Returns the ledger with one more entry, or refuses it.

        Call it *before* the release: what is in the ledger counts as released.

        Raises:
            BudgetExceededError: if the whole would cost more than the budget.
        """
        return self._checked(ledger.add(entry), _short(entry))

    def _checked(self, longer: Ledger, what: str) -> Ledger:
        cost = self.spent(longer)
        if not cost <= self.epsilon:
            raise BudgetExceededError(
                f"epsilon = {rounded_up(cost)} at delta = {self.delta:g} with {what}: expected at "
                f"most {self.epsilon:g} in all"
            )
        return longer

    def admit_steps(
        self,
        ledger: Ledger,
        mechanism: Mechanism | Method,
        sampling: Sampling,
        steps: int = 1,
        run: str | None = None,
    ) -> Ledger:
        """Returns the ledger with more steps, as `Ledger.add_steps`, or refuses them."""
        longer = ledger.add_steps(mechanism, sampling, steps, run)
        return self._checked(longer, f"{steps} more steps")

    def steps_left(
        self,
        ledger: Ledger,
        mechanism: Mechanism | Method,
        sampling: Sampling,
        most: int = 2**24,
        run: str | None = None,
    ) -> int:
        """Returns how many more steps of a mechanism the budget allows after a ledger.

        They go on where the run with this id ended; without one they are a run of their own.
        """

        def fits(steps: int) -> bool:
            return self.spent(ledger.add_steps(mechanism, sampling, steps, run)) <= self.epsilon

        return largest_integer(fits, most)


def _short(entry: Any) -> str:
    if isinstance(entry, Steps):
        return f"{entry.steps} more steps"
    return repr(entry.tuning) if isinstance(entry, Search) else entry.what
