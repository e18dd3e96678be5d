"""Composes privacy losses of many kinds in one product of tilted Fourier transforms."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import fft, optimize, signal

from dpjax.accounting.pld_step import Pmf

__all__ = ["ROUNDING", "Cumulants", "Tail", "composed", "tilt_for_delta", "tilt_for_epsilon"]

# Between neighbouring points of the coarse grid the distance from a loss of 0 grows by this factor.
_GROWTH = 1.02
_ORDERS = np.geomspace(0.25, 16.0, 13)
_SMALLEST = 1e-6


class Cumulants:
    """Upper bounds on ``K(t) = log E exp(t L)``, L the sum of independent losses.

    Each loss is put on a coarser grid, fine around 0 and coarse far from it, with its mean kept in
    every cell. Between two points a convex function lies below its chord, so K only grows, by a
    relative 1e-4 or so.

    Args:
        parts: the distribution of each kind of release, and the number of such releases.
        mesh: the distance of the grid's points.
    """

    def __init__(self, parts: Sequence[tuple[Pmf, int]], mesh: float) -> None:
        """Puts the losses on their coarser grids."""
        coarse = [_coarse(pmf) for pmf, _ in parts]
        width = max(points.size for points, _ in coarse)
        self._losses = mesh * np.array([_padded(points, width) for points, _ in coarse])
        with np.errstate(divide="ignore"):
            masses = np.array([_padded(masses, width, 0.0) for _, masses in coarse])
            self._log_masses = np.log(masses)
        self._counts = np.array([count for _, count in parts], float)

    def __call__(self, t: float) -> float:
        """Returns the bound at t, of either sign."""
        return float(self._counts @ self._weighted(t)[0])

    def spread(self, t: float) -> float:
        """Returns the approximate standard deviation of L under the tilt ``exp(t L)``."""
        _, weights = self._weighted(t)
        means = np.sum(weights * self._losses, axis=1)
        variances = np.sum(weights * (self._losses - means[:, None]) ** 2, axis=1)
        return math.sqrt(float(self._counts @ variances))

    def window(self, t: float, exact: float, outside: float) -> tuple[float, float]:
        """Returns an interval that contains L under the tilt, up to mass `outside` on each side.

        Chernoff's bound: ``P(L > x) <= exp(K(t + u) - K(t) - u x)`` under the tilt.

        Args:
            t: the tilt.
            exact: K(t) itself.
            outside: the mass beyond each end.
        """
        room, spread = math.log(1 / outside), self.spread(t)
        first, last = -math.inf, math.inf
        for u in _ORDERS * (math.sqrt(2 * room) / 4 / max(spread, 1e-12)):
            last = min(last, (self(t + u) - exact + room) / u)
            first = max(first, (exact - self(t - u) - room) / u)
        return first, last

    def _weighted(self, t: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns the cumulant of each part, and its tilted masses."""
        exponents = t * self._losses + self._log_masses
        largest = exponents.max(axis=1)
        weights = np.exp(exponents - largest[:, None])
        totals = weights.sum(axis=1)
        return largest + np.log(totals), weights / totals[:, None]


def tilt_for_delta(cumulants: Callable[[float], float], delta: float, mesh: float) -> float:
    """Returns the t that minimises ``epsilon = (K(t) - log delta) / t``.

    Args:
        cumulants: K, or a bound on it.
        delta: the target.
        mesh: the distance of the grid's points, which limits the tilt.

    >>> round(tilt_for_delta(lambda t: (t + t**2) / 2, 1e-8, 1e-3), 1)  # sqrt(2 log(1 / delta))
    6.1
    """
    target = math.log(delta)
    return _smallest(lambda t: (cumulants(t) - target) / t, 0.25 / mesh)


def tilt_for_epsilon(cumulants: Callable[[float], float], epsilon: float, mesh: float) -> float:
    """Returns the t that minimises ``delta = exp(K(t) - t epsilon)``; 0 below the mean loss.

    >>> round(tilt_for_epsilon(lambda t: (t + t**2) / 2, 5.0, 1e-3), 1)
    4.5
    """
    best = _smallest(lambda t: cumulants(t) - t * epsilon, 0.25 / mesh)
    return best if cumulants(best) < best * epsilon else 0.0


def _smallest(objective: Callable[[float], float], largest: float) -> float:
    smallest = min(_SMALLEST, 1e-3 * largest)
    found = optimize.minimize_scalar(
        lambda log_t: objective(math.exp(log_t)),
        bounds=(math.log(smallest), math.log(largest)),
        method="bounded",
        options={"xatol": 0.01},
    )
    return math.exp(found.x)


