"""DC-SGD-P: a percentile of the norms, read from a private histogram."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.thresholds.histogram import HistogramState, HistogramThreshold, midpoints
from dpjax.thresholds.threshold import CEILING, FLOOR, ThresholdContext, clamp

__all__ = ["dc_sgd_p"]


@dataclass(frozen=True)
class dc_sgd_p(HistogramThreshold):
    """Sets C to the p-quantile of the last batch's norms.

    Statistic: one-hot, the bin of [0, R] that the norm falls in. Update, with noisy bins H and
    ``S' = sum_k H_k``: C is the middle of the first bin where the cumulative sum reaches p S' (of
    the last bin if none does), and ``R = 2 C``. If S' <= 0, C and R stay.

    Args:
        p: the fraction of norms to leave unclipped, in (0, 1).
        c0: the first threshold, in [1e-8, 1e8].
        bins: b, the number of bins, in [2, 65536].
        sigma_h: sigma_H, the standard deviation of the noise on each bin; None takes the paper's
            choice, `histogram.default_sigma_h`.
        range0: the first R, in [1e-8, 1e8]; None takes 2 c0, as the authors' code does (their text
            says 1).

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: one example changes one bin by one, so the sensitivity is 1 and sigma_S = sigma_H.
        Relation: add or remove one example. Event: gradient and histogram together are one Gaussian
        of the total sigma (theorem 2), which may be at most sqrt(3)/2 of sigma_H. Non-finite norms
        count in the last bin. Not protected: the thresholds and noisy bins, which are public.

    Example:
        >>> rule = dc_sgd_p(p=0.5, bins=4)
        >>> context = ThresholdContext(4, 1, jnp.float32(1.0), 5.0)
        >>> rule.update(rule.init(), jnp.array([1.0, 2.0, 1.0, 0.0]), context)
        HistogramState(threshold=Array(0.75, dtype=float32), range=Array(1.5, dtype=float32))

    Reference: Wei et al., DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient
    Norm Distribution Estimation, 2025, algorithms 2 and 3, https://arxiv.org/abs/2503.22988
    """

    p: float
    c0: float = 1.0
    bins: int = 20
    sigma_h: float | None = None
    range0: float | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_histogram()
        self._set(p=_checks.fraction("p", self.p))

    def _default_range(self) -> float:
        return 2 * self.c0

    def update(
        self, state: HistogramState, noisy_sum: jax.Array, context: ThresholdContext
    ) -> HistogramState:
        """Reads the percentile."""
        total = jnp.sum(noisy_sum)
        reached = jnp.cumsum(noisy_sum) >= self.p * total
        first = jnp.where(jnp.any(reached), jnp.argmax(reached), self.bins - 1)
        found = midpoints(state.range, self.bins)[first]
        c = clamp(found, state.threshold, FLOOR, CEILING)
        usable = total > 0
        return HistogramState(
            jnp.where(usable, c, state.threshold), jnp.where(usable, 2 * c, state.range)
        )
