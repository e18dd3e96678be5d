"""A printed number beside what the stored runs gave."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpjax.reproduce.book import recipe_of
from dpjax.reproduce.printed import Cell
from dpjax.reproduce.recipe import SEEDS, Override, Recipe
from dpjax.reproduce.record import Record
from dpjax.reproduce.store import Store

__all__ = ["Outcome", "outcome_of"]


@dataclass(frozen=True)
class Outcome:
    """What came of a cell.

    Attributes:
        cell: the printed number.
        recipe: how it is reproduced.
        choice: the candidate that did best; None while the search for it is not finished.
        records: the runs behind our number, one for each seed.
        sound: the runs of the sound method beside one without a guarantee.
        searched: the runs of the search, in the order of the recipe's grid.
    """

    cell: Cell
    recipe: Recipe
    choice: Override | None
    records: tuple[Record, ...]
    sound: tuple[Record, ...]
    searched: tuple[Record, ...]

    @cached_property
    def mean(self) -> float | None:
        """Our number: the mean over the seeds, in percent; None without a run."""
        return _mean(self.records)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over the seeds, of a sample; None for fewer than two."""
        if len(self.records) < 2:
            return None
        return float(np.std([100 * record.accuracy for record in self.records], ddof=1))

    @property
    def difference(self) -> float | None:
        """Ours less the printed, in points."""
        return None if self.mean is None else self.mean - self.cell.accuracy

    @property
    def sound_mean(self) -> float | None:
        """The sound method's number, in percent."""
        return _mean(self.sound)

    @property
    def within(self) -> bool:
        """Whether ours is at most one point from the printed mean."""
        return self.difference is not None and abs(self.difference) <= 1.0


def outcome_of(cell: Cell, store: Store, seeds: int = SEEDS) -> Outcome:
    """Returns what the stored runs gave for a cell; nothing is trained.

    Args:
        cell: the printed number.
        store: the runs.
        seeds: how many seeds count at most.
    """
    recipe = recipe_of(cell, store.findings)
    choice = store.choice(recipe)
    results = [] if choice is None else recipe.results(choice, seeds)
    return Outcome(
        cell,
        recipe,
        choice,
        tuple(store.done(results)),
        tuple(store.done(recipe.sound_results(seeds))),
        tuple(store.done(recipe.candidates())),
    )


def _mean(records: tuple[Record, ...]) -> float | None:
    if not records:
        return None
    return float(np.mean([100 * record.accuracy for record in records]))
