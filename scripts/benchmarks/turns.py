"""Variants that take turns in a random order, and medians of what they needed."""

import math
import random
import statistics
from collections.abc import Mapping
from typing import Protocol

__all__ = ["Runner", "ratio", "take_turns"]

TURN_SECONDS, MOST_STEPS = 0.3, 20


class Runner(Protocol):
    """Something that takes steps."""

    def run(self, steps: int) -> float:
        """Takes some steps; returns the seconds of one."""


def take_turns(runners: Mapping[str, Runner], turns: int) -> dict[str, list[float]]:
    """Returns each variant's seconds per step, one number for each turn.

    A turn is as many steps as fill a third of a second, so that caches which another variant left
    cold do not count. Whoever slows the machine down for a while slows them all.
    """
    steps = {}
    for name, runner in runners.items():
        runner.run(1)
        steps[name] = min(MOST_STEPS, math.ceil(TURN_SECONDS / runner.run(1)))
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(turns):
        for name in random.sample(list(runners), len(runners)):
            seconds[name].append(runners[name].run(steps[name]))
    return seconds


def ratio(above: list[float], below: list[float]) -> float:
    """Returns the median of the ratios, turn by turn.

    >>> ratio([2.0, 9.0, 8.0], [1.0, 3.0, 4.0])
    2.0
    """
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