def _coarse(pmf: Pmf) -> tuple[np.ndarray, np.ndarray]:
    """Returns fewer points and their masses, with the same mean in every cell."""
    last = pmf.lowest + pmf.masses.size - 1
    reach = max(abs(pmf.lowest), abs(last), 2)
    steps = np.arange(math.ceil(math.log(reach) / math.log(_GROWTH)) + 1)
    away = np.unique(np.round(_GROWTH**steps).astype(np.int64))
    edges = np.concatenate([-away[::-1], [0], away])
    edges = np.unique(np.clip(edges, pmf.lowest, last))
    if edges.size == 1:
        return edges, pmf.masses.sum(keepdims=True)
    starts = edges[:-1] - pmf.lowest
    offsets = np.arange(pmf.masses.size - 1) - np.repeat(starts, np.diff(edges))
    inner = pmf.masses[:-1]
    upper = np.add.reduceat(inner * offsets, starts) / np.diff(edges)
    masses = np.append(np.add.reduceat(inner, starts) - upper, pmf.masses[-1])
    masses[1:] += upper
    return edges, np.maximum(masses, 0.0)


def _padded(values: np.ndarray, width: int, fill: float | None = None) -> np.ndarray:
    missing = width - values.size
    return np.append(values, np.full(missing, values[-1] if fill is None else fill))


ROUNDING = 2e-14
"""Relative rounding error of a release's tilted masses, and of the factor that undoes the tilt."""

_UNIT = 2.0**-53
# The mass that may lie outside the window on each side under the tilt.
_OUTSIDE = 1e-10


