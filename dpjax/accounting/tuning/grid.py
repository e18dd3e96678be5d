"""The plain grid: every candidate is run, and every run is paid for."""

from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation

from dpjax import _checks
from dpjax.accounting.bound import upper_epsilon_of
from dpjax.accounting.tuning.base import Tuning

__all__ = ["grid_composition"]


@dataclass(frozen=True)
class grid_composition(Tuning):
    """Runs all candidates; their costs add up as Renyi divergences.

    ``rdp_total(alpha) = G rdp_run(alpha)``. Everything may be published, the losing runs too.

    Args:
        candidates: G, the number of candidates.

    Privacy:
        Bound and relation: those of a run. Event: the run's, G times.

    Example:
        >>> import dpjax
        >>> mechanism, sampling = dpjax.methods.dp_sgd(1.0), dpjax.sampling.Poisson.with_rate(0.01)
        >>> plan = grid_composition(5).plan(mechanism, sampling, 100, epsilon=2.0, delta=1e-5)
        >>> round(plan.mechanism.noise_multiplier, 3)
        0.927

    Reference: DC-SGD, table III.
    """

    composes: ClassVar[bool] = True

    candidates: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(candidates=_checks.integer("candidates", self.candidates, at_least=1))

    def event(self, run: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Returns the run's event, G times."""
        return dp_accounting.SelfComposedDpEvent(run, self.candidates)

    def total(
        self, run: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float
    ) -> float:
        """Returns the epsilon of G runs."""
        return upper_epsilon_of(self.event(run), relation, delta, self.accountant)

    def trials(self, rng: np.random.Generator, candidates: int) -> list[int]:
        """Returns every candidate once."""
        del rng
        if candidates != self.candidates:
            raise ValueError(f"{candidates} candidates: expected {self.candidates}, as planned")
        return list(range(candidates))
