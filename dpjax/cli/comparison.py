"""Methods compared at one budget: their runs, grouped by method, and the table for a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from dpjax.accounting import Bound
from dpjax.accounting.bound import rounded_up
from dpjax.cli import printing
from dpjax.cli.released_runs import NO_GUARANTEE, ReleasedRun, Spent, read_run, spent_by
from dpjax.data import DATASETS
from dpjax.train.folder import RunFolder

__all__ = [
    "AccuracyCurve",
    "ComparedRun",
    "Comparison",
    "MethodRuns",
    "comparison_text",
    "read_comparison",
]


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison.

    Args:
        method: the method's name; runs with one name are its seeds.
        folder: the folder of the run.
    """

    method: str
    folder: RunFolder


class AccuracyCurve(NamedTuple):
    """Accuracy over epochs: its mean over the seeds, and the half-width of its 95% interval."""

    epochs: np.ndarray
    mean: np.ndarray
    half_width: np.ndarray


@dataclass(frozen=True)
class MethodRuns:
    """The runs of one method.

    Attributes:
        method: its name.
        runs: one for each seed.
    """

    method: str
    runs: tuple[ReleasedRun, ...]

    @cached_property
    def finals(self) -> np.ndarray:
        """The accuracy of each run at its last evaluation."""
        return np.array([run.released[-1]["accuracy"] for run in self.runs], float)

    @property
    def final(self) -> float:
        """The mean of `finals`."""
        return float(self.finals.mean())

    @property
    def half_width(self) -> float:
        """Half the 95% interval of the mean over seeds; NaN for a single run."""
        return float(half_width(self.finals))

    @property
    def final_text(self) -> str:
        """The final accuracy and its interval as text, in percent."""
        text = f"{self.final:.2%}"
        return f"{text[:-1]} +- {100 * self.half_width:.2f}%" if len(self.runs) > 1 else text

    def curve(self) -> AccuracyCurve:
        """Returns accuracy over epochs, at the steps where every seed was evaluated."""
        tables = [{row["step"]: row for row in run.released} for run in self.runs]
        steps = [step for step in tables[0] if all(step in table for table in tables)]
        if not steps:
            raise ValueError(f"{self.method}: expected seeds that were evaluated at the same steps")
        values = np.array([[table[step]["accuracy"] for step in steps] for table in tables], float)
        epochs = np.array([tables[0][step]["epoch"] for step in steps], float)
        return AccuracyCurve(epochs, values.mean(axis=0), half_width(values))


