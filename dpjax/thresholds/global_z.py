"""Global-Adapt's z, which grows while gradients exceed it (Esipova et al. 2023)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.thresholds.scalar import BitThreshold, ScalarState
from dpjax.thresholds.threshold import CEILING, FLOOR, ThresholdContext

__all__ = ["global_z"]


@dataclass(frozen=True)
class global_z(BitThreshold):
    """Moves z so that about a fraction `eta` of the norms lies above ``tau z``.

    Statistic: the bit ``b_i = [n_i > tau z]`` for a norm n_i, recentred to ``b_i - 1/2``. Update:
    ``f~ = (sum_i (b_i - 1/2) + N(0, sigma_b^2)) / B + 1/2`` clamped to [0, 1], then
    ``z <- z exp(-eta + f~)`` clamped to [floor, ceiling].

    Args:
        tau: the share of z that a norm is compared with, in (0, 1].
        eta: the paper's eta_z, how fast z falls while no norm exceeds it, in (0, 1).
        c0: the first z, > 0.
        sigma_b: the standard deviation of the noise on the sum of bits; None takes B / 20.
        floor: the smallest z, > 0.
        ceiling: the largest z.

    Raises:
        ValueError: if a number is outside its range, or `floor` exceeds `ceiling`.

    Privacy:
        Bound: the recentred bit has sensitivity 1/2, so ``sigma_S = 2 sigma_b``. Relation: add or
        remove one example. Event: gradient and bit together are one Gaussian of the total sigma.
        Non-finite norms count as above. Not protected: z and the noisy fraction, which are public.

    Example:
        >>> rule = global_z()
        >>> rule.statistic(jnp.array([0.5, 1.0, 3.0, jnp.inf]), rule.init())[:, 0].tolist()
        [-0.5, -0.5, 0.5, 0.5]

    Reference: Esipova et al., Disparate Impact in Differential Privacy from Gradient Misalignment,
    2023, algorithm 1, https://arxiv.org/abs/2206.07737
    """

    tau: float = 1.0
    eta: float = 0.1
    c0: float = 1.0
    sigma_b: float | None = None
    floor: float = FLOOR
    ceiling: float = CEILING

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_bit()
        self._set(
            tau=_checks.fraction("tau", self.tau, one=True), eta=_checks.fraction("eta", self.eta)
        )

    def statistic(self, norms: jax.Array, state: ScalarState) -> jax.Array:
        """Returns (k, 1) recentred bits."""
        return self._bits(~(norms <= self.tau * state.threshold))

    def update(
        self, state: ScalarState, noisy_sum: jax.Array, context: ThresholdContext
    ) -> ScalarState:
        """Takes one geometric step."""
        above = self._fraction(noisy_sum, context)
        return self._moved(state, state.threshold * jnp.exp(above - self.eta))