class Tail(NamedTuple):
    """The composed privacy loss around the tilt's mean, with error bounds.

    Attributes:
        mesh: the distance of two losses.
        losses: ascending losses.
        masses: their probabilities.
        errors: bounds on the rounding error of each mass.
        folded: for each loss, a bound on the mass at or above it that was folded in from outside
            the window.
        beyond: a bound on the probability of a loss above the last one, including an unlimited one.
    """

    mesh: float
    losses: np.ndarray
    masses: np.ndarray
    errors: np.ndarray
    folded: np.ndarray
    beyond: float

    def deltas(self, *, lower: bool = False) -> np.ndarray:
        """Returns a bound on the hockey-stick divergence at each loss, from above or from below.

        ``E max(0, 1 - exp(epsilon - L))``, in sums of positive terms only: with
        ``A_j = sum_(i > j) p_i`` it is ``(1 - e^-h) sum_(i >= j) e^(-h (i - j)) A_i``.
        """
        decay = math.exp(-self.mesh)
        above = _sums_from(self._bounds(lower), 1.0)
        above = np.append(above[1:], 0.0)
        deltas = -math.expm1(-self.mesh) * _sums_from(above, decay)
        return deltas - self.folded if lower else deltas + self.beyond

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound on delta at an epsilon."""
        if epsilon < self.losses[0]:
            return 1.0
        over = self.losses > epsilon
        terms = self._bounds(lower=False)[over] * -np.expm1(epsilon - self.losses[over])
        return min(1.0, float(terms[::-1].sum()) * (1 + ROUNDING) + self.beyond)

    def epsilon(self, delta: float, *, lower: bool = False) -> float:
        """Returns a bound on epsilon at a delta: at least 0 and the first loss, possibly +inf.

        Between two losses delta is ``A - e^epsilon B``, which is solved for epsilon.
        """
        deltas = self.deltas(lower=lower)
        passed = np.flatnonzero(deltas > delta)
        if not passed.size:
            return max(0.0, float(self.losses[0]))
        at = int(passed[-1]) + 1
        if at == self.losses.size:
            # Above the last loss only `beyond` is known; as a lower bound, the last loss will do.
            return math.inf if not lower else max(0.0, float(self.losses[-1]))
        masses = self._bounds(lower)[at:]
        fixed = -float(self.folded[at - 1]) if lower else self.beyond
        scaled = float(masses @ np.exp(self.losses[at] - self.losses[at:]))
        inside = (float(masses[::-1].sum()) + fixed - delta) / scaled if scaled > 0 else 1.0
        step = math.log(inside) if inside > 0 else 0.0
        step = min(max(step, -self.mesh), 0.0)
        return max(0.0, float(self.losses[at]) + step)

    def rounding(self, epsilon: float) -> float:
        """Returns a bound on the rounding error of delta at an epsilon."""
        over = self.losses > epsilon
        return float(self.errors[over] @ -np.expm1(epsilon - self.losses[over]))

    def _bounds(self, lower: bool) -> np.ndarray:
        masses = self.masses - self.errors if lower else self.masses + self.errors
        return np.maximum(masses, 0.0)


def composed(
    parts: Sequence[tuple[Pmf, int]], mesh: float, tilt: float, cumulants: Cumulants | None = None
) -> Tail:
    """Returns the distribution of the sum of independent privacy losses, accurate around a tilt.

    The masses p of each loss become ``p~ = p exp(t l - kappa)``, kappa their cumulant at t, so that
    the sum's tail is where most of the tilted mass is. With F_k the Fourier transforms of the
    parts, ``prod_k F_k^(n_k)`` is that of the sum's tilted masses, and ``exp(K - t l)`` undoes the
    tilt. The transforms' rounding error, which is relative to the largest mass, thereby becomes
    relative to the tail. It is bounded from the transforms themselves: if each F_k is off by g at
    most, the product is off by ``prod_k m_k^(n_k) sum_k n_k g / m_k``, ``m_k = |F_k| + g``, and
    each mass by the mean of that over the frequencies.

    By Chernoff's bound, the window contains all but 1e-10 of the tilted mass on either side. Mass
    above it counts as an unlimited loss; mass outside is folded back into it, which only increases
    the result.

    Args:
        parts: the distribution of each kind of release, and the number of such releases.
        mesh: the distance of the grid's points, common to all.
        tilt: t >= 0; losses near the mean of the tilted sum are computed accurately.
        cumulants: the cumulants of the same parts, if already computed.

    Reference: Koskela, Jalko and Honkela, Computing Tight Differential Privacy Guarantees Using
    FFT, 2020, https://arxiv.org/abs/1906.03049, for composition by Fourier transform.
    """
    cumulants = Cumulants(parts, mesh) if cumulants is None else cumulants
    tilted = [_tilted(pmf, tilt * mesh) for pmf, _ in parts]
    counts = [count for _, count in parts]
    whole = sum(n * log_total for n, (_, log_total) in zip(counts, tilted, strict=True))
    lowest = sum(n * pmf.lowest for pmf, n in parts)
    highest = sum(n * (pmf.lowest + pmf.masses.size - 1) for pmf, n in parts)
    ends = cumulants.window(tilt, whole, _OUTSIDE)
    first = max(lowest, math.floor(max(ends[0] / mesh, -(2.0**62))))
    last = max(first, min(highest, math.ceil(min(ends[1] / mesh, 2.0**62))))
    length = fft.next_fast_len(last - first + 1, real=True)
    masses, error = _transformed([masses for masses, _ in tilted], counts, length)
    masses = np.roll(masses, lowest - first)[: last - first + 1]
    releases = sum(counts)
    losses = mesh * np.arange(first, last + 1)
    undo = np.exp(np.minimum(whole - tilt * losses, 700.0))
    masses = np.maximum(masses, 0.0) * undo
    relative = ROUNDING * releases + 4 * _UNIT * length  # the tilt, and sums over the window
    infinity = -math.expm1(sum(n * math.log1p(-min(pmf.infinity, 0.5)) for pmf, n in parts))
    return Tail(
        mesh,
        losses,
        masses,
        error * undo + relative * masses,
        2 * _OUTSIDE * undo,
        infinity + (_OUTSIDE * float(undo[-1]) if last < highest else 0.0),
    )


def _tilted(pmf: Pmf, tilt: float) -> tuple[np.ndarray, float]:
    """Returns the masses times ``exp(tilt k)``, normalised, and the logarithm of their total."""
    top = pmf.lowest + pmf.masses.size - 1
    masses = pmf.masses * np.exp(tilt * (np.arange(pmf.lowest, top + 1) - top))
    total = float(masses.sum())
    return masses / total, math.log(total) + tilt * top


def _transformed(
    parts: Sequence[np.ndarray], counts: Sequence[int], length: int
) -> tuple[np.ndarray, float]:
    """Returns the masses of the sum modulo the window, and a bound on the error of each."""
    # A sum of n terms times roots of unity, in log n passes of a few roundings each.
    accuracy = 8 * _UNIT * math.log2(length + 1)
    off = accuracy + ROUNDING
    product = np.ones(length // 2 + 1, complex)
    log_size, share = np.zeros(product.size), np.zeros(product.size)
    for masses, count in zip(parts, counts, strict=True):
        transform = fft.rfft(_wrapped(masses, length))
        size = np.abs(transform) + off
        log_size += count * np.log(size)
        share += count * (off / size + 8 * _UNIT)
        product *= _power(transform, count)
    # Every frequency but the first and (of an even length) the last stands for two.
    bound = np.exp(log_size) * (share + accuracy)
    return fft.irfft(product, length), 2 * float(bound.sum()) / length


def _power(values: np.ndarray, exponent: int) -> np.ndarray:
    """Returns a whole power by squaring, several times faster than NumPy's complex power."""
    result = values if exponent & 1 else np.ones_like(values)
    while exponent := exponent >> 1:
        values = values * values
        if exponent & 1:
            result = result * values
    return result


def _wrapped(masses: np.ndarray, length: int) -> np.ndarray:
    """Returns the masses modulo the window, as the transform sees them."""
    rows = -(-masses.size // length)
    return np.pad(masses, (0, rows * length - masses.size)).reshape(rows, length).sum(axis=0)


def _sums_from(values: np.ndarray, decay: float) -> np.ndarray:
    """Returns ``sum_(i >= j) decay^(i - j) values_i`` for every j."""
    if decay == 1.0:
        return np.cumsum(values[::-1])[::-1]
    return signal.lfilter([1.0], [1.0, -decay], values[::-1])[::-1]
