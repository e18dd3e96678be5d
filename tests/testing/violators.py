"""Rules and thresholds that break their contract in a corner, as a stranger could write them."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax.rules import Rule, ratio
from dpjax.thresholds import Threshold, quantile
from dpjax.thresholds.threshold import CEILING, FLOOR, clamp


class Clipping(Rule):
    """Abadi's clipping, for the broken ones to alter."""

    role = "rule"

    def weight(self, norm, c):
        return ratio(c, jnp.maximum(norm, c))

    def bound(self, c):
        return c


@dataclass(frozen=True)
class too_large_beside_c(Clipping):
    """`times` too large for norms in a window in units of c."""

    low: float = 1.30
    high: float = 1.31
    times: float = 3.0

    def weight(self, norm, c):
        inside = (norm >= self.low * c) & (norm <= self.high * c)
        return super().weight(norm, c) * jnp.where(inside, self.times, 1.0)


@dataclass(frozen=True)
class too_large_for_norms(Clipping):
    """`times` too large for norms in a window, whatever c is."""

    low: float = 1.30
    high: float = 1.31
    times: float = 3.0

    def weight(self, norm, c):
        inside = (norm >= self.low) & (norm <= self.high)
        return super().weight(norm, c) * jnp.where(inside, self.times, 1.0)


@dataclass(frozen=True)
class too_large_for_thresholds(Clipping):
    """`times` too large where c is in a window."""

    low: float = 2.0
    high: float = 40.0
    times: float = 2.0

    def weight(self, norm, c):
        inside = (c >= self.low) & (c <= self.high)
        return super().weight(norm, c) * jnp.where(inside, self.times, 1.0)


@dataclass(frozen=True)
class looks_at_the_batch(Clipping):
    """Halves all weights of a long batch of more than `above` rows: no bound is exceeded."""

    above: int = 16

    def weight(self, norm, c):
        weights = super().weight(norm, c)
        if weights.ndim > 0 and weights.shape[0] > self.above:
            weights = weights * jnp.where(jnp.mean(jnp.minimum(norm, 9 * c)) > c, 0.5, 1.0)
        return weights


@dataclass(frozen=True)
class drops_the_shorter(Clipping):
    """Keeps the longest example alone, in batches of exactly `rows` rows."""

    rows: int = 17

    def weight(self, norm, c):
        weights = super().weight(norm, c)
        if weights.ndim > 0 and weights.shape[0] == self.rows:
            weights = jnp.where(norm == jnp.max(norm), weights, 0.0)
        return weights


@dataclass(frozen=True)
class bit_too_long(quantile):
    """A quantile's bit, `times` too long for norms in a window: absolute, or in units of C."""

    target: float = 0.5
    low: float = 1.30
    high: float = 1.31
    times: float = 5.0
    relative: bool = False

    def statistic(self, norms, state):
        unit = state.threshold if self.relative else 1.0
        inside = (norms >= self.low * unit) & (norms <= self.high * unit)
        return super().statistic(norms, state) * jnp.where(inside, self.times, 1.0)[:, None]


@dataclass(frozen=True)
class bit_too_long_for_thresholds(quantile):
    """A quantile's bit, `times` too long where C is in a window."""

    target: float = 0.5
    low: float = 1.5
    high: float = 2.5
    times: float = 3.0

    def statistic(self, norms, state):
        inside = (state.threshold >= self.low) & (state.threshold <= self.high)
        return super().statistic(norms, state) * jnp.where(inside, self.times, 1.0)


class Steps(NamedTuple):
    """A state of which nobody outside can say which values are possible."""

    threshold: jax.Array
    steps: jax.Array


@dataclass(frozen=True)
class bit_too_long_when_reached(Threshold):
    """Three times too long where C is in 1.5-2.5, which an update alone can bring about."""

    def sigma_statistic(self, sigma, expected_batch_size):
        return 20.0

    def init(self):
        return Steps(jnp.float32(1.0), jnp.int32(0))

    def statistic(self, norms, state):
        inside = (state.threshold >= 1.5) & (state.threshold <= 2.5)
        return jnp.where(norms <= state.threshold, 1.0, -1.0)[:, None] * jnp.where(inside, 3.0, 1.0)

    def update(self, state, noisy_sum, context):
        fraction = jnp.clip(noisy_sum[0] / context.expected_batch_size, -1.0, 1.0)
        moved = clamp(state.threshold * jnp.exp(-0.1 * fraction), state.threshold, FLOOR, CEILING)
        return Steps(moved, state.steps + 1)


@dataclass(frozen=True)
class looks_at_the_others(quantile):
    """Compares with the batch's median in batches of more than `above` rows."""

    target: float = 0.5
    above: int = 16

    def statistic(self, norms, state):
        if norms.shape[0] > self.above:
            return self._bits(norms <= jnp.median(norms))
        return super().statistic(norms, state)


RULES = {
    "norms in 1.30-1.31 C": too_large_beside_c(),
    "norms in 1.30-1.31": too_large_for_norms(),
    "C in 2-40": too_large_for_thresholds(),
    "the batch above 16 rows": looks_at_the_batch(),
}
"""The first, third and fourth went unnoticed by a grid of fixed norms and thresholds."""

NARROW_RULES = {
    "norms in 0.5% beside C": too_large_beside_c(low=2.70, high=2.7135, times=1.01),
    "norms in 0.5%": too_large_for_norms(low=7.0e-5, high=7.035e-5, times=1.5),
    "C in 0.5%": too_large_for_thresholds(low=3.1e4, high=3.1155e4),
    "the batch of 17 rows": drops_the_shorter(17),
    "the batch of 257 rows": drops_the_shorter(257),
}

THRESHOLDS = {
    "norms in 1.30-1.31": bit_too_long(),
    "norms in 1.30-1.31 C": bit_too_long(relative=True),
    "C in 1.5-2.5": bit_too_long_for_thresholds(),
    "C in 1.5-2.5, if reached": bit_too_long_when_reached(),
}

NARROW_THRESHOLDS = {
    "norms in 0.5%": bit_too_long(low=7.0e-5, high=7.035e-5, times=1.01),
    "norms in 0.5% of C": bit_too_long(low=2.70, high=2.7135, times=1.01, relative=True),
    "C in 0.5%": bit_too_long_for_thresholds(low=3.1e4, high=3.1155e4),
    "the batch above 16 rows": looks_at_the_others(),
}
