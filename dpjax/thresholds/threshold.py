"""What an adaptive threshold is: a state, a statistic per example, an update from its noisy sum.

Each step releases ``sum_i s_i / sens + N(0, sigma_S^2 I)`` beside the gradient, whose own noise
multiplier is sigma_T. Together they are one Gaussian release with
``sigma^-2 = sigma_T^-2 + sigma_S^-2``; the update is post-processing.
"""

from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp

from dpjax._record import Record

__all__ = ["CEILING", "FLOOR", "Threshold", "ThresholdContext", "ThresholdState", "clamp"]

FLOOR = 1e-8
"""The smallest threshold, unless a threshold is given another."""

CEILING = 1e8
"""The largest threshold, unless a threshold is given another."""


class ThresholdState(Protocol):
    """A pytree whose `threshold` is the C_t that the coming step uses."""

    @property
    def threshold(self) -> jax.Array:
        """C_t, a float32 scalar."""


State = TypeVar("State", bound=ThresholdState)


class ThresholdContext(NamedTuple):
    """The public numbers that an update may use.

    Attributes:
        expected_batch_size: B, the expected batch size; the realised one is private.
        dimension: d, the number of trainable parameters.
        sigma_gradient: sigma_T of the step that will use the new threshold.
        sigma_statistic: sigma_S, the noise multiplier of the statistic.
    """

    expected_batch_size: float
    dimension: int
    sigma_gradient: jax.Array
    sigma_statistic: float


class Threshold(Record, Generic[State]):
    """A threshold that adapts through a private statistic of the norms.

    With n_i the norm of example i, s_i = `statistic(n_i)`, of L2 norm at most `sensitivity`, and
    ``S = sum_i s_i + N(0, (sigma_S sensitivity)^2 I)``, a step turns the state into
    `update(state, S)`. The new threshold is used from the next step on.

    To write one, subclass this as a frozen dataclass whose fields are public numbers, and define
    `sigma_statistic`, `init`, `statistic` and `update`. `dpjax.testing.check_threshold` tests a
    subclass against this contract.

    Privacy:
        Bound: `sensitivity`. Relation: add or remove one example. Event: none of its own; gradient
        and statistic are accounted as one Gaussian with ``sigma^-2 = sigma_T^-2 + sigma_S^-2``. Not
        protected: the thresholds themselves, which are post-processing and public.

    Example:
        >>> from dataclasses import dataclass
        >>> import dpjax
        >>> from dpjax.thresholds.scalar import ScalarState
        >>> @dataclass(frozen=True)
        ... class doubling(Threshold[ScalarState]):
        ...     "Doubles C if more than half of the norms exceed it, else halves it."
        ...     def sigma_statistic(self, sigma, expected_batch_size):
        ...         return 10.0
        ...     def init(self):
        ...         return ScalarState(jnp.float32(1.0))
        ...     def statistic(self, norms, state):
        ...         return jnp.where(norms <= state.threshold, 0.0, 1.0)[:, None]
        ...     def update(self, state, noisy_sum, context):
        ...         exceeded = noisy_sum[0] > context.expected_batch_size / 2
        ...         c = state.threshold * jnp.where(exceeded, 2.0, 0.5)
        ...         return ScalarState(clamp(c, state.threshold, FLOOR, CEILING))
        >>> dpjax.Mechanism(dpjax.rules.abadi(), doubling(), noise_multiplier=1.0).adaptive
        True
    """

    role: ClassVar[str] = "threshold"

    sensitivity: ClassVar[float] = 1.0
    """L2 bound of one example's statistic."""

    def sigma_statistic(self, sigma: float, expected_batch_size: float | None) -> float | None:
        """Returns sigma_S, the standard deviation of the noise on the sum over `sensitivity`.

        Args:
            sigma: the largest total noise multiplier of the run.
            expected_batch_size: B, or None when it is not known yet.

        Returns:
            sigma_S; None if it depends on B and B is not known.
        """
        raise NotImplementedError

    def init(self) -> State:
        """Returns the state before the first step."""
        raise NotImplementedError

    def statistic(self, norms: jax.Array, state: State) -> jax.Array:
        """Returns the statistic of each example.

        Args:
            norms: (k,), the norms of k examples; +inf for a gradient that is not finite.
            state: the state in force.

        Returns:
            (k, m), one row per example of L2 norm at most `sensitivity`. Each row depends on its
            own norm alone; a norm of +inf gets a fixed row.
        """
        raise NotImplementedError

    def update(self, state: State, noisy_sum: jax.Array, context: ThresholdContext) -> State:
        """Returns the next state from the released statistic.

        Args:
            state: the state in force.
            noisy_sum: (m,), the sum of the statistics with its noise.
            context: public numbers.

        Returns:
            A state whose threshold is finite and within its limits, whatever the noise was.
        """
        raise NotImplementedError


def clamp(value: jax.Array, fallback: jax.Array, floor: float, ceiling: float) -> jax.Array:
    """Returns `value` within [`floor`, `ceiling`] as float32, and `fallback` where it is NaN.

    Args:
        value: a new threshold.
        fallback: the old one.
        floor: the smallest value.
        ceiling: the largest value.

    Example:
        >>> clamp(jnp.array([0.0, 2.0, jnp.inf, jnp.nan]), jnp.float32(1.0), 0.5, 4.0).tolist()
        [0.5, 2.0, 4.0, 1.0]
    """
    limited = jnp.where(jnp.isnan(value), fallback, jnp.clip(value, floor, ceiling))
    return limited.astype(jnp.float32)
