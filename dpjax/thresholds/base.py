"""What an adaptive threshold is: a state, a statistic per example, an update from its noisy sum.

Each step releases ``sum_i s_i / sens + N(0, sigma_S^2 I)`` beside the gradient. Together they are
one Gaussian release with ``sigma^-2 = sigma_T^-2 + sigma_S^-2``; the update is post-processing.
"""

from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dpjax._record import Record

__all__ = ["CEILING", "FLOOR", "Threshold", "ThresholdContext", "ThresholdState", "clamp"]

FLOOR = 1e-8
CEILING = 1e8


class ThresholdState(Protocol):
    """A pytree whose `threshold` is the C_t that the coming step uses."""

    @property
    def threshold(self) -> jax.Array:
        """C_t, a float32 scalar."""


class ThresholdContext(NamedTuple):
    """Public numbers that an update may use.

    Attributes:
        expected_batch_size: B.
        dimension: d, the number of trainable parameters.
        sigma_gradient: sigma_T of the step that will use the new threshold.
        sigma_statistic: sigma_S.
    """

    expected_batch_size: float
    dimension: int
    sigma_gradient: jax.Array
    sigma_statistic: float


class Threshold(Record):
    """A threshold that adapts. Subclasses are frozen dataclasses.

    `dpjax.testing.check_threshold` holds a subclass to the contract.
    """

    role: ClassVar[str] = "threshold"

    sensitivity: ClassVar[float] = 1.0
    """L2 bound of one example's statistic."""

    def sigma_statistic(self, sigma: float, expected_batch_size: float | None) -> float | None:
        """Returns sigma_S, the noise on the sum over `sensitivity`; None if B must be known first.

        Args:
            sigma: the largest total noise multiplier of the run.
            expected_batch_size: B, or None when it is not known yet.
        """
        raise NotImplementedError

    def init(self) -> Any:
        """Returns the state before the first step."""
        raise NotImplementedError

    def statistic(self, norms: jax.Array, state: Any) -> jax.Array:
        """Returns (k, m) statistics of k examples; a norm of +inf has a fixed legal value."""
        raise NotImplementedError

    def update(self, state: Any, noisy_sum: jax.Array, context: ThresholdContext) -> Any:
        """Returns the next state from the noisy (m,) sum: finite and in limits for any input."""
        raise NotImplementedError


def clamp(value: jax.Array, fallback: jax.Array, floor: float, ceiling: float) -> jax.Array:
    """Returns `value` within its limits as float32, and `fallback` where it is NaN.

    >>> clamp(jnp.array([0.0, 2.0, jnp.inf, jnp.nan]), jnp.float32(1.0), 0.5, 4.0).tolist()
    [0.5, 2.0, 4.0, 1.0]
    """
    limited = jnp.where(jnp.isnan(value), fallback, jnp.clip(value, floor, ceiling))
    return limited.astype(jnp.float32)
