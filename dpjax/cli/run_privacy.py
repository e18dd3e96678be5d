"""What runs on disk cost: each alone, and all of them published."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpjax.accounting import Bound, Ledger, published_together
from dpjax.accounting.bound import rounded_up
from dpjax.cli.rows import NO_NUMBER
from dpjax.cli.run_data import Run

__all__ = ["NO_GUARANTEE", "Spent", "spent_by"]

NO_GUARANTEE = "no guarantee"


@dataclass(frozen=True)
class Spent:
    """The cost of runs that are shown together.

    Attributes:
        labels: the runs' names.
        each: the epsilon of each run; None without a guarantee.
        all_published: the epsilon of all; None without a guarantee, and where `together` says why.
        together: why there is no number for all of them; empty where there is one, or no guarantee.
        delta: the target; the smallest where the runs' own differ.
    """

    labels: tuple[str, ...]
    each: tuple[Bound | None, ...]
    all_published: Bound | None
    together: str
    delta: float

    @property
    def sentence(self) -> str:
        """The cost in words, rounded up."""
        return ", ".join((self._each, *([self._all] if len(self.each) > 1 else [])))

    @property
    def target(self) -> str:
        """At which delta, and who counted; empty where nobody did."""
        bounds = [bound for bound in (*self.each, self.all_published) if bound is not None]
        names = dict.fromkeys(bound.accountant for bound in bounds)
        return f"delta = {rounded_up(self.delta, 3)} ({' and '.join(names)})" if names else ""

    @property
    def _each(self) -> str:
        bounds = [bound for bound in self.each if bound is not None]
        word = "epsilon each" if len(self.each) > 1 else "epsilon"
        if not bounds:
            return f"{word}: {NO_GUARANTEE}"
        without = [n for n, bound in zip(self.labels, self.each, strict=True) if bound is None]
        rest = f" ({', '.join(dict.fromkeys(without))}: {NO_GUARANTEE})" if without else ""
        return f"{word} <= {rounded_up(max(bounds))}{rest}"

    @property
    def _all(self) -> str:
        if self.all_published is None:
            return f"all published: {self.together or NO_GUARANTEE}"
        return f"all published <= {rounded_up(self.all_published)}"


def spent_by(runs: Sequence[Run]) -> Spent:
    """Returns what runs cost, recomputed from their ledgers.

    Runs of one data set compose: whoever sees their figure sees all of them. One without a ledger
    has no guarantee, and neither have all published. Runs of different data sets stand alone.

    Args:
        runs: the runs.
    """
    if not runs:
        raise ValueError("runs: expected at least one")
    delta = min(_delta(run) for run in runs)
    ledgers = [run.folder.read_ledger() for run in runs]
    each = tuple(
        None if ledger is None else ledger.epsilon(delta, run.experiment.privacy.accountant)
        for run, ledger in zip(runs, ledgers, strict=True)
    )
    accountants = {run.experiment.privacy.accountant for run in runs}
    total, why = None, ""
    if len({(run.experiment.data.name, run.experiment.privacy.unit) for run in runs}) > 1:
        why = "each data set alone"
    else:
        total, why = _together(ledgers, delta, sorted(accountants))
    return Spent(tuple(run.label for run in runs), each, total, why, delta)


def _together(
    ledgers: Sequence[Ledger | None], delta: float, accountants: Sequence[str]
) -> tuple[Bound | None, str]:
    """Returns the first number that one of the runs' accountants has for all of them."""
    known = [ledger for ledger in ledgers if ledger is not None]
    if len(known) < len(ledgers):
        return None, ""
    for accountant in accountants:
        try:
            return published_together(known, delta, accountant).all_published, ""
        except NO_NUMBER:  # samplers that no accountant knows under one relation
            continue
    return None, "no accountant has a number"


def _delta(run: Run) -> float:
    delta = run.experiment.privacy.delta
    if isinstance(delta, str):
        raise ValueError(f"{run.folder.config_file}: privacy.delta = {delta!r}: expected a number")
    return float(delta)
