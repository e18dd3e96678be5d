"""What one run has released so far, on disk before it happens and after it did."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpjax.accounting import Ledger, Steps, privacy_statement
from dpjax.accounting.solve import largest_integer
from dpjax.privatize import Released
from dpjax.train.folder import RunFolder, RunIdentity
from dpjax.train.keys import next_lineage
from dpjax.train.resolve import Plan
from dpjax.train.task import Scores

__all__ = ["Book"]


@dataclass(frozen=True)
class Book:
    """The books of one run.

    Args:
        folder: where they are kept.
        plan: what runs.
        identity: which run this is.
        before: what the same run released as other experiments, before it was changed.
        start: at which step this experiment took over.
    """

    folder: RunFolder
    plan: Plan
    identity: RunIdentity
    before: Ledger
    start: int = 0

    def ledger(self, step: int) -> Ledger | None:
        """Returns the ledger at a step; None where there is no guarantee to account for."""
        if not self.plan.private:
            return None
        if step == self.start:
            return self.before
        entry = Steps(self.plan.method, self.plan.sampling, step - self.start, self.start)
        return self.before.add(entry)

    def announce(self, step: int) -> None:
        """Enters the steps up to `step` in the ledger on disk, before they are taken.

        A run that goes on from an older checkpoint repeats steps, which costs nothing as they are
        the same bit for bit; the ledger on disk never becomes shorter by it.
        """
        ledger, written = self.ledger(step), self.folder.read_ledger()
        if ledger is not None and (written is None or _length(written) <= _length(ledger)):
            self.folder.write_ledger(ledger)

    def epsilon(self, step: int) -> float | None:
        """Returns what was spent up to a step; None without a guarantee."""
        ledger = self.ledger(step)
        return None if ledger is None else ledger.upper_epsilon(self.plan.delta, self._accountant)

    def evaluated(self, step: int, scores: Scores, released: Released, epsilon: Any) -> None:
        """Writes the public numbers of an evaluation."""
        self.folder.add_released(
            {
                "step": step,
                "epoch": step / self.plan.steps_per_epoch,
                "accuracy": float(scores.accuracy),
                "loss": float(scores.loss),
                "threshold": _plain(released.threshold),
                "sigma": _plain(released.sigma),
                "sigma_gradient": _plain(released.sigma_gradient),
                "epsilon": epsilon,
                "delta": self.plan.delta,
            }
        )

    def state_in_words(self, step: int) -> str:
        """Returns the privacy statement at a step."""
        ledger = self.ledger(step)
        if ledger is None:
            name, why = self.plan.experiment.data.name, self.plan.method.guarantee.statement
            return f"# Privacy statement: {name}\n\n{why}\n"
        return privacy_statement(ledger, self.plan.delta, self._accountant)

    def meta(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of the books, and of what runs."""
        return {
            "experiment": self.plan.experiment.to_plain(),
            "before": self.before.to_plain(),
            "start": self.start,
        }

    def taken_over(self, plan: Plan, step: int) -> "Book":
        """Returns the books of the same run as another experiment from `step` on.

        What the ledger on disk says was released counts, also beyond the checkpoint at `step`. The
        budget is that of the new experiment, for everything that was released.
        """
        if not self.plan.private or not plan.private:
            raise ValueError(
                f"method {self.plan.method.name} to {plan.method.name}: expected methods with a "
                "guarantee, since a run cannot gain or lose one on the way"
            )
        lineage = next_lineage(self.identity.lineage, plan.experiment.identity, step)
        identity = replace(self.identity, lineage=lineage)
        book = Book(self.folder, plan, identity, self.folder.read_ledger() or self.before, step)
        return book.limited()

    def limited(self) -> "Book":
        """Returns the books with no more steps planned than the budget leaves after `before`."""
        if not self.start:
            return self  # the plan itself was made for the whole budget
        return replace(self, plan=replace(self.plan, steps=self._allowed()))

    def _allowed(self) -> int:
        plan, epsilon = self.plan, self.plan.experiment.privacy.epsilon
        if epsilon is None:
            return plan.steps

        def fits(more: int) -> bool:
            spent = self.epsilon(self.start + more)
            return spent is not None and spent <= epsilon

        allowed = largest_integer(fits, max(plan.steps - self.start, 0))
        if not allowed:
            raise ValueError(
                f"privacy.epsilon = {epsilon:g}: expected more, all of it was spent on the "
                f"{self.start} steps before"
            )
        return self.start + allowed

    @property
    def _accountant(self) -> str:
        return self.plan.accountant


def _length(ledger: Ledger) -> int:
    return sum(entry.steps for entry in ledger.entries if isinstance(entry, Steps))


def _plain(value: Any) -> Any:
    """Returns a number or a list of them; None for what a method does not release."""
    array = np.asarray(value, np.float64)
    return None if np.isnan(array).any() else array.tolist()
