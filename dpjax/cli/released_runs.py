"""Runs read from their folders, for figures and tables, and their privacy cost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpjax._files import refuse_links
from dpjax.accounting import Bound, Ledger, published_together
from dpjax.accounting.bound import rounded_up
from dpjax.cli.accountant_table import NO_NUMBER
from dpjax.train.config import Experiment
from dpjax.train.folder import RunFolder

__all__ = ["NO_GUARANTEE", "ReleasedRun", "Spent", "read_run", "read_runs", "spent_by"]

NO_GUARANTEE = "no guarantee"


@dataclass(frozen=True)
class ReleasedRun:
    """What a run released.

    Attributes:
        label: its name in a figure.
        folder: its folder.
        experiment: its resolved config.
        released: its evaluations.
        steps: the public numbers of its steps, by column.
    """

    label: str
    folder: RunFolder
    experiment: Experiment
    released: list[dict[str, Any]]
    steps: dict[str, list[Any]]

    @property
    def plots(self) -> Path:
        """The folder of its figures; created if it does not exist."""
        refuse_links(self.folder.path)
        folder = self.folder.path / "plots"
        folder.mkdir(exist_ok=True)
        return folder

    def column(self, name: str) -> list[Any]:
        """Returns one column of all evaluations."""
        return [row[name] for row in self.released]

    def thresholds(self) -> list[list[float]]:
        """Returns C_t of every step, one list for each group of parameters."""
        rows = [c if isinstance(c, list) else [c] for c in self.steps["threshold"]]
        return [list(group) for group in zip(*rows, strict=True)]

    @property
    def constant_threshold(self) -> bool:
        """Whether every group has the same threshold in all steps."""
        return all(np.unique(group).size == 1 for group in self.thresholds())  # NaN is one value

    @property
    def threshold_text(self) -> str:
        """The thresholds of the last step, one for each group."""
        return ", ".join(f"{group[-1]:.4g}" for group in self.thresholds()) or "-"


def read_run(folder: RunFolder, label: str = "") -> ReleasedRun:
    """Reads a run; its label is its method's name unless one is given.

    Raises:
        ValueError: if the run has no evaluation, and so nothing to show.
    """
    experiment = folder.read_config()
    released = folder.released()
    if not released:
        raise ValueError(f"{folder.path}: expected a line in released.jsonl, for an evaluation")
    name = label or str(experiment.method.get("name", "mechanism"))
    return ReleasedRun(name, folder, experiment, released, folder.steps())


def read_runs(paths: Sequence[str]) -> list[ReleasedRun]:
    """Reads runs; labels include folder names if several runs have the same method."""
    places = [Path(path).resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"{path}: given twice; expected every run once")
    return _told_apart([read_run(RunFolder(Path(path))) for path in paths])


def _told_apart(runs: Sequence[ReleasedRun]) -> list[ReleasedRun]:
    """Adds folder names to labels that several runs share; whole paths if names are the same."""
    counts = Counter(run.label for run in runs)
    names = [run.folder.path.resolve().name for run in runs]
    if len({(run.label, name) for run, name in zip(runs, names, strict=True)}) < len(runs):
        names = [str(run.folder.path) for run in runs]
    return [
        replace(run, label=_longer(run.label, name)) if counts[run.label] > 1 else run
        for run, name in zip(runs, names, strict=True)
    ]


def _longer(label: str, name: str) -> str:
    """Returns a label with a folder's name, which often contains the label.

    >>> _longer("dp_sgd", "seed-1"), _longer("dp_sgd", "digits-dp_sgd")
    ('dp_sgd (seed-1)', 'digits-dp_sgd')
    """
    return name if label in name else f"{label} ({name})"


@dataclass(frozen=True)
class Spent:
    """The cost of runs that are shown together.

    Attributes:
        labels: the runs' names.
        each: the epsilon of each run; None without a guarantee.
        all_published: the epsilon of all; None without a guarantee, or if `together` says why.
        together: why there is no number for all of them; empty if there is one, or none is
            guaranteed.
        delta: the target; the smallest if the runs' own differ.
    """

    labels: tuple[str, ...]
    each: tuple[Bound | None, ...]
    all_published: Bound | None
    together: str
    delta: float

    @property
    def sentence(self) -> str:
        """The cost as text, rounded up."""
        return ", ".join((self._each, *([self._all] if len(self.each) > 1 else [])))

    @property
    def target(self) -> str:
        """The delta and the accountant, as text; empty without a guarantee."""
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


def spent_by(runs: Sequence[ReleasedRun]) -> Spent:
    """Returns what runs cost, recomputed from their ledgers.

    Runs on one data set compose, because a figure that shows them publishes all of them. If one has
    no ledger, neither it nor all of them together have a guarantee. Runs on different data sets do
    not compose.

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
    """Returns the epsilon of all runs by the first of their accountants that has one."""
    known = [ledger for ledger in ledgers if ledger is not None]
    if len(known) < len(ledgers):
        return None, ""
    for accountant in accountants:
        try:
            return published_together(known, delta, accountant).all_published, ""
        except NO_NUMBER:  # no accountant supports these samplers under one relation
            continue
    return None, "no accountant has a number"


def _delta(run: ReleasedRun) -> float:
    delta = run.experiment.privacy.delta
    if isinstance(delta, str):
        raise ValueError(f"{run.folder.config_file}: privacy.delta = {delta!r}: expected a number")
    return float(delta)
