"""Global-Adapt's z, which grows while gradients exceed it (Esipova et al. 2023)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.thresholds.base import CEILING, FLOOR, Threshold, ThresholdContext, clamp

__all__ = ["GlobalZState", "global_z"]


class GlobalZState(NamedTuple):
    """The z in use."""

    threshold: jax.Array


@dataclass(frozen=True)
class global_z(Threshold):
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

    sensitivity: ClassVar[float] = 0.5

    tau: float = 1.0
    eta: float = 0.1
    c0: float = 1.0
    sigma_b: float | None = None
    floor: float = FLOOR
    ceiling: float = CEILING

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            tau=_checks.fraction("tau", self.tau, one=True),
            eta=_checks.fraction("eta", self.eta),
            c0=_checks.positive("c0", self.c0),
            floor=_checks.positive("floor", self.floor),
            ceiling=_checks.positive("ceiling", self.ceiling),
        )
        _checks.ordered("floor", self.floor, "ceiling", self.ceiling)
        if self.sigma_b is not None:
            self._set(sigma_b=_checks.positive("sigma_b", self.sigma_b))

    def sigma_statistic(self, sigma: float, expected_batch_size: float | None) -> float | None:
        """Returns ``2 sigma_b``."""
        if self.sigma_b is not None:
            return 2 * self.sigma_b
        return None if expected_batch_size is None else expected_batch_size / 10

    def init(self) -> GlobalZState:
        """Returns c0."""
        return GlobalZState(jnp.clip(jnp.float32(self.c0), self.floor, self.ceiling))

    def statistic(self, norms: jax.Array, state: GlobalZState) -> jax.Array:
        """Returns (k, 1) recentred bits."""
        return jnp.where(norms > self.tau * state.threshold, 0.5, -0.5)[:, None]

    def update(
        self, state: GlobalZState, noisy_sum: jax.Array, context: ThresholdContext
    ) -> GlobalZState:
        """Takes one geometric step."""
        above = jnp.clip(noisy_sum[0] / context.expected_batch_size + 0.5, 0.0, 1.0)
        moved = state.threshold * jnp.exp(above - self.eta)
        return GlobalZState(clamp(moved, state.threshold, self.floor, self.ceiling))
