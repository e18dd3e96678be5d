"""What must be found before some experiments can be written down: thresholds, and noises."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpjax.reproduce.greedy import GreedySearch, Thresholds
from dpjax.reproduce.tuned import TunedNoise

__all__ = ["Findings", "Question"]

Question = GreedySearch | TunedNoise
"""What an experiment may wait for."""


@dataclass(frozen=True)
class Findings:
    """What was found, by the keys of the questions.

    Attributes:
        thresholds: of greedy searches on public data.
        noises: of runs whose whole search has a budget.
    """

    thresholds: Mapping[str, Thresholds] = field(default_factory=dict)
    noises: Mapping[str, float] = field(default_factory=dict)
