"""Privacy budgets that refuse a release which would exceed them."""

from dataclasses import dataclass
from typing import ClassVar

from dpjax import _checks
from dpjax._record import Record
from dpjax.accounting.bound import rounded_up
from dpjax.accounting.calibration import largest_integer
from dpjax.accounting.ledger import Ledger, Steps
from dpjax.accounting.queries import Query
from dpjax.accounting.relation import check_accountant
from dpjax.accounting.tuning import Search
from dpjax.mechanism import Mechanism
from dpjax.sampling import Sampling

__all__ = ["Budget", "BudgetExceededError"]


class BudgetExceededError(ValueError):
    """Raised before a release that would exceed the budget."""


class _BudgetRecord(Record):
    role: ClassVar[str] = "budget"


@dataclass(frozen=True)
class Budget(_BudgetRecord):
    """The largest epsilon to spend on a data set, and the accountant that computes it.

    Args:
        epsilon: the largest epsilon that a ledger may cost, > 0.
        delta: the delta at which epsilon is computed, in (0, 1).
        accountant: "pld" or "rdp"; the others do not always give a guarantee.

    Raises:
        ValueError: if a number is outside its range, or for any other accountant.

    Privacy:
        The budget holds if noise, sampling and number of releases were fixed beforehand, or chosen
        without looking at earlier releases. With "rdp" it also holds if they depend on earlier
        releases.

    Example:
        >>> import dpjax
        >>> mechanism, sampling = dpjax.methods.dp_sgd(1.0), dpjax.sampling.Poisson.with_rate(0.01)
        >>> budget = Budget(epsilon=2.0, delta=1e-5)
        >>> ledger = budget.admit(Ledger("digits"), Steps(mechanism, sampling, 1000))
        >>> budget.steps_left(ledger, mechanism, sampling)
        202
        >>> budget.admit(ledger, Steps(mechanism, sampling, 203, start=1000))
        Traceback (most recent call last):
        ...
        dpjax.accounting.budget.BudgetExceededError: ...: expected at most 2 in all

    Reference: for "rdp": Feldman and Zrnic, Individual Privacy Accounting via a Renyi Filter, 2021,
    https://arxiv.org/abs/2008.11193; Lecuyer, Practical Privacy Filters and Odometers with Renyi
    Differential Privacy, 2021, https://arxiv.org/abs/2103.01379
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
        """Returns the epsilon of a ledger at this budget's delta, by its accountant.

        Args:
            ledger: the releases so far.
        """
        return ledger.upper_epsilon(self.delta, self.accountant)

    def admit(self, ledger: Ledger, entry: Steps | Query | Search) -> Ledger:
        """Returns the ledger with one more entry, or raises if that exceeds the budget.

        Call it *before* the release: every entry of a ledger counts as released.

        Args:
            ledger: what was released so far.
            entry: the next release: `Steps`, a query or a search.

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
        mechanism: Mechanism,
        sampling: Sampling,
        steps: int = 1,
        run: str | None = None,
    ) -> Ledger:
        """Returns the ledger with more steps, or raises if they exceed the budget.

        Args:
            ledger: what was released so far.
            mechanism: the mechanism that is to run.
            sampling: the sampling that is to draw its batches.
            steps: how many steps, >= 1.
            run: the id of the run that the steps continue; None for a run of their own.

        Raises:
            BudgetExceededError: if the whole would cost more than the budget.
        """
        longer = ledger.add_steps(mechanism, sampling, steps, run)
        return self._checked(longer, f"{steps} more steps")

    def steps_left(
        self,
        ledger: Ledger,
        mechanism: Mechanism,
        sampling: Sampling,
        most: int = 2**24,
        run: str | None = None,
    ) -> int:
        """Returns how many more steps of a mechanism the budget allows.

        Args:
            ledger: what was released so far.
            mechanism: the mechanism that is to run.
            sampling: the sampling that is to draw its batches.
            most: the largest answer.
            run: the id of the run that the steps continue; None for a run of their own.

        Returns:
            The number of steps; 0 if the budget does not allow even one.
        """

        def fits(steps: int) -> bool:
            return self.spent(ledger.add_steps(mechanism, sampling, steps, run)) <= self.epsilon

        return largest_integer(fits, most)


def _short(entry: Steps | Query | Search) -> str:
    if isinstance(entry, Steps):
        return f"{entry.steps} more steps"
    return repr(entry.tuning) if isinstance(entry, Search) else entry.what
