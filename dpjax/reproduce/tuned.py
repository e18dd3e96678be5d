"""The noise that a budget for a whole search leaves for each run (DC-SGD's tables II and III)."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

from dpjax import _checks, schedules
from dpjax.accounting import tuning
from dpjax.methods import Method
from dpjax.reproduce.sizes import training_size
from dpjax.schedules import FloatOrSchedule
from dpjax.train import Experiment, resolve

__all__ = ["TunedNoise"]


@dataclass(frozen=True)
class TunedNoise:
    """A search whose whole cost is the experiment's epsilon.

    Attributes:
        experiment: one of its runs; `privacy.epsilon` is the budget of all of them together.
        way: who pays: "LT" (Liu and Talwar) or "RDP" (every run composed).
        candidates: G.
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
        """A hash of all that decides the noise."""
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
        # The constructors take the first noise, also where a schedule comes of it, as Du's.
        return float(schedules.value_at(_noise(search), 0))


def _noise(search: tuning.Search) -> FloatOrSchedule:
    """Returns the noise of one run of a search."""
    found = search.mechanism
    return (found.mechanism if isinstance(found, Method) else found).noise_multiplier
