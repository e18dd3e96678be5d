"""The private histogram of norms that both DC-SGD thresholds read."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.thresholds.base import CEILING, FLOOR, Threshold

__all__ = [
    "HistogramState",
    "HistogramThreshold",
    "default_sigma_h",
    "midpoints",
    "norm_histogram",
]


_MOST_BINS = 2**16  # every example has a row of so many numbers


class HistogramState(NamedTuple):
    """The threshold in use and the range [0, R] of the histogram."""

    threshold: jax.Array
    range: jax.Array


def norm_histogram(norms: jax.Array, upper: jax.Array, bins: int) -> jax.Array:
    """Returns each norm's bin as a one-hot row; everything from `upper` on is in the last bin.

    ``index = min(bins - 1, floor(bins * n / R))``; DC-SGD prints max for min. A norm of +inf or
    NaN is in the last bin too. One example adds exactly one to one bin: sensitivity 1.

    >>> norm_histogram(jnp.array([0.0, 1.9, 9.0, jnp.inf]), jnp.float32(4.0), 2).tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    position = norms / upper * bins
    last = bins - 1
    index = jnp.where(position < last, position, last).astype(jnp.int32)
    return jax.nn.one_hot(index, bins, dtype=jnp.float32)


def midpoints(upper: jax.Array, bins: int) -> jax.Array:
    """Returns the middle of every bin, also of the last one, which holds the outliers."""
    return (jnp.arange(bins, dtype=jnp.float32) + 0.5) * (upper / bins)


def default_sigma_h(sigma: float) -> float:
    """Returns the paper's sigma_H: 5, or 8 when 2 <= sigma <= 3, or 12 when sigma > 3.

    >>> [default_sigma_h(sigma) for sigma in (1.0, 2.0, 3.5)]
    [5.0, 8.0, 12.0]
    """
    if sigma < 2:
        return 5.0
    return 8.0 if sigma <= 3 else 12.0


class HistogramThreshold(Threshold):
    """A threshold that reads a private histogram of `bins` bins on [0, R]."""

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
