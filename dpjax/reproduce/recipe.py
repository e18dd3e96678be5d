"""What a printed number comes to as runs: an experiment, a grid of candidates, and seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dpjax.reproduce.findings import Question
from dpjax.train import Experiment

__all__ = ["SEARCH_SEED", "SEEDS", "Recipe", "Run"]

SEARCH_SEED = 0
"""The seed of the runs that choose among candidates; no reported number uses it."""

SEEDS = 3
"""How many seeds a reported number has, from 1 on."""

Override = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One training run: an experiment and a seed.

    Attributes:
        experiment: what is trained.
        seed: its seed.
        purpose: "search" or "result".
    """

    experiment: Experiment
    seed: int
    purpose: str = "result"

    @cached_property
    def key(self) -> str:
        """The run's name in a store: the experiment's hash and the seed."""
        return f"{self.experiment.identity[:16]}-{self.seed}"

    @cached_property
    def seeded(self) -> Experiment:
        """The experiment with the seed in it."""
        return self.experiment.set("run.seed", self.seed)


@dataclass(frozen=True)
class Recipe:
    """How a printed number is reproduced.

    Attributes:
        experiment: the run behind the number, before the choice among candidates; None where there
            is none, and `obstacle` says why.
        grid: the candidates, as values at paths of the experiment; empty where nothing is chosen.
        searched: the experiment that the candidates are compared in; the papers choose by test
            accuracy, and so do we.
        paper_grid: the values that the paper tries, where it says them.
        sound: for a method without a guarantee, the sound one at the same noise.
        waits_for: what the experiment needs and has not got: thresholds from public data, or the
            noise that a budget for tuning leaves. It is then not yet the one to run.
        obstacle: why there is no run.
        needs: what must be at hand beside data sets: pre-trained weights.
        ours: what the paper does not say, and what is taken.
    """

    experiment: Experiment | None
    grid: tuple[Override, ...] = ()
    searched: Experiment | None = None
    paper_grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    sound: Experiment | None = None
    waits_for: Question | None = None
    obstacle: str = ""
    needs: str = ""
    ours: str = ""

    def candidates(self) -> list[Run]:
        """Returns the runs that the choice is made by: none where there is nothing to choose."""
        if self.searched is None or len(self.grid) < 2:
            return []
        return [Run(self.searched.with_values(o), SEARCH_SEED, "search") for o in self.grid]

    def results(self, choice: Override, seeds: int = SEEDS) -> list[Run]:
        """Returns the runs behind the number, for the candidate that was chosen."""
        if self.experiment is None or self.waits_for is not None:
            return []
        chosen = self.experiment.with_values(choice)
        return [Run(chosen, seed) for seed in range(1, seeds + 1)]

    def sound_results(self, seeds: int = SEEDS) -> list[Run]:
        """Returns the runs of the sound method beside one without a guarantee."""
        if self.sound is None:
            return []
        return [Run(self.sound, seed) for seed in range(1, seeds + 1)]

    @property
    def only_choice(self) -> Override:
        """The candidate where there is no choice."""
        return self.grid[0] if self.grid else {}
