"""A threshold proportional to the private mean norm (van der Veen et al. 2018)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.thresholds.scalar import ScalarState, ScalarThreshold
from dpjax.thresholds.threshold import CEILING, FLOOR, ThresholdContext

__all__ = ["private_mean"]


@dataclass(frozen=True)
class private_mean(ScalarThreshold):
    """Sets C to `alpha` times the mean norm of the last batch.

    Statistic: ``s_i = min(n_i, kappa C) / (kappa C)`` for a norm n_i. Update:
    ``f~ = (sum_i s_i + N(0, sigma_S^2)) / B`` clamped to at most 1, then ``C <- alpha kappa C f~``
    clamped to [floor, ceiling]. If f~ <= 0, C stays.

    Args:
        alpha: the ratio of the threshold to the mean norm, > 0.
        kappa: norms are cut at `kappa` times C; ``alpha kappa > 1``, or C could never grow.
        c0: the first threshold, > 0.
        sigma_s: sigma_S, the standard deviation of the noise on the sum; None takes B / 20.
        floor: the smallest threshold, > 0.
        ceiling: the largest threshold.

    Raises:
        ValueError: if a number is outside its range, ``alpha kappa <= 1``, or `floor` exceeds
            `ceiling`.

    Privacy:
        Bound: the statistic lies in [0, 1], so its sensitivity is 1. Relation: add or remove one
        example. Event: gradient and statistic together are one Gaussian of the total sigma.
        Non-finite norms count as 1. Not protected: C and the noisy mean, which are public. Norms
        beyond kappa C are cut, so the mean is biased low.

    Example:
        >>> rule = private_mean(alpha=1.0, kappa=2.0)
        >>> rule.statistic(jnp.array([0.5, 1.0, 9.0, jnp.inf]), rule.init())[:, 0].tolist()
        [0.25, 0.5, 1.0, 1.0]

    Reference: van der Veen et al., Three Tools for Practical Differential Privacy, 2018,
    https://arxiv.org/abs/1812.02890
    """

    alpha: float = 1.0
    kappa: float = 2.0
    c0: float = 1.0
    sigma_s: float | None = None
    floor: float = FLOOR
    ceiling: float = CEILING

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_limits()
        self._set(
            alpha=_checks.normal("alpha", self.alpha), kappa=_checks.normal("kappa", self.kappa)
        )
        if not self.alpha * self.kappa > 1:
            raise ValueError(
                f"alpha * kappa = {self.alpha * self.kappa!r}: expected > 1, or the threshold "
                "could never grow"
            )
        if self.sigma_s is not None:
            self._set(sigma_s=_checks.normal("sigma_s", self.sigma_s))

    def sigma_statistic(self, sigma: float, expected_batch_size: float | None) -> float | None:
        """Returns sigma_S."""
        if self.sigma_s is not None:
            return self.sigma_s
        return None if expected_batch_size is None else expected_batch_size / 20

    def statistic(self, norms: jax.Array, state: ScalarState) -> jax.Array:
        """Returns (k, 1) norms cut at kappa C, as fractions of it."""
        fractions = norms / (self.kappa * state.threshold)
        return jnp.where(fractions < 1.0, fractions, 1.0)[:, None]

    def update(
        self, state: ScalarState, noisy_sum: jax.Array, context: ThresholdContext
    ) -> ScalarState:
        """Takes the noisy mean."""
        mean = jnp.minimum(noisy_sum[0] / context.expected_batch_size, 1.0)
        moved = self.alpha * self.kappa * state.threshold * mean
        return self._moved(state, jnp.where(mean > 0, moved, state.threshold))
