"""A printed number, compared with the accuracy and thresholds of stored runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dpjax.papers.printed_numbers import Cell
from dpjax.papers.recipe import SEEDS, Override, Recipe
from dpjax.papers.recipes import recipe_of
from dpjax.papers.recipes.auto_dp_numbers import as_printed
from dpjax.papers.recipes.lin import search_for
from dpjax.papers.store import RunRecord, Store

__all__ = ["Outcome", "ThresholdCurve", "greedy_curve", "outcome_of", "threshold_curves"]

_PRINTED_RUNS = 5  # the number of runs behind the papers' means


@dataclass(frozen=True)
class Outcome:
    """Our result for a cell.

    Attributes:
        cell: the printed number.
        recipe: how it is reproduced.
        choice: the best candidate; None while the search is unfinished.
        records: the runs behind our number, one per seed.
        sound: for a method without a guarantee, the runs of its sound version.
        searched: the runs of the search, in the order of the recipe's grid.
    """

    cell: Cell
    recipe: Recipe
    choice: Override | None
    records: tuple[RunRecord, ...]
    sound: tuple[RunRecord, ...]
    searched: tuple[RunRecord, ...]

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The results of the runs, one number per seed, in the unit of the printed one."""
        return tuple(_measured(self.cell, record) or 0.0 for record in self.records)

    @cached_property
    def mean(self) -> float | None:
        """Our number: the mean over the seeds; None without a run.

        For times it is the shortest, because other work on the machine only adds to them.
        """
        if not self.numbers:
            return None
        return min(self.numbers) if self._is_time else float(np.mean(self.numbers))

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over the seeds; None for fewer than two, and for times."""
        if len(self.numbers) < 2 or self._is_time:
            return None
        return float(np.std(self.numbers, ddof=1))

    @property
    def _is_time(self) -> bool:
        return self.cell.metric == "seconds"

    @property
    def ours(self) -> float | None:
        """Our number, from a formula or from runs; None without either."""
        return self.mean if self.recipe.computed is None else self.recipe.computed

    @property
    def difference(self) -> float | None:
        """Ours minus printed, in points; None if the number is not a score."""
        if self.mean is None or not self.cell.is_score:
            return None
        return self.mean - self.cell.value

    @property
    def error(self) -> float | None:
        """The standard error of `difference`; None for fewer than two seeds.

        A printed spread counts as a standard deviation over five runs, which most papers report;
        one prints half a 95% confidence interval over five runs, which is nearly the same.
        """
        if self.deviation is None:
            return None
        printed = (self.cell.spread or 0.0) ** 2 / _PRINTED_RUNS
        return float(np.sqrt(self.deviation**2 / len(self.numbers) + printed))

    @property
    def within_errors(self) -> bool | None:
        """Whether ours is at most two standard errors from print; None for fewer than two seeds."""
        if self.difference is None or self.error is None:
            return None
        return abs(self.difference) <= 2 * self.error

    @property
    def sound_mean(self) -> float | None:
        """The sound method's accuracy, in percent."""
        accuracies = [100 * record.accuracy for record in self.sound]
        return float(np.mean(accuracies)) if accuracies else None

    @property
    def within(self) -> bool:
        """Whether ours is at most one point from the printed mean."""
        return self.difference is not None and abs(self.difference) <= 1.0


def outcome_of(cell: Cell, store: Store, seeds: int = SEEDS) -> Outcome:
    """Returns our result for a cell from the stored runs; trains nothing.

    Args:
        cell: the printed number.
        store: the runs.
        seeds: the largest number of seeds to count.

    Example:
        >>> from pathlib import Path
        >>> from dpjax.papers import cell_named
        >>> cell = cell_named("psasc/III/mnist/4-layer-cnn/3/dp-psac")
        >>> print(outcome_of(cell, Store(Path("empty"))).mean)
        None
    """
    recipe = recipe_of(cell, store.findings)
    choice = store.choice(recipe)
    results = [] if choice is None else recipe.results(choice, seeds)
    return Outcome(
        cell,
        recipe,
        choice,
        tuple(r for r in store.done(results) if _measured(cell, r) is not None),
        tuple(store.done(recipe.sound_results(seeds))),
        tuple(store.done(recipe.candidates())),
    )


def _measured(cell: Cell, record: RunRecord) -> float | None:
    """Returns a run's result for a cell; None if the run did not record it."""
    if cell.metric == "accuracy":
        return 100 * record.accuracy
    if cell.metric == "seconds":
        return record.seconds
    if cell.metric == "sensitivity":
        return record.threshold
    if cell.metric == "epsilon":  # as the paper computes it, which is not a guarantee
        return None if record.threshold is None else as_printed(cell, record.threshold)
    return None


class ThresholdCurve(NamedTuple):
    """C_t of one method.

    Attributes:
        method: the method as printed.
        epochs: the epochs of the evaluations.
        thresholds: (seeds, evaluations).
    """

    method: str
    epochs: np.ndarray
    thresholds: np.ndarray


def threshold_curves(cells: Iterable[Cell], store: Store) -> dict[str, ThresholdCurve | None]:
    """Returns the curve of every cell by its method; None for a cell without a finished run.

    Args:
        cells: cells of different methods.
        store: the finished runs; all their seeds count.
    """
    return {cell.method: _curve(cell, store) for cell in cells}


def greedy_curve(cell: Cell, store: Store) -> ThresholdCurve | None:
    """Returns the greedy search's result on public data for a cell of Lin et al.'s, or None."""
    found = store.findings.thresholds.get(search_for(cell).key)
    if found is None:
        return None
    epochs = np.arange(1, len(found.thresholds) + 1, dtype=float)
    return ThresholdCurve("Greedy", epochs, np.asarray([found.thresholds], float))


def _curve(cell: Cell, store: Store) -> ThresholdCurve | None:
    curves = [store.curves[record.key] for record in outcome_of(cell, store).records]
    values = [[point.threshold for point in curve] for curve in curves]
    if not curves or any(value is None for row in values for value in row):
        return None
    epochs = np.asarray([point.epoch for point in curves[0]], float)
    return ThresholdCurve(cell.method, epochs, np.asarray(values, float))
