"""What some experiments need first: a search on public data, or the noise left by a budget."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dpjax import _checks
from dpjax.accounting import tuning
from dpjax.papers.greedy_thresholds import GreedySearch, Thresholds
from dpjax.papers.plateaus import PlateauSearch
from dpjax.papers.printed_numbers import training_size
from dpjax.train import Experiment, resolve

__all__ = ["Findings", "Prerequisite", "TunedNoise"]


@dataclass(frozen=True)
class TunedNoise:
    """A search whose whole cost is the experiment's epsilon.

    Attributes:
        experiment: one of its runs; `privacy.epsilon` is the budget of all of them together.
        way: how the search is accounted: "LT" (Liu and Talwar) or "RDP" (every run composed).
        candidates: G, the size of the grid.
    """

    experiment: Experiment
    way: str
    candidates: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        if self.way not in ("LT", "RDP"):
            raise ValueError(f"way = {self.way!r}: expected 'LT' or 'RDP'")
        _checks.integer("candidates", self.candidates, at_least=1)

    @cached_property
    def key(self) -> str:
        """A hash of everything the noise depends on."""
        text = json.dumps([self.experiment.identity, self.way, self.candidates])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def find(self) -> float:
        """Returns the noise multiplier of one run; takes seconds."""
        plan = resolve(self.experiment, training_size(self.experiment.data.name))
        epsilon = _checks.positive("privacy.epsilon", self.experiment.privacy.epsilon)
        kinds = {"LT": tuning.liu_talwar, "RDP": tuning.grid_composition}
        search = kinds[self.way](self.candidates).plan(
            plan.method, plan.sampling, plan.steps, epsilon, plan.delta
        )
        # The constructors take the first noise, even if it starts a schedule, as in Du's.
        return float(search.mechanism.sigma(0))


Prerequisite = GreedySearch | PlateauSearch | TunedNoise
"""What an experiment may need first."""


@dataclass(frozen=True)
class Findings:
    """The results that are known, by the keys of the prerequisites.

    Attributes:
        thresholds: results of greedy searches on public data.
        noises: noise multipliers of runs whose budget pays for a whole search.
        plateaus: the epochs after which a learning rate falls, from runs on public data.
    """

    thresholds: Mapping[str, Thresholds] = field(default_factory=dict)
    noises: Mapping[str, float] = field(default_factory=dict)
    plateaus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
