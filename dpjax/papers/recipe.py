"""A printed number as runs: an experiment, a grid of candidates, and seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dpjax.papers.prerequisites import Prerequisite
from dpjax.train import Experiment

__all__ = ["SEARCH_SEED", "SEEDS", "Recipe", "SeededRun"]

SEARCH_SEED = 0
"""The seed of the runs that choose among candidates; no reported number uses it."""

SEEDS = 3
"""The number of seeds behind a reported number: 1, 2, ..."""

Override = Mapping[str, object]


@dataclass(frozen=True)
class SeededRun:
    """One training run: an experiment and a seed.

    Attributes:
        experiment: what is trained.
        seed: its seed.
        purpose: "search", "result" or "explanation".
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
        experiment: the run behind the number, before the choice among candidates; None if there is
            none, and `obstacle` says why.
        grid: the candidates, as values at paths of the experiment; empty if nothing is chosen.
        searched: the experiment in which candidates are compared, by test accuracy, as in the
            papers.
        paper_grid: the values that the paper tries, if it lists them.
        sound: for a method without a guarantee, the sound one at the same noise.
        waits_for: a prerequisite that is not known yet: a search on public data, or the noise that
            a tuning budget leaves. Until it is known, `experiment` is a placeholder.
        obstacle: why there is no run.
        computed: the number itself, if a formula gives it and no run is needed.
        needs: what is required besides data sets: pre-trained weights. ``model.pretrained`` of the
            experiment is then the published name of their directory.
        ours: settings that the paper leaves open, and the values used here.
    """

    experiment: Experiment | None
    grid: tuple[Override, ...] = ()
    searched: Experiment | None = None
    paper_grid: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    sound: Experiment | None = None
    waits_for: Prerequisite | None = None
    obstacle: str = ""
    computed: float | None = None
    needs: str = ""
    ours: str = ""

    def candidates(self) -> list[SeededRun]:
        """Returns the runs of the search; none if there is only one candidate."""
        if self.searched is None or len(self.grid) < 2:
            return []
        return [SeededRun(self.searched.with_values(o), SEARCH_SEED, "search") for o in self.grid]

    def results(self, choice: Override, seeds: int = SEEDS) -> list[SeededRun]:
        """Returns the runs behind the number, with the chosen candidate.

        Args:
            choice: the chosen candidate, values at paths of the experiment.
            seeds: how many seeds.
        """
        if self.experiment is None or self.waits_for is not None:
            return []
        chosen = self.experiment.with_values(choice)
        return [SeededRun(chosen, seed) for seed in range(1, seeds + 1)]

    def sound_results(self, seeds: int = SEEDS) -> list[SeededRun]:
        """Returns the runs of the sound version of a method without a guarantee.

        Args:
            seeds: how many seeds.
        """
        if self.sound is None:
            return []
        return [SeededRun(self.sound, seed) for seed in range(1, seeds + 1)]

    @property
    def only_choice(self) -> Override:
        """The candidate if there is only one."""
        return self.grid[0] if self.grid else {}
