"""What one run has released so far, on disk before it happens and after it did."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from dpjax.accounting import Ledger, Steps, privacy_statement
from dpjax.accounting.missing_mass import NoEpsilonError
from dpjax.accounting.solve import largest_integer
from dpjax.accounting.statement import NOT_COUNTED
from dpjax.mechanism import Mechanism
from dpjax.privatize import Released
from dpjax.train.folder import RunFolder
from dpjax.train.identity import Environment, RunIdentity
from dpjax.train.keys import next_lineage
from dpjax.train.resolve import Plan
from dpjax.train.task import Scores

__all__ = ["Book"]

_SEEDED = (
    "**Not to be published: the noise was drawn from a fixed seed, and whoever guesses the seed "
    "can take it away.** What follows holds for keys that nobody knows.\n\n"
)


@dataclass(frozen=True)
class Book:
    """The books of one run.

    Args:
        folder: where they are kept.
        plan: what runs.
        identity: which run this is.
        data: the marks of the examples, by which they are known again; private.
        before: what the same run released as other experiments, before it was changed.
        start: at which step this experiment took over.
    """

    folder: RunFolder
    plan: Plan
    identity: RunIdentity
    data: Mapping[str, str] = field(repr=False)
    before: Ledger
    start: int = 0

    def ledger(self, step: int) -> Ledger | None:
        """Returns the ledger at a step; None where there is no guarantee to account for."""
        method = self.plan.method
        if not self.plan.private or not isinstance(method, Mechanism):
            return None
        if step == self.start:
            return self.before
        entry = Steps(method, self.plan.sampling, step - self.start, self.start)
        return self.before.add(entry)

    def announce(self, step: int) -> None:
        """Enters the steps up to `step` in the ledger on disk, before they are taken.

        A run that goes on from an older checkpoint repeats steps, which costs nothing as they are
        the same bit for bit; the ledger on disk never becomes shorter by it.
        """
        self.folder.remove_statement()
        ledger, written = self.ledger(step), self.folder.read_ledger()
        if ledger is None:
            return
        if written is not None and not _goes_on(written, ledger):
            raise ValueError(f"{self.folder.path}/ledger.json: expected the ledger of this run")
        if written is None or _length(written) <= _length(ledger):
            self.folder.write_ledger(ledger)

    def epsilon(self, step: int) -> float | None:
        """Returns what was spent up to a step; None without a guarantee.

        It is infinite where the noise is so small that no epsilon holds at this delta.
        """
        ledger = self.ledger(step)
        if ledger is None:
            return None
        try:
            return ledger.upper_epsilon(self.plan.delta, self._accountant)
        except NoEpsilonError:
            return math.inf

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
        excluded = (*NOT_COUNTED, *self._also_not_counted())
        try:
            counted = privacy_statement(ledger, self.plan.delta, self._accountant, excluded)
        except NoEpsilonError as error:
            name = self.plan.experiment.data.name
            return f"# Privacy statement: {name}\n\nNo guarantee: {error}.\n"
        return counted if self.plan.experiment.run.seed is None else _SEEDED + counted

    def _also_not_counted(self) -> list[str]:
        if self.plan.experiment.model.weights is None:
            return []
        return ["what the weights that the model started from cost, if the same data made them"]

    def meta(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of the books, and of what runs."""
        return {
            "experiment": self.plan.experiment.to_plain(),
            "data": dict(self.data),
            "before": self.before.to_plain(),
            "start": self.start,
        }

    @classmethod
    def from_meta(
        cls,
        folder: RunFolder,
        plan: Plan,
        identity: RunIdentity,
        data: Mapping[str, str],
        meta: dict[str, Any],
    ) -> Self:
        """Reads the books back from what a checkpoint kept; refuses other data."""
        for split, mark in data.items():
            if mark != meta["data"][split]:
                raise ValueError(
                    f"{folder.path}: the {split} examples of {plan.experiment.data.name} have "
                    "changed: expected those that the run was begun with"
                )
        before = Ledger.from_plain(meta["before"])
        return cls(folder, plan, identity, data, before, int(meta["start"])).limited()

    def taken_over(self, plan: Plan, step: int) -> Self:
        """Returns the books of the same run as another experiment, or elsewhere, from `step` on.

        What the ledger on disk says was released counts, also beyond the checkpoint at `step`. The
        budget is that of the new experiment, for everything that was released.
        """
        self._check_successor(plan, step)
        lineage = next_lineage(self.identity.lineage, plan.experiment.identity, step)
        known = [self.folder.read_ledger(), self.ledger(step)]
        book = replace(
            self,
            plan=plan,
            identity=replace(self.identity, lineage=lineage, environment=Environment.current()),
            before=max((ledger for ledger in known if ledger is not None), key=_length),
            start=step,
        ).limited()
        book.epsilon(step + 1)  # an accountant that has no number for the whole says so now
        return book

    def _check_successor(self, plan: Plan, step: int) -> None:
        if not self.plan.private or not plan.private:
            raise ValueError(
                f"method {self.plan.name} to {plan.name}: expected methods with a "
                "guarantee, since a run cannot gain or lose one on the way"
            )
        old, new = self.plan.experiment, plan.experiment
        fixed = {
            "data.name": (old.data.name, new.data.name),
            "privacy.unit": (old.privacy.unit, new.privacy.unit),
            "model.weights": (old.model.weights_sha256, new.model.weights_sha256),
        }
        for path, (was, now) in fixed.items():
            if was != now:
                raise ValueError(f"{path} was {was!r} and is {now!r}: expected a new run for it")
        if plan.asked <= step:
            raise ValueError(
                f"train.steps = {plan.asked}: expected more than the {step} that were taken"
            )

    def limited(self) -> Self:
        """Returns the books with no more steps planned than the budget leaves after `before`."""
        if not self.before.entries:
            return self  # the plan itself was made for the whole budget
        steps = self._allowed()
        return replace(self, plan=replace(self.plan, steps=steps))

    def _allowed(self) -> int:
        plan, epsilon = self.plan, self.plan.experiment.privacy.epsilon
        if epsilon is None:
            return plan.asked

        def fits(more: int) -> bool:
            spent = self.epsilon(self.start + more)
            return spent is not None and spent <= epsilon

        allowed = largest_integer(fits, plan.asked - self.start)
        if not allowed:
            raise ValueError(
                f"privacy.epsilon = {epsilon:g}: expected more, all of it was spent on the "
                f"{self.start} steps before"
            )
        return self.start + allowed

    @property
    def _accountant(self) -> str:
        return self.plan.accountant


def _goes_on(written: Ledger, ledger: Ledger) -> bool:
    """Says whether one ledger is the other but for the number of its last steps."""
    pair = []
    for entries in (written.entries, ledger.entries):
        last = entries[-1:] if len(entries) == len(ledger.entries) else ()
        rest = entries[: len(ledger.entries) - 1]
        pair.append((rest, [entry.replace(steps=1) for entry in last]))
    same = pair[0] == pair[1]
    return same or written.entries == ledger.entries[:-1]


def _length(ledger: Ledger) -> int:
    return sum(entry.steps for entry in ledger.entries if isinstance(entry, Steps))


def _plain(value: Any) -> Any:
    """Returns a number or a list of them; None for what a method does not release."""
    array = np.asarray(value, np.float64)
    return array.tolist() if np.isfinite(array).all() else None
