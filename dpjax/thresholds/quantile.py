"""A threshold that follows a quantile of the norms (Andrew et al. 2021)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.thresholds.base import CEILING, FLOOR, ThresholdContext
from dpjax.thresholds.scalar import BitThreshold, ScalarState

__all__ = ["quantile"]


@dataclass(frozen=True)
class quantile(BitThreshold):
    """Moves C geometrically until a fraction `target` of the norms lies below it.

    Statistic: the bit ``b_i = [n_i <= C]``, recentred to ``b_i - 1/2``. Update:
    ``b~ = (sum_i (b_i - 1/2) + N(0, sigma_b^2)) / B + 1/2`` clamped to [0, 1], then
    ``C <- C exp(-lr (b~ - target))`` clamped to [floor, ceiling].

    Args:
        target: the quantile, in (0, 1).
        lr: eta_C, > 0.
        c0: the first threshold, > 0.
        sigma_b: the noise's standard deviation on the sum of bits; None takes B / 20.
        floor: the smallest threshold, > 0.
        ceiling: the largest threshold.

    Privacy:
        The recentred bit has sensitivity 1/2 under add-or-remove-one, so ``sigma_S = 2 sigma_b``.
        Accounted with the gradient as one Gaussian of the total sigma. An example whose norm is not
        finite counts as above. Nothing else of the norms is released.

    Example:
        >>> rule = quantile(target=0.5)
        >>> rule.statistic(jnp.array([0.5, 1.0, 3.0, jnp.inf]), rule.init())[:, 0].tolist()
        [0.5, 0.5, -0.5, -0.5]

    Reference: Andrew et al., Differentially Private Learning with Adaptive Clipping, 2021.
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
