"""Global-Adapt's z, which grows while gradients exceed it (Esipova et al. 2023)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.thresholds.base import CEILING, FLOOR, ThresholdContext
from dpjax.thresholds.scalar import BitThreshold, ScalarState

__all__ = ["global_z"]


@dataclass(frozen=True)
class global_z(BitThreshold):
    """Moves z so that about a fraction `eta` of the norms lies above ``tau z``.

    Statistic: the bit ``[n_i > tau z]``, recentred by 1/2. Update: with the noisy fraction f~,
    clamped to [0, 1], ``z <- z exp(-eta + f~)`` clamped to [floor, ceiling].

    Args:
        tau: the share of z that a norm is compared with, in (0, 1].
        eta: eta_z, how fast z falls while nothing exceeds it, in (0, 1).
        c0: the first z, > 0.
        sigma_b: the noise's standard deviation on the sum of bits; None takes B / 20.
        floor: the smallest z, > 0.
        ceiling: the largest z.

    Privacy:
        The recentred bit has sensitivity 1/2 under add-or-remove-one, so ``sigma_S = 2 sigma_b``.
        Accounted with the gradient as one Gaussian of the total sigma. A norm that is not finite
        counts as above.

    Example:
        >>> rule = global_z()
        >>> rule.statistic(jnp.array([0.5, 1.0, 3.0, jnp.inf]), rule.init())[:, 0].tolist()
        [-0.5, -0.5, 0.5, 0.5]

    Reference: Esipova et al., Disparate Impact in Differential Privacy from Gradient Misalignment,
    2023, algorithm 1.
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
