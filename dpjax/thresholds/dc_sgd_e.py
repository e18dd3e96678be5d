"""DC-SGD-E: the threshold with the least expected squared error, from a private histogram."""

from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.thresholds.histogram import HistogramState, HistogramThreshold, midpoints
from dpjax.thresholds.threshold import CEILING, FLOOR, ThresholdContext, clamp

__all__ = ["dc_sgd_e"]

_CANDIDATES = 20
_ROUNDS = 64
_Search: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]  # C, rounds, whether at an edge
_NEGATIVE = ("nonneg", "raw", "threshold")


@dataclass(frozen=True)
class dc_sgd_e(HistogramThreshold):
    """Balances the variance of the noise against the bias of clipping, with nothing to tune.

    Statistic: one-hot, the bin of [0, R] that the norm falls in. Update, with noisy bins H,
    ``S' = sum_k H_k``, midpoints m_k, d parameters and batch size B: of the candidates
    ``C' = C i / 10``, i = 1..20, take the one with the least

        ``error(C') = sigma_T^2 C'^2 d / B^2 + (1 / S') sum_k H_k max(m_k - C', 0)^2``

    (of equals, the smaller C'). If it is the first or the last candidate, repeat from there, at
    most 64 times and within [1e-8, 1e8]. Then R is doubled if the last bin holds at least half of
    S', or halved if the upper half of the bins holds at most S'/b. If S' <= 0, C and R stay.

    Args:
        c0: the first threshold, in [1e-8, 1e8].
        bins: b, the number of bins, in [2, 65536].
        sigma_h: sigma_H, the standard deviation of the noise on each bin; None takes the paper's
            choice, `histogram.default_sigma_h`.
        range0: the first R, in [1e-8, 1e8]; None takes b.
        negative: how the error reads negative noisy bins, on which the paper is silent. "nonneg"
            reads them as 0; "raw" as they are, like the authors' code; "threshold" reads every bin
            below 2 sigma_H as 0. S' and R always read the raw bins: with clipped ones the range
            would never shrink.

    Raises:
        ValueError: if a number is outside its range, or `negative` is not one of the three.

    Privacy:
        Bound: one example changes one bin by one, so the sensitivity is 1 and sigma_S = sigma_H.
        Relation: add or remove one example. Event: gradient and histogram together are one Gaussian
        of the total sigma (theorem 2), which may be at most sqrt(3)/2 of sigma_H. Non-finite norms
        count in the last bin. Not protected: the thresholds and noisy bins, which are public.

    Example:
        >>> rule = dc_sgd_e(bins=4, range0=4.0)
        >>> context = ThresholdContext(100, 100, jnp.float32(1.0), 5.0)
        >>> state = rule.update(rule.init(), jnp.array([0.0, 0.0, 50.0, 50.0]), context)
        >>> round(float(state.threshold), 3), float(state.range)
        (3.4, 8.0)

    Reference: Wei et al., DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient
    Norm Distribution Estimation, 2025, algorithm 4, https://arxiv.org/abs/2503.22988
    """

    c0: float = 1.0
    bins: int = 20
    sigma_h: float | None = None
    range0: float | None = None
    negative: str = "nonneg"

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_histogram()
        _checks.choice("negative", self.negative, _NEGATIVE)

    def _default_range(self) -> float:
        return float(self.bins)

    def update(
        self, state: HistogramState, noisy_sum: jax.Array, context: ThresholdContext
    ) -> HistogramState:
        """Searches the candidates, then moves the range."""
        total = jnp.sum(noisy_sum)
        bins = self._bins_for_error(noisy_sum, context.sigma_statistic)
        usable = (total > 0) & (jnp.sum(jnp.abs(bins)) > 0)
        scale = context.sigma_gradient**2 * context.dimension / context.expected_batch_size**2
        found = _least_error(state, bins / jnp.where(usable, total, 1.0), scale)
        c = clamp(found, state.threshold, FLOOR, CEILING)
        return HistogramState(
            jnp.where(usable, c, state.threshold),
            jnp.where(total > 0, self._moved_range(state.range, noisy_sum, total), state.range),
        )

    def _bins_for_error(self, noisy: jax.Array, sigma_h: float) -> jax.Array:
        if self.negative == "raw":
            return noisy
        return jnp.where(noisy >= (0.0 if self.negative == "nonneg" else 2 * sigma_h), noisy, 0.0)

    def _moved_range(self, upper: jax.Array, noisy: jax.Array, total: jax.Array) -> jax.Array:
        too_short = noisy[-1] >= total / 2
        too_long = jnp.sum(noisy[self.bins // 2 :]) <= total / self.bins
        factor = jnp.where(too_short, 2.0, jnp.where(too_long, 0.5, 1.0))
        return jnp.clip(upper * factor, FLOOR, CEILING)


@jax.jit
def _least_error(state: HistogramState, share: jax.Array, noise_scale: jax.Array) -> jax.Array:
    """Returns the candidate of least error, from the state's threshold on.

    Args:
        state: where the search starts.
        share: the bins over S'.
        noise_scale: ``sigma_T^2 d / B^2``.
    """
    middles = midpoints(state.range, share.shape[0])
    steps = jnp.arange(1, _CANDIDATES + 1, dtype=jnp.float32) / 10.0

    def search(carry: _Search) -> _Search:
        c, rounds, _ = carry
        candidates = c * steps
        # The error over that of C itself, with the difference of squares factored: taken apart,
        # the part that all candidates share would swallow the differences between small ones.
        kept, now = jnp.minimum(middles, candidates[:, None]), jnp.minimum(middles, c)
        gain = (now - kept) * ((middles - kept) + (middles - now))
        error = noise_scale * (candidates**2 - c**2) + jnp.sum(share * gain, axis=1)
        best = jnp.argmin(error)
        # The index is tested, not the value: floats that should be equal often are not.
        at_edge = (best == 0) | (best == _CANDIDATES - 1)
        inside = jnp.clip(candidates[best], FLOOR, CEILING)
        return inside, rounds + 1, at_edge & (inside == candidates[best])

    start = (state.threshold, jnp.zeros((), jnp.int32), jnp.ones((), bool))
    c, _, _ = jax.lax.while_loop(lambda carry: carry[2] & (carry[1] < _ROUNDS), search, start)
    return c