def half_width(values: np.ndarray) -> np.ndarray:
    """Returns half of Student's 95% interval of the mean of n values, t_(n-1) s / sqrt(n).

    Args:
        values: one for each seed, along the first axis; NaN is returned for a single one.

    >>> round(float(half_width(np.array([0.84, 0.86]))), 4)  # t_1 = 12.71, s / sqrt(2) = 0.01
    0.1271
    """
    seeds = len(values)
    if seeds < 2:
        return np.full(values.shape[1:], np.nan)
    return stdtrit(seeds - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(seeds)


@dataclass(frozen=True)
class Comparison:
    """The content of a comparison.

    Attributes:
        methods: the methods, in the order given.
        spent: the cost of all runs, in the order of `runs`.
    """

    methods: tuple[MethodRuns, ...]
    spent: Spent

    @property
    def runs(self) -> list[ReleasedRun]:
        """All runs, method by method."""
        return [run for entry in self.methods for run in entry.runs]

    @property
    def best_first(self) -> list[int]:
        """The indices of the methods, sorted by final accuracy; NaN comes last."""
        finals = [np.nan_to_num(entry.final, nan=-1.0) for entry in self.methods]
        return sorted(range(len(finals)), key=lambda i: -finals[i])

    @property
    def ranks(self) -> list[tuple[int, int] | None]:
        """The best and the worst rank each method may have; None without an interval.

        A method ranks above another only if its whole interval is above the other's. Methods whose
        intervals overlap are not ranked against each other.
        """
        intervals = [
            (entry.final - entry.half_width, entry.final + entry.half_width)
            for entry in self.methods
        ]
        if not np.isfinite(intervals).all():
            return [None] * len(intervals)
        return [
            (
                1 + sum(other > high for other, _ in intervals),
                len(intervals) - sum(other < low for _, other in intervals),
            )
            for low, high in intervals
        ]

    @property
    def caution(self) -> str:
        """What the accuracies do not show, as text."""
        sentences = []
        if self.seeds > 1 and None not in self.ranks:
            sentences.append(
                f"accuracy: mean and 95% interval over {self.seeds} seeds; methods whose intervals "
                "overlap are not ranked against each other"
            )
        else:
            sentences.append("accuracy: one seed is no comparison; --seeds 5 gives intervals")
        error = self.test_error
        if error is not None:
            sentences.append(
                f"the test set's {self.test_examples:,} examples leave +- {100 * error:.1f} points "
                "(95%) of their own, the same for all methods"
            )
        return "\n".join(sentences)

    @property
    def test_examples(self) -> int | None:
        """The size of the test set; None for the user's own data."""
        source = DATASETS.get(self.runs[0].experiment.data.name)
        return source.examples[1] if source is not None else None

    @property
    def test_error(self) -> float | None:
        """Half the binomial 95% interval of the best accuracy, over the test set's examples."""
        best = self.methods[self.best_first[0]].final
        if self.test_examples is None or not 0 <= best <= 1:
            return None
        return float(1.96 * np.sqrt(best * (1 - best) / self.test_examples))

    @property
    def seeds(self) -> int:
        """The largest number of runs of a method."""
        return max(len(entry.runs) for entry in self.methods)

    @property
    def title(self) -> str:
        """What was compared, and at which budget."""
        first = self.runs[0].experiment
        budgets = {run.experiment.privacy.epsilon for run in self.runs} - {None}
        budget = f"epsilon = {budgets.pop():g} at " if len(budgets) == 1 else ""
        cost = f": {budget}{self.spent.target}" if self.spent.target else ""
        return f"{first.data.name}, {first.model.name}{cost}"


def read_comparison(rows: Sequence[ComparedRun]) -> Comparison:
    """Reads the runs of a comparison; raises ValueError if data or networks differ."""
    if not rows:
        raise ValueError("rows: expected at least one run")
    runs = [read_run(row.folder, row.method) for row in rows]
    for name in ("data", "model"):
        found = sorted({getattr(run.experiment, name).name for run in runs})
        if len(found) > 1:
            raise ValueError(f"{name}.name = {', '.join(found)}: expected one in a comparison")
    names = dict.fromkeys(row.method for row in rows)
    methods = [MethodRuns(name, tuple(r for r in runs if r.label == name)) for name in names]
    return Comparison(tuple(methods), spent_by([run for entry in methods for run in entry.runs]))


def comparison_text(rows: Sequence[ComparedRun]) -> str:
    """Returns a comparison as text: what was compared, a table sorted by accuracy, and the cost.

    Args:
        rows: the runs, as for `dpjax.cli.compare_plots.draw_comparison`.
    """
    comparison = read_comparison(rows)
    costs = iter(comparison.spent.each)
    each = {entry.method: [next(costs) for _ in entry.runs] for entry in comparison.methods}
    header = ["rank", "method", "accuracy", "epsilon", "sigma at end", "C at end"]
    body = []
    for i in comparison.best_first:
        entry = comparison.methods[i]
        ends = [_at_end(entry, column) for column in ("sigma", "threshold")]
        cells = [entry.method, entry.final_text, _most(each[entry.method]), *ends]
        body.append([_rank(comparison.ranks[i]), *cells])
    table = printing.table(header, body)
    return f"{comparison.title}\n\n{table}\n\n{comparison.caution}\n{comparison.spent.sentence}"


def _rank(rank: tuple[int, int] | None) -> str:
    if rank is None:
        return "-"
    best, worst = rank
    return f"{best}" if best == worst else f"{best}-{worst}"


def _most(epsilons: Sequence[Bound | None]) -> str:
    """Returns, as text, the largest epsilon of a method's runs and whether it is guaranteed."""
    known = [epsilon for epsilon in epsilons if epsilon is not None]
    if len(known) < len(epsilons):
        return NO_GUARANTEE
    text = rounded_up(max(known))
    return text if all(epsilon.guarantee for epsilon in known) else f"{text}, {NO_GUARANTEE}"


def _at_end(entry: MethodRuns, column: str) -> str:
    """Returns, as text, the range of a number at the last step over groups and seeds."""
    rows = [np.atleast_1d(run.steps[column][-1]) for run in entry.runs if run.steps[column]]
    values = np.concatenate(rows) if rows else np.empty(0)
    if not values.size or not np.isfinite(values).all():  # not every method has this number
        return "-"
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"
