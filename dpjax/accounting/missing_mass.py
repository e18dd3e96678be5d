"""The cost of the noise's bounded support: outputs that only one of two neighbours can produce."""

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from scipy import special

from dpjax.accounting.gaussians import FixedSampling, Gaussians, releases, truncation
from dpjax.noise import SUPPORT

__all__ = ["PARAMETERS", "NoEpsilonError", "delta_left", "missing_mass", "with_missing_mass"]

PARAMETERS = 2**40
"""The most coordinates that one release is assumed to have."""

_FAR = 0.09
_OUTERMOST = 2.0**-96  # the probability of the largest radius
_ROUNDING = 2.0**-20  # of a normal's arithmetic in float32, relative, with room
_ROOM = 1.001  # that rounding moves the tail at m by up to m^2 2^-20, 1.3e-4 of itself
_WORTH_SAYING, _TOO_MUCH = 1e-3, 0.5


class NoEpsilonError(ValueError):
    """The bounded support of the noise leaves no epsilon at this delta."""


def missing_mass(event: dp_accounting.DpEvent, relation: NeighboringRelation) -> float:
    """Returns the probability of an output that is impossible without the example.

    A draw z of the noise has ``|z| <= m``, m = `dpjax.noise.SUPPORT`, where the Gaussian that is
    accounted has no end. With sigma the total noise multiplier and Q the normal tail, a release has
    such an output with probability ``q F(sigma)`` at most, q the probability that the example was
    drawn, and the releases add up (union bound):

        ``F(sigma) = c (Q(m - 1/sigma) + Q(m - f) / (f sigma)^2) + k p(1 / (sigma sqrt(k)))``

    with c = 1.001, f = 0.09, k = `PARAMETERS` and ``p(s) = 2^-96 arccos(1 - s/m - 2^-20) / pi``.

    Proof. On outputs that both neighbours can have, probabilities are the Gaussians' apart from r
    (docs/noise.md), which is not counted, here or elsewhere; delta grows by the probability of the
    others. Beyond 10.5 r is not small, but the tail there is within 2^-98 of Q, and 4e-5 of itself
    in float32: radii have ``u = (i + 1/2) 2^-96``, so that for each angle the probability of a
    larger one is off by half a step at most, and one sign in two counts. Two such tails for each of
    the 36 cells between 10.5 and m, on either side, are less than 1e-27 per coordinate. The example
    moves coordinate i of the sum by ``s_i`` standard deviations of its noise, ``sum_i s_i^2 <=
    1/sigma^2``; a gradient and a statistic that are released together are one such vector. Rounding
    to a grid is monotonic, so an output that is impossible without the example has
    ``z_i > m - s_i`` in a coordinate with ``s_i > 0``; these probabilities are added.

    Coordinates with ``s_i > f``: each has ``c Q(m - s_i)`` at most, c - 1 being room for float32
    (exactly computed, the discrete law stays below Q there). As a function of ``w = s^2`` this
    is convex where ``s (m - s) >= 1``, so that its ratio to w is largest at an end, ``s = f`` or
    ``s = 1/sigma``, and the sum of w is at most 1/sigma^2: the first two terms. The others: z is a
    radius times the sine of an angle, and next to m there is one radius only, of probability 2^-96,
    up to ``m - log(3)/m``; 2^-20 is room for float32. p is concave in w, so that the sum is largest
    for k equal ones: the last term. It does not vanish with s, as ``Q(m - s) - Q(m)`` would for a
    density: however little the example moves a coordinate, its outermost atom leaves the support.

    With truncated Poisson sampling the example can push another one out, which moves the sum by two
    bounds: ``q (F(sigma) + p F(sigma / 2))``, p the probability that the batch is full. Of a random
    number of runs (`RepeatAndSelectDpEvent`) the expected number counts.

    Args:
        event: Gaussian releases; any other has noise of its own.
        relation: under replace-one an example moves the sum by two bounds.

    >>> mass = missing_mass(dp_accounting.GaussianDpEvent(0.2), _ADD)
    >>> f"{mass / special.ndtr(5 - SUPPORT):.3f}"
    '1.001'
    """
    return min(1.0, _total(event, relation))


_ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


def _total(
    event: dp_accounting.DpEvent, relation: NeighboringRelation, louder: float = 1.0
) -> float:
    """Returns the missing mass with all noise multipliers `louder` times as large."""
    gaussians, others = releases(event)
    total = sum(
        _one_kind(each._replace(sigmas=louder * each.sigmas), relation) for each in gaussians
    )
    for other, count in others:
        if isinstance(other, RepeatAndSelectDpEvent):
            total += count * other.mean * _total(other.event, relation, louder)
    return total


def _one_kind(gaussians: Gaussians, relation: NeighboringRelation) -> float:
    sampling, sigmas, counts = gaussians
    if relation is NeighboringRelation.REPLACE_ONE:
        each = _per_release(sigmas / 2)
    else:
        each = _per_release(sigmas)
        if (full := truncation(sampling)) > 0:
            each = each + full * _per_release(sigmas / 2)
    if isinstance(sampling, FixedSampling):
        return float(counts @ each) * sampling.size / sampling.dataset_size
    return float(counts @ each) * sampling.rate


def _per_release(sigmas: np.ndarray) -> np.ndarray:
    """Returns F; 1 where the example moves a coordinate across nearly the whole support."""
    alone = special.ndtr(1 / sigmas - SUPPORT)
    some = special.ndtr(_FAR - SUPPORT) / (_FAR * sigmas) ** 2
    angle = np.arccos(np.maximum(1 - 1 / (sigmas * PARAMETERS**0.5 * SUPPORT) - _ROUNDING, 0.0))
    total = _ROOM * (alone + some) + PARAMETERS * _OUTERMOST * angle / np.pi
    return np.where(1 / sigmas < SUPPORT - 1, np.minimum(total, 1.0), 1.0)


def delta_left(
    event: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float, accountant: str
) -> tuple[float, str]:
    """Returns delta minus the missing mass, and a note for the result.

    Args:
        event: an event that was written for the accountant.
        relation: the neighbouring relation.
        delta: the target delta.
        accountant: under replace-one RDP's events have half the noise multiplier already.

    Raises:
        NoEpsilonError: if the missing mass is half of delta or more.
    """
    relation = _ADD if accountant == "rdp" else relation
    missing = missing_mass(event, relation)
    if not missing < _TOO_MUCH * delta:
        ways = []
        if _total(event, relation, louder=1e9) < _TOO_MUCH * delta:
            ways.append("more noise")
        if (enough := 1.06 * missing / _TOO_MUCH) < 1:  # enough when rounded to two digits, too
            ways.append(f"a delta above {enough:.2g}")
        raise NoEpsilonError(
            f"delta = {delta:g}: the noise ends at {SUPPORT:.1f} standard deviations, which can "
            f"cost {missing:.2g} here; expected {', or '.join(ways)}"
        )
    return delta - missing, _said(missing, delta)


def with_missing_mass(
    event: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float, accountant: str
) -> tuple[float, str]:
    """Returns delta plus the missing mass, and a note for the result."""
    missing = missing_mass(event, _ADD if accountant == "rdp" else relation)
    return min(1.0, delta + missing), _said(missing, delta + missing)


def _said(missing: float, delta: float) -> str:
    if missing < _WORTH_SAYING * delta:
        return ""
    return f"{missing:.2g} of delta pays for the bounded support of the noise"
