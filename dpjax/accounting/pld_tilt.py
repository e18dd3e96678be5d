"""Cumulants of composed privacy losses: which tilt to compose under, and on which window."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import optimize

from dpjax.accounting.pld_step import Pmf

__all__ = ["Cumulants", "tilt_for_delta", "tilt_for_epsilon"]

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
        """Returns about the standard deviation of L under the tilt ``exp(t L)``."""
        _, weights = self._weighted(t)
        means = np.sum(weights * self._losses, axis=1)
        variances = np.sum(weights * (self._losses - means[:, None]) ** 2, axis=1)
        return math.sqrt(float(self._counts @ variances))

    def window(self, t: float, exact: float, outside: float) -> tuple[float, float]:
        """Returns the ends between which L lies under the tilt but for `outside` on each side.

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
    """Returns the t of the best ``epsilon = (K(t) - log delta) / t``, near which the loss then is.

    Args:
        cumulants: K, or a bound on it.
        delta: the target.
        mesh: the distance of the grid's points; no tilt is so steep that it skips some.

    >>> round(tilt_for_delta(lambda t: (t + t**2) / 2, 1e-8, 1e-3), 1)  # sqrt(2 log(1 / delta))
    6.1
    """
    target = math.log(delta)
    return _smallest(lambda t: (cumulants(t) - target) / t, 0.25 / mesh)


def tilt_for_epsilon(cumulants: Callable[[float], float], epsilon: float, mesh: float) -> float:
    """Returns the t of the best ``delta = exp(K(t) - t epsilon)``; 0 below the mean of the loss.

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
