"""Liu and Talwar's random stopping, as the DC-SGD paper uses it."""

import math
from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation

from dpjax import _checks
from dpjax.accounting.bound import upper_epsilon_of
from dpjax.accounting.rdp import TAIL_ORDERS
from dpjax.accounting.tuning.base import Tuning

__all__ = ["liu_talwar"]


@dataclass(frozen=True)
class liu_talwar(Tuning):
    """Runs random candidates until a coin says stop, and keeps the best.

    Each round draws one of the candidates with replacement, runs it, and stops with probability
    gamma; at the latest after ``T = log(1/delta_2) / gamma`` rounds. If a run with its score is
    (eps_1, delta_1)-DP, the whole is ``(3 eps_1 + 3 sqrt(2 delta_1), 3 sqrt(2 delta_1) T +
    delta_2)``-DP. So a total (eps, delta) leaves for each run

        ``delta_1 = ((delta - delta_2) / (3 T))^2 / 2``,  ``eps_1 = (eps - 3 sqrt(2 delta_1)) / 3``.

    delta_1 is near 1e-17; the runs are accounted by RDP, as in the paper, at `TAIL_ORDERS`. The
    DC-SGD paper's "each iteration" must read "each whole run with its score". 2 G runs are
    expected, and a given candidate is missed with probability about .31. `repeat_and_select` is
    far cheaper.

    Args:
        candidates: G, the number of candidates.
        gamma: the probability of stopping; None takes the paper's 1 / (2 G).
        delta_2: the paper's 1e-20.

    Privacy:
        Bound: that of a run with its score. Relation: that of a run. Released: the winner. Not
        protected: the number of rounds, which must not be published.

    Example:
        >>> epsilon_1, delta_1 = liu_talwar(candidates=10).per_run(2.0, 1 / 50_000)
        >>> f"{epsilon_1:.4f} {delta_1:.2e}"
        '0.6667 2.62e-17'

    Reference: Liu, Talwar, Private Selection from Private Candidates, 2019, theorem 3.5; DC-SGD,
    theorem 1.
    """

    accountant: ClassVar[str] = "rdp"

    candidates: int
    gamma: float | None = None
    delta_2: float = 1e-20

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            candidates=_checks.integer("candidates", self.candidates, at_least=1),
            delta_2=_checks.fraction("delta_2", self.delta_2),
        )
        if self.gamma is not None:
            self._set(gamma=_checks.fraction("gamma", self.gamma, one=True))

    @property
    def stopping(self) -> float:
        """The probability of stopping after a round."""
        return 1 / (2 * self.candidates) if self.gamma is None else self.gamma

    @property
    def rounds(self) -> float:
        """T, the most rounds there can be."""
        return math.log(1 / self.delta_2) / self.stopping

    def per_run(self, epsilon: float, delta: float) -> tuple[float, float]:
        """Returns the (eps_1, delta_1) that a total budget leaves for each run."""
        delta_1 = self._delta_1(delta)
        epsilon_1 = (_checks.positive("epsilon", epsilon) - 3 * math.sqrt(2 * delta_1)) / 3
        if not epsilon_1 > 0:
            raise ValueError(
                f"epsilon = {epsilon:g}: expected more than {3 * math.sqrt(2 * delta_1):g}, which "
                "the search itself costs"
            )
        return epsilon_1, delta_1

    def _delta_1(self, delta: float) -> float:
        if not _checks.fraction("delta", delta) > self.delta_2:
            raise ValueError(f"delta = {delta:g}: expected more than delta_2 = {self.delta_2:g}")
        return ((delta - self.delta_2) / (3 * self.rounds)) ** 2 / 2

    def total(
        self, run: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float
    ) -> float:
        """Returns ``3 eps_1 + 3 sqrt(2 delta_1)``."""
        delta_1 = self._delta_1(delta)
        epsilon_1 = upper_epsilon_of(run, relation, delta_1, self.accountant, TAIL_ORDERS)
        return 3 * epsilon_1 + 3 * math.sqrt(2 * delta_1)

    def trials(self, rng: np.random.Generator, candidates: int) -> list[int]:
        """Draws a geometric number of candidates, cut at T."""
        self._check_count(candidates)
        rounds = min(int(rng.geometric(self.stopping)), max(1, int(self.rounds)))
        return rng.integers(candidates, size=rounds).tolist()

    def _check_count(self, candidates: int) -> None:
        if candidates != self.candidates:
            raise ValueError(f"{candidates} candidates: expected {self.candidates}, as planned")
