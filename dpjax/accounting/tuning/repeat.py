"""Papernot and Steinke's random number of repetitions."""

import math
from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from scipy import optimize

from dpjax import _checks
from dpjax.accounting.bound import upper_epsilon_of
from dpjax.accounting.tuning.base import Tuning

__all__ = ["repeat_and_select"]


@dataclass(frozen=True)
class repeat_and_select(Tuning):
    """Runs random candidates a random number of times, and keeps the best.

    The number K of runs has a truncated negative binomial distribution, or is Poisson. For shape
    eta and stopping probability gamma, the Renyi divergence of the whole at order lambda is at most

        ``rdp(lambda) + (1 + eta) ((1 - 1/l) rdp(l) + log(1/gamma) / l) + log(E K) / (lambda - 1)``

    for any order l: dp-accounting's `RepeatAndSelectDpEvent`. Each run draws its candidate
    uniformly, with replacement, so any number of candidates costs the same.

    Args:
        mean: E K, the expected number of runs, >= 1; 2 G tries each of G candidates about twice.
        shape: eta: 1 geometric, 0 logarithmic, math.inf Poisson, which may run nothing at all.

    Privacy:
        Bound: that of a run with its score. Relation: that of a run. Event: RepeatAndSelect of the
        run, RDP only. Released: the winner. Not protected: the number of runs, which must not be
        published, nor the losing ones.

    Example:
        >>> import dpjax
        >>> mechanism, sampling = dpjax.methods.dp_sgd(1.0), dpjax.sampling.Poisson.with_rate(0.01)
        >>> plan = repeat_and_select(10).plan(mechanism, sampling, 100, epsilon=2.0, delta=1e-5)
        >>> round(plan.mechanism.noise_multiplier, 3)
        1.05

    Reference: Papernot, Steinke, Hyperparameter Tuning with Renyi Differential Privacy, 2022,
    theorems 2 and 6.
    """

    composes: ClassVar[bool] = True

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(mean=_checks.positive("mean", self.mean))
        if self.shape != math.inf:
            self._set(shape=_checks.non_negative("shape", self.shape))
        if not self.mean >= 1:
            raise ValueError(f"mean = {self.mean!r}: expected at least 1")

    def event(self, run: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Returns the event of the whole search."""
        return RepeatAndSelectDpEvent(run, self.mean, self.shape)

    def total(
        self, run: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float
    ) -> float:
        """Returns the epsilon of the search."""
        return upper_epsilon_of(self.event(run), relation, delta, self.accountant)

    def trials(self, rng: np.random.Generator, candidates: int) -> list[int]:
        """Draws K, and K candidates with replacement."""
        return rng.integers(candidates, size=self._count(rng)).tolist()

    def _count(self, rng: np.random.Generator) -> int:
        """Draws K by the inverse of its distribution, whose terms have a simple ratio."""
        if self.shape == math.inf:
            return int(rng.poisson(self.mean))
        gamma, eta = self._gamma(), self.shape
        if gamma == 1.0:
            return 1
        log_stop, log_go = math.log(gamma), math.log1p(-gamma)
        remaining, count = rng.random(), 1
        log_scale = math.log(-log_stop) if eta == 0 else _log_expm1(-eta * log_stop) - math.log(eta)
        log_term = log_go - log_scale
        # The cut is far beyond what 64 bits of randomness can reach.
        while (
            remaining := remaining - math.exp(log_term)
        ) >= 0 and count < 1000 * self.mean + 1000:
            log_term += log_go + math.log((count + eta) / (count + 1))
            count += 1
        return count

    def _gamma(self) -> float:
        """Returns the stopping probability at which E K is the mean."""

        def excess(gamma: float) -> float:
            log = math.log(gamma)
            scale = -log if self.shape == 0 else -math.expm1(self.shape * log) / self.shape
            return (1 / gamma - 1) / scale - self.mean

        largest = 1 - 1e-9
        return 1.0 if excess(largest) >= 0 else float(optimize.brentq(excess, 1e-12, largest))


def _log_expm1(x: float) -> float:
    """Returns ``log(e^x - 1)`` for x > 0 without overflow."""
    return x + math.log(-math.expm1(-x))
