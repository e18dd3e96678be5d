"""The privacy loss of one release on a grid: an upper bound, and a close one.

dp-accounting inverts the loss point by point, which takes 0.8 s per noise multiplier, and a
schedule has many. Here the same discretisation ("connect the dots") is vectorised.
"""

from typing import NamedTuple

import numpy as np
from dp_accounting import NeighboringRelation
from scipy import special, stats

from dpjax.accounting.gaussians import PoissonSampling, TruncatedSampling, truncation

__all__ = ["CUT", "Pmf", "release_pmfs"]

CUT = 1e-23
"""The default probability of the largest losses, which count as unlimited."""


class Pmf(NamedTuple):
    """A distribution of the privacy loss on the grid ``mesh * k``.

    Attributes:
        lowest: the first k.
        masses: probabilities of k = lowest, lowest + 1, ...
        infinity: the probability of an unlimited loss.
    """

    lowest: int
    masses: np.ndarray
    infinity: float


class _Cells(NamedTuple):
    """The masses of two neighbouring outputs between the grid's points.

    Attributes:
        lowest: the first point's k.
        masses: (2, points + 1) masses of the two outputs: below the first point, in each cell,
            above the last point.
    """

    lowest: int
    masses: np.ndarray


def release_pmfs(
    sampling: PoissonSampling | TruncatedSampling,
    sigma: float,
    relation: NeighboringRelation,
    mesh: float,
    cut: float = CUT,
) -> tuple[Pmf, ...]:
    """Returns the discretised privacy loss of one Gaussian release, in each direction.

    With q the rate and all variances sigma^2, the outputs with and without the example are, under
    add-or-remove-one, ``(1-q) N(0) + q N(1)`` and ``N(0)``, either way round; under replace-one
    ``(1-q) N(0) + q N(1)`` and ``(1-q) N(0) + q N(-1)``, which is symmetric. No other pair of data
    sets loses more at any epsilon, so the bound survives composition.

    Args:
        sampling: how the batch was drawn.
        sigma: noise over one example's bound.
        relation: the neighbouring relation.
        mesh: the distance of the grid's points.
        cut: the approximate probability of the largest losses, which count as unlimited. They
            hardly matter, but would dominate the tilted distribution of `composed`.

    Returns:
        The distributions for removing and for adding an example, or one for replacing it.

    Reference: Doroshenko et al., Connect the Dots: Tighter Discrete Approximations of Privacy Loss
    Distributions, 2022, https://arxiv.org/abs/2207.04380; for truncation
    https://arxiv.org/abs/2508.15089, as in dp-accounting.
    """
    replace = relation is NeighboringRelation.REPLACE_ONE
    if isinstance(sampling, PoissonSampling):
        pmfs = _sampled(sampling.rate, sigma, replace, mesh, cut)
    else:
        pmfs = _truncated(sampling, sigma, replace, mesh, cut)
    return tuple(_trimmed(pmf, cut) for pmf in pmfs)


def _truncated(
    sampling: TruncatedSampling, sigma: float, replace: bool, mesh: float, cut: float
) -> tuple[Pmf, ...]:
    size, rate, most = sampling
    plain = _sampled(rate, sigma, replace, mesh, cut)
    # Given that the example was drawn, at least max_size others were.
    truncated = truncation(sampling)
    if truncated <= cut:
        return tuple(_mixed(pmf, Pmf(0, np.zeros(1), 1.0), truncated) for pmf in plain)
    kept = float(stats.binom.sf(most, size, rate)) * most / truncated / size
    # The example then displaces another one, which changes the sum by twice the bound.
    (pushed,) = _sampled(kept, sigma / 2, True, mesh, cut / truncated)
    return tuple(_mixed(pmf, pushed, truncated) for pmf in plain)


def _sampled(rate: float, sigma: float, replace: bool, mesh: float, cut: float) -> tuple[Pmf, ...]:
    if rate == 1.0:
        cells = _cells(1.0, sigma / 2 if replace else sigma, False, mesh, cut)
        return (_connected(cells, mesh),)
    cells = _cells(rate, sigma, replace, mesh, cut)
    if replace:
        return (_connected(cells, mesh),)
    points = cells.masses.shape[1] - 1
    turned = _Cells(-(cells.lowest + points - 1), cells.masses[::-1, ::-1])
    return _connected(cells, mesh), _connected(turned, mesh)


