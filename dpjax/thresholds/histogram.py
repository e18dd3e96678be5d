"""The private histogram of norms that both DC-SGD thresholds read."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.thresholds.threshold import CEILING, FLOOR, Threshold

__all__ = [
    "HistogramState",
    "HistogramThreshold",
    "default_sigma_h",
    "midpoints",
    "norm_histogram",
]


_MOST_BINS = 2**16  # every example has a row of so many numbers


class HistogramState(NamedTuple):
    """The state of a DC-SGD threshold; public.

    Attributes:
        threshold: C, the threshold in force.
        range: R; the histogram covers [0, R].
    """

    threshold: jax.Array
    range: jax.Array


def norm_histogram(norms: jax.Array, upper: jax.Array, bins: int) -> jax.Array:
    """Returns the bin of each norm as a one-hot row.

    ``index = min(bins - 1, floor(bins * n / R))`` for a norm n; DC-SGD prints max for min. Norms
    from R on are in the last bin, and so are +inf and NaN.

    Args:
        norms: (k,), the norms n.
        upper: R, the upper end of the histogram.
        bins: b, the number of bins.

    Returns:
        (k, bins), one row per norm.

    Privacy:
        Bound: one example adds 1 to one bin, so the sensitivity is 1, under add or remove one
        example. The rows themselves are private.

    Example:
        >>> norm_histogram(jnp.array([0.0, 1.9, 9.0, jnp.inf]), jnp.float32(4.0), 2).tolist()
        [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]

    Reference: Wei et al., DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient
    Norm Distribution Estimation, 2025, algorithm 2, https://arxiv.org/abs/2503.22988
    """
    position = norms / upper * bins
    last = bins - 1
    index = jnp.where(position < last, position, last).astype(jnp.int32)
    return jax.nn.one_hot(index, bins, dtype=jnp.float32)


def midpoints(upper: jax.Array, bins: int) -> jax.Array:
    """Returns the middle of every bin, also of the last one, which holds the outliers.

    ``m_k = (k + 1/2) R / b`` for k = 0, ..., b - 1.

    Args:
        upper: R, the upper end of the histogram.
        bins: b, the number of bins.

    Example:
        >>> midpoints(jnp.float32(4.0), 2).tolist()
        [1.0, 3.0]
    """
    return (jnp.arange(bins, dtype=jnp.float32) + 0.5) * (upper / bins)


def default_sigma_h(sigma: float) -> float:
    """Returns the paper's sigma_H: 5, or 8 when 2 <= sigma <= 3, or 12 when sigma > 3.

    Args:
        sigma: the largest total noise multiplier of the run.

    Example:
        >>> [default_sigma_h(sigma) for sigma in (1.0, 2.0, 3.5)]
        [5.0, 8.0, 12.0]

    Reference: Wei et al., DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient
    Norm Distribution Estimation, 2025, sections V and VI, https://arxiv.org/abs/2503.22988
    """
    if sigma < 2:
        return 5.0
    return 8.0 if sigma <= 3 else 12.0


class HistogramThreshold(Threshold[HistogramState]):
    """A threshold that reads a private histogram of the norms, `bins` bins on [0, R].

    Privacy:
        Bound: one example changes one bin by one, so the sensitivity is 1 and sigma_S = sigma_H,
        under add or remove one example. Event and limits: see `Threshold`.
    """

    role: ClassVar[str] = "threshold"

    c0: float
    bins: int
    sigma_h: float | None
    range0: float | None

    def _check_histogram(self) -> None:
        c0 = _within("c0", self.c0)
        bins = _checks.integer("bins", self.bins, at_least=2)
        if bins > _MOST_BINS:
            raise ValueError(f"bins = {bins}: expected at most {_MOST_BINS}")
        self._set(c0=c0, bins=bins)
        if self.sigma_h is not None:
            self._set(sigma_h=_checks.normal("sigma_h", self.sigma_h))
        if self.range0 is not None:
            self._set(range0=_within("range0", self.range0))

    def _default_range(self) -> float:
        raise NotImplementedError

    def sigma_statistic(self, sigma: float, expected_batch_size: float | None) -> float | None:
        """Returns sigma_H."""
        return default_sigma_h(sigma) if self.sigma_h is None else self.sigma_h

    def init(self) -> HistogramState:
        """Returns c0 and range0."""
        upper = self._default_range() if self.range0 is None else self.range0
        return HistogramState(jnp.float32(self.c0), jnp.float32(upper))

    def statistic(self, norms: jax.Array, state: HistogramState) -> jax.Array:
        """Returns (k, bins) one-hot rows."""
        return norm_histogram(norms, state.range, self.bins)


def _within(field: str, value: float) -> float:
    """Checks a number against the limits between which thresholds and ranges move."""
    number = _checks.positive(field, value)
    if not FLOOR <= number <= CEILING:
        raise ValueError(f"{field} = {value!r}: expected a number in [{FLOOR:g}, {CEILING:g}]")
    return number
