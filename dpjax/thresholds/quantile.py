"""A threshold that follows a quantile of the norms (Andrew et al. 2021)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.thresholds.scalar import BitThreshold, ScalarState
from dpjax.thresholds.threshold import CEILING, FLOOR, ThresholdContext

__all__ = ["quantile"]


@dataclass(frozen=True)
class quantile(BitThreshold):
    """Moves C geometrically until a fraction `target` of the norms lies below it.

    Statistic: the bit ``b_i = [n_i <= C]`` for a norm n_i, recentred to ``b_i - 1/2``. Update:
    ``b~ = (sum_i (b_i - 1/2) + N(0, sigma_b^2)) / B + 1/2`` clamped to [0, 1], then
    ``C <- C exp(-lr (b~ - target))`` clamped to [floor, ceiling].

    Args:
        target: the paper's gamma, the quantile to follow, in (0, 1).
        lr: the paper's eta_C, the step size on the logarithm of C, > 0.
        c0: the first threshold, > 0.
        sigma_b: the standard deviation of the noise on the sum of bits; None takes B / 20.
        floor: the smallest threshold, > 0.
        ceiling: the largest threshold.

    Raises:
        ValueError: if a number is outside its range, or `floor` exceeds `ceiling`.

    Privacy:
        Bound: the recentred bit has sensitivity 1/2, so ``sigma_S = 2 sigma_b``. Relation: add or
        remove one example. Event: gradient and bit together are one Gaussian of the total sigma.
        Non-finite norms count as above. Not protected: C and the noisy fraction, which are public;
        nothing else of the norms is released.

    Example:
        >>> rule = quantile(target=0.5)
        >>> rule.statistic(jnp.array([0.5, 1.0, 3.0, jnp.inf]), rule.init())[:, 0].tolist()
        [0.5, 0.5, -0.5, -0.5]

    Reference: Andrew et al., Differentially Private Learning with Adaptive Clipping, 2021,
    https://arxiv.org/abs/1905.03871
    """

    target: float
    lr: float = 0.2
    c0: float = 1.0
    sigma_b: float | None = None
    floor: float = FLOOR
    ceiling: float = CEILING

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_bit()
        self._set(target=_checks.fraction("target", self.target), lr=_checks.normal("lr", self.lr))

    def statistic(self, norms: jax.Array, state: ScalarState) -> jax.Array:
        """Returns (k, 1) recentred bits."""
        return self._bits(norms <= state.threshold)

    def update(
        self, state: ScalarState, noisy_sum: jax.Array, context: ThresholdContext
    ) -> ScalarState:
        """Takes one geometric step."""
        below = self._fraction(noisy_sum, context)
        return self._moved(state, state.threshold * jnp.exp(-self.lr * (below - self.target)))
