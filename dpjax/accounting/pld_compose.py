"""Composes privacy losses of many kinds at once: one product of Fourier transforms."""

import math
from collections.abc import Sequence

import numpy as np
from dp_accounting.pld import pld_pmf
from scipy import fft

from dpjax.accounting.pld_step import Pmf

__all__ = ["ROUNDING", "composed"]

ROUNDING = 1e-15
"""What rounding may do to a mass for every release: each one's relative error enters a power."""

# Chernoff's bound is tried at these multiples of the best order for a normal sum: losses have
# heavier tails, for which smaller orders are better. Some points bound it just as well as all.
_FACTORS = 2.0 ** np.arange(-12, 1, 0.5)
_POINTS = 2048


def composed(
    parts: Sequence[tuple[Pmf, int]], mesh: float, tail_mass: float
) -> pld_pmf.DensePLDPmf:
    """Returns the distribution of the sum of independent privacy losses.

    ``F = prod_k F_k^(n_k)`` over the Fourier transforms of the parts, on a window that holds all
    but `tail_mass` of the sum by Chernoff's bound. What is outside counts as an unlimited loss, and
    so does what rounding may have taken away.

    Args:
        parts: the distribution of each kind of release, and the number of such releases.
        mesh: the distance of the grid's points, common to all.
        tail_mass: what may stay outside the grid.

    Returns:
        dp-accounting's own distribution, which answers for epsilon and delta.
    """
    first, last = _window(parts, tail_mass)
    length = fft.next_fast_len(last - first + 1, real=True)
    transform = np.ones(length // 2 + 1, complex)
    for pmf, count in parts:
        transform *= _power(fft.rfft(_wrapped(pmf.masses, length)), count)
    masses = np.roll(fft.irfft(transform, length), -first)[: last - first + 1]
    lowest = sum(pmf.lowest * count for pmf, count in parts)
    rounding = ROUNDING * sum(count for _, count in parts)
    infinity = -math.expm1(sum(count * math.log1p(-pmf.infinity) for pmf, count in parts))
    return pld_pmf.DensePLDPmf(
        mesh, lowest + first, np.maximum(masses, 0.0), infinity + tail_mass + rounding, True
    )


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


def _window(parts: Sequence[tuple[Pmf, int]], tail_mass: float) -> tuple[int, int]:
    """Returns the window's first and last point, counted from the sum of all lowest points."""
    counts = np.array([count for _, count in parts], float)
    moments = np.array([_moments(pmf.masses) for pmf, _ in parts])
    means, spread = moments[:, 0], math.sqrt(counts @ moments[:, 1]) + 1.0
    room = math.log(2 / tail_mass)
    first, last = 0.0, float(sum(count * (pmf.masses.size - 1) for pmf, count in parts))
    coarse = [_coarse(pmf.masses) for pmf, _ in parts]
    for order in _FACTORS * math.sqrt(2 * room) / spread:
        up = [_log_mgf(c, order, m) for c, m in zip(coarse, means, strict=True)]
        down = [_log_mgf(c, -order, m) for c, m in zip(coarse, means, strict=True)]
        last = min(last, counts @ means + (counts @ up + room) / order)
        first = max(first, counts @ means - (counts @ down + room) / order)
    first, last = math.floor(first), math.ceil(last)
    return min(first, last), last


def _moments(masses: np.ndarray) -> tuple[float, float]:
    k = np.arange(masses.size)
    mean = float(masses @ k)
    return mean, float(masses @ (k - mean) ** 2)


def _coarse(masses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns fewer points and their masses, with the same mean in every cell.

    Between two points a convex function lies below its chord: moments of the exponential only grow.
    """
    width = max(1, masses.size // _POINTS)
    k = np.arange(masses.size)
    upper = masses * (k % width) / width
    cells = np.bincount(k // width, masses - upper, minlength=k[-1] // width + 2)
    cells[1:] += np.bincount(k // width, upper, minlength=cells.size - 1)[: cells.size - 1]
    held = np.flatnonzero(cells)
    return width * held, cells[held]


def _log_mgf(coarse: tuple[np.ndarray, np.ndarray], order: float, mean: float) -> float:
    """Returns ``log E exp(order (k - mean))``."""
    points, masses = coarse
    exponents = order * (points - mean)
    largest = float(exponents.max())
    return largest + math.log(float(masses @ np.exp(exponents - largest)))
