"""Thresholds whose whole state is C: what they share, and the private bit two of them release."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.thresholds.threshold import Threshold, ThresholdContext, clamp

__all__ = ["BitThreshold", "ScalarState", "ScalarThreshold"]


class ScalarState(NamedTuple):
    """The state of a threshold that remembers nothing but C; public.

    Attributes:
        threshold: C, the threshold in force.
    """

    threshold: jax.Array


class ScalarThreshold(Threshold[ScalarState]):
    """A threshold that starts at `c0` and moves within [`floor`, `ceiling`]."""

    role: ClassVar[str] = "threshold"

    c0: float
    floor: float
    ceiling: float

    def _check_limits(self) -> None:
        self._set(
            c0=_checks.normal("c0", self.c0),
            floor=_checks.normal("floor", self.floor),
            ceiling=_checks.normal("ceiling", self.ceiling),
        )
        _checks.ordered("floor", self.floor, "ceiling", self.ceiling)

    def init(self) -> ScalarState:
        """Returns c0."""
        return ScalarState(jnp.clip(jnp.float32(self.c0), self.floor, self.ceiling))

    def _moved(self, state: ScalarState, c: jax.Array) -> ScalarState:
        return ScalarState(clamp(c, state.threshold, self.floor, self.ceiling))


class BitThreshold(ScalarThreshold):
    """A threshold that releases how many norms lie on one side of a line.

    Privacy:
        Bound: the bit of an example is recentred to -1/2 or 1/2, so the sensitivity is 1/2 and
        ``sigma_S = 2 sigma_b``, under add or remove one example. Event and limits: see `Threshold`.
    """

    role: ClassVar[str] = "threshold"

    sensitivity: ClassVar[float] = 0.5

    sigma_b: float | None

    def _check_bit(self) -> None:
        self._check_limits()
        if self.sigma_b is not None:
            self._set(sigma_b=_checks.normal("sigma_b", self.sigma_b))

    def sigma_statistic(self, sigma: float, expected_batch_size: float | None) -> float | None:
        """Returns ``2 sigma_b``, where sigma_b is B / 20 unless given."""
        if self.sigma_b is not None:
            return 2 * self.sigma_b
        return None if expected_batch_size is None else expected_batch_size / 10

    @staticmethod
    def _bits(side: jax.Array) -> jax.Array:
        return jnp.where(side, jnp.float32(0.5), jnp.float32(-0.5))[:, None]

    @staticmethod
    def _fraction(noisy_sum: jax.Array, context: ThresholdContext) -> jax.Array:
        return jnp.clip(noisy_sum[0] / context.expected_batch_size + 0.5, 0.0, 1.0)
