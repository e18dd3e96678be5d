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

_UNIT = 2.0**-53
# How many units in the last place a normal tail, or a loss, is taken to be off. Measured
# against high precision: 2 are enough.
_UNITS = 8.0


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
    """The masses of two neighbouring outputs between the grid's points, as mixtures of Gaussians.

    Attributes:
        lowest: the first point's k.
        weights: (2, parts) of the Gaussians in the two outputs.
        masses: (parts, points + 1) of the Gaussians: below the first point, in each cell, above
            the last point.
        errors: bounds on the rounding errors of these masses.
    """

    lowest: int
    weights: np.ndarray
    masses: np.ndarray
    errors: np.ndarray


def release_pmfs(
    sampling: PoissonSampling | TruncatedSampling,
    sigma: float,
    relation: NeighboringRelation,
    mesh: float,
    cut: float = CUT,
    *,
    lower: bool = False,
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
        lower: whether rounding errors are subtracted, for a lower bound, rather than added.

    Returns:
        The distributions for removing and for adding an example, or one for replacing it.

    Reference: Doroshenko et al., Connect the Dots: Tighter Discrete Approximations of Privacy Loss
    Distributions, 2022, https://arxiv.org/abs/2207.04380; for truncation
    https://arxiv.org/abs/2508.15089, as in dp-accounting.
    """
    replace = relation is NeighboringRelation.REPLACE_ONE
    if isinstance(sampling, PoissonSampling):
        pmfs = _sampled(sampling.rate, sigma, replace, mesh, cut, lower)
    else:
        pmfs = _truncated(sampling, sigma, replace, mesh, cut, lower)
    return tuple(_trimmed(pmf, cut) for pmf in pmfs)


def _truncated(
    sampling: TruncatedSampling, sigma: float, replace: bool, mesh: float, cut: float, lower: bool
) -> tuple[Pmf, ...]:
    size, rate, most = sampling
    plain = _sampled(rate, sigma, replace, mesh, cut, lower)
    # Given that the example was drawn, at least max_size others were.
    truncated = truncation(sampling)
    if truncated <= cut:
        return tuple(_mixed(pmf, Pmf(0, np.zeros(1), 1.0), truncated) for pmf in plain)
    kept = float(stats.binom.sf(most, size, rate)) * most / truncated / size
    # The example then displaces another one, which changes the sum by twice the bound.
    (pushed,) = _sampled(kept, sigma / 2, True, mesh, cut / truncated, lower)
    return tuple(_mixed(pmf, pushed, truncated) for pmf in plain)


def _sampled(
    rate: float, sigma: float, replace: bool, mesh: float, cut: float, lower: bool
) -> tuple[Pmf, ...]:
    if rate == 1.0:
        cells = _cells(1.0, sigma / 2 if replace else sigma, False, mesh, cut)
        return (_connected(cells, mesh, lower),)
    cells = _cells(rate, sigma, replace, mesh, cut)
    if replace:
        return (_connected(cells, mesh, lower),)
    lowest, points = -(cells.lowest + cells.masses.shape[1] - 2), slice(None, None, -1)
    turned = _Cells(lowest, cells.weights[::-1], cells.masses[:, points], cells.errors[:, points])
    return _connected(cells, mesh, lower), _connected(turned, mesh, lower)


def _connected(cells: _Cells, mesh: float, lower: bool) -> Pmf:
    """Splits every cell's mass onto its two ends, keeping both outputs' totals.

    A cell with masses a (with the example) and b (without) between losses l and l + mesh puts
    ``(a - e^l b) / (1 - e^-mesh)`` on its upper end and the rest of a on its lower end. Rounding
    errors are added to the masses, and more goes to the upper end by as much as they can change the
    split; for a lower bound both are subtracted.
    """
    masses, excess, errors, excess_errors = _split(cells, mesh)
    sign = -1.0 if lower else 1.0
    masses = np.maximum(masses + sign * errors, 0.0)
    a = masses[1:-1]
    upper = np.clip(excess + sign * excess_errors, 0.0, a)
    points = np.append(a - upper, 0.0)
    points[1:] += upper
    points[0] += masses[0]
    return Pmf(cells.lowest, points, float(masses[-1]))


def _split(cells: _Cells, mesh: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the first output's masses, what goes to the upper ends, and bounds on their errors.

    The errors of a Gaussian's masses are common to both outputs and mostly cancel in ``a - e^l b``.
    """
    with_it, without = cells.weights
    masses = with_it @ cells.masses
    a, b = masses[1:-1], without @ cells.masses[:, 1:-1]
    losses = mesh * (cells.lowest + np.arange(a.size))
    with np.errstate(divide="ignore"):  # e^l may overflow where b is already 0
        scaled = np.exp(np.minimum(losses + np.log(b), 0.0))
    width = -np.expm1(-mesh)
    # A cell's ends are the outputs at losses that are this far off: the share off / width of its
    # mass belongs to the cell above, and is moved up with the rest.
    off = _UNITS * _UNIT * (1 + np.abs(losses) - np.log(np.maximum(b, 1e-300)))
    factors = np.abs(with_it[:, None] - np.exp(np.minimum(losses, 700.0)) * without[:, None])
    excess_errors = (np.sum(factors * cells.errors[:, 1:-1], axis=0) + off * a) / width
    return masses, (a - scaled) / width, with_it @ cells.errors, excess_errors


def _cells(rate: float, sigma: float, replace: bool, mesh: float, cut: float) -> _Cells:
    """Returns the masses between the grid's points of the outputs with and without the example."""
    reach = -float(special.ndtri(min(cut, 1e-3)))
    ends = _losses(np.array([-1.0, 1.0]) * (reach * sigma + 1), rate, sigma, replace)
    # One point more on each side: at a large sigma both ends may round to a loss of 0.
    lowest, highest = int(np.floor(ends[0] / mesh)) - 1, int(np.ceil(ends[1] / mesh)) + 1
    x = _outputs(mesh * np.arange(lowest, highest + 1), rate, sigma, replace)
    weights = [[1 - rate, rate], [1.0, 0.0]]
    if replace:
        weights = [[1 - rate, rate, 0.0], [1 - rate, 0.0, rate]]
    parts = [_between(x, centre, sigma) for centre in (0.0, 1.0, -1.0)[: len(weights[0])]]
    masses, errors = zip(*parts, strict=True)
    return _Cells(lowest, np.array(weights), np.stack(masses), np.stack(errors))


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


def _between(x: np.ndarray, centre: float, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the masses of N(centre, sigma^2) below, between and above points, and their errors.

    A tail is off by a few roundings of itself, and by as many of z times the density, which is at
    most ``(1 + z^2)`` times the tail or so. Both ends of a cell count.

    Args:
        x: ascending points.
        centre: the mean.
        sigma: the standard deviation.
    """
    z = np.concatenate([[-np.inf], (x - centre) / sigma, [np.inf]])
    # Differences of the smaller tail keep their relative accuracy.
    tail = special.ndtr(-np.abs(z))
    left = z < 0
    same = np.abs(np.diff(tail))
    masses = np.where(left[:-1] & ~left[1:], 1.0 - tail[:-1] - tail[1:], same)
    off = _UNITS * _UNIT * np.where(tail > 0, tail * (1 + np.minimum(z * z, 1e300)), 0.0)
    return masses, off[:-1] + off[1:]


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
