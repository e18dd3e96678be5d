"""A threshold that keeps the noisy statistic it was given: released, and so what an attack sees."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.mechanism import Mechanism, Release
from dpjax.thresholds import Threshold, ThresholdContext

__all__ = ["watched", "watched_statistic"]


class _WatchedState(NamedTuple):
    inner: Any
    noisy: jax.Array

    @property
    def threshold(self) -> jax.Array:
        """C_t of the threshold that is watched."""
        return self.inner.threshold


@dataclass(frozen=True)
class _Watched(Threshold[_WatchedState]):
    """The threshold `inner`, with the last noisy sum in its state."""

    inner: Threshold[Any]

    @property
    def sensitivity(self) -> float:  # type: ignore[override]
        return self.inner.sensitivity

    def sigma_statistic(self, sigma: float, expected_batch_size: float | None) -> float | None:
        return self.inner.sigma_statistic(sigma, expected_batch_size)

    def init(self) -> _WatchedState:
        state = self.inner.init()
        length = jax.eval_shape(self.inner.statistic, jnp.ones(1), state).shape[1]
        return _WatchedState(state, jnp.zeros(length, jnp.float32))

    def statistic(self, norms: jax.Array, state: _WatchedState) -> jax.Array:
        return self.inner.statistic(norms, state.inner)

    def update(
        self, state: _WatchedState, noisy_sum: jax.Array, context: ThresholdContext
    ) -> _WatchedState:
        return _WatchedState(self.inner.update(state.inner, noisy_sum, context), noisy_sum)


def watched(subject: Release) -> Release:
    """Returns the subject with its noisy statistic in the state; it releases what it did before."""
    if not isinstance(subject, Mechanism) or not isinstance(subject.threshold, Threshold):
        return subject
    return subject.replace(threshold=_Watched(subject.threshold))


def watched_statistic(opt_state: Any) -> jax.Array:
    """Returns the noisy statistic of the last step, (m,); (0,) where there is none."""
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, _WatchedState))
    found = [node.noisy for node in nodes if isinstance(node, _WatchedState)]
    return found[0] if found else jnp.zeros(0)