def _connected(cells: _Cells, mesh: float) -> Pmf:
    """Splits every cell's mass onto its two ends, keeping both outputs' totals.

    A cell with masses a (with the example) and b (without) between losses l and l + mesh puts
    ``(a - e^l b) / (1 - e^-mesh)`` on its upper end and the rest of a on its lower end.
    """
    a, b = cells.masses[:, 1:-1]
    losses = mesh * (cells.lowest + np.arange(a.size))
    with np.errstate(divide="ignore"):  # e^l may overflow where b is already 0
        scaled = np.exp(np.minimum(losses + np.log(b), 0.0))
    upper = np.clip((a - scaled) / -np.expm1(-mesh), 0.0, a)
    masses = np.append(a - upper, 0.0)
    masses[1:] += upper
    masses[0] += cells.masses[0, 0]
    return Pmf(cells.lowest, masses, float(cells.masses[0, -1]))


def _cells(rate: float, sigma: float, replace: bool, mesh: float, cut: float) -> _Cells:
    """Returns the masses between the grid's points of the outputs with and without the example."""
    reach = -float(special.ndtri(min(cut, 1e-3)))
    ends = _losses(np.array([-1.0, 1.0]) * (reach * sigma + 1), rate, sigma, replace)
    # One point more on each side: at a large sigma both ends may round to a loss of 0.
    lowest, highest = int(np.floor(ends[0] / mesh)) - 1, int(np.ceil(ends[1] / mesh)) + 1
    x = _outputs(mesh * np.arange(lowest, highest + 1), rate, sigma, replace)
    stay, go = _between(x, 0.0, sigma), _between(x, 1.0, sigma)
    with_it = (1 - rate) * stay + rate * go
    without = (1 - rate) * stay + rate * _between(x, -1.0, sigma) if replace else stay
    return _Cells(lowest, np.stack([with_it, without]))


def _losses(x: np.ndarray, rate: float, sigma: float, replace: bool) -> np.ndarray:
    """Returns the privacy loss at an output x."""
    stay, go = np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate)
    toward = np.logaddexp(stay, go + (x - 0.5) / sigma**2)
    return toward - np.logaddexp(stay, go + (-x - 0.5) / sigma**2) if replace else toward


def _outputs(losses: np.ndarray, rate: float, sigma: float, replace: bool) -> np.ndarray:
    """Returns the outputs x that have these losses; -inf below the smallest loss."""
    size = np.abs(losses)
    with np.errstate(divide="ignore", invalid="ignore"):
        if replace:
            # y = e^(x / sigma^2) solves a y^2 - (e^l - 1) y - a e^l = 0; l and x change sign
            # together.
            log_a = np.log(rate) - np.log1p(-rate) - 0.5 / sigma**2
            half = np.log(-np.expm1(-size)) + size - np.log(2) - log_a
            root = half + np.log1p(np.sqrt(1 + np.exp(size - 2 * half)))
            return np.sign(losses) * sigma**2 * np.where(size == 0, 0.0, root)
        # x = 1/2 + sigma^2 log((e^l - 1 + q) / q), written for each side of l = 0.
        above = size + np.log1p((rate - 1) * np.exp(-size)) - np.log(rate)
        below = np.log1p(np.expm1(-size) / rate)
        x = 0.5 + sigma**2 * np.where(losses > 0, above, below)
    return np.where(np.isnan(x), -np.inf, x)


def _between(x: np.ndarray, centre: float, sigma: float) -> np.ndarray:
    """Returns the masses of N(centre, sigma^2) below, between and above ascending points."""
    z = np.concatenate([[-np.inf], (x - centre) / sigma, [np.inf]])
    # Differences of the smaller tail keep their relative accuracy.
    tail = special.ndtr(-np.abs(z))
    left = z < 0
    same = np.abs(np.diff(tail))
    return np.where(left[:-1] & ~left[1:], 1.0 - tail[:-1] - tail[1:], same)


def _mixed(one: Pmf, other: Pmf, weight: float) -> Pmf:
    """Returns ``(1 - weight) one + weight other``."""
    lowest = min(one.lowest, other.lowest)
    end = max(p.lowest + p.masses.size for p in (one, other))
    masses = np.zeros(end - lowest)
    for pmf, share in ((one, 1 - weight), (other, weight)):
        first = pmf.lowest - lowest
        masses[first : first + pmf.masses.size] += share * pmf.masses
    infinity = (1 - weight) * one.infinity + weight * other.infinity
    return Pmf(lowest, masses, infinity)


def _trimmed(pmf: Pmf, cut: float) -> Pmf:
    """Returns the distribution with its largest losses, of a probability `cut`, made unlimited."""
    above = np.cumsum(pmf.masses[::-1])
    gone = min(int(np.searchsorted(above, cut, side="right")), pmf.masses.size - 1)
    if gone == 0:
        return pmf
    return Pmf(pmf.lowest, pmf.masses[:-gone], pmf.infinity + float(above[gone - 1]))
