"""Privacy loss distributions: the tight accountant, with upper and lower bounds."""

import math
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import pld as library

from dpjax.accounting.gaussians import (
    FixedSampling,
    Gaussians,
    Leaves,
    PoissonSampling,
    bucketed,
    leaves,
)
from dpjax.accounting.pld_compose import Cumulants, Tail, composed, tilt_for_delta, tilt_for_epsilon
from dpjax.accounting.pld_step import Pmf, release_pmfs
from dpjax.accounting.rdp import ORDERS, TAIL_ORDERS, rdp_poisson

__all__ = ["Bracket", "pld_bracket", "pld_delta", "pld_upper"]

_BUCKETS = 192
# The grid adds about 1e-5 of epsilon to the upper bound. The lower bound's grid is so fine that it
# loses at most this share.
_RESOLUTION, _DRIFT = 0.005, 8e-5
# The share of delta that the largest losses may take, which then count as unlimited, and the share
# that rounding may take before another tilt is tried.
_CUT, _NEGLIGIBLE = 1e-4, 1e-5

Direction = list[tuple[Pmf, int]]


class Bracket(NamedTuple):
    """Epsilon is between `lower` and `upper`.

    Both allow for the rounding of a Gaussian release's masses and of their composition. The masses
    of Laplace releases and the binomial tails of truncated sampling are taken as dp-accounting and
    SciPy give them.
    """

    lower: float
    upper: float


def pld_bracket(
    event: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    delta: float,
    reserve: float = 0.0,
) -> Bracket:
    """Returns bounds on the epsilon of an event.

    Upper: noise multipliers rounded down to few (see `bucketed`), losses discretised upwards.
    Lower: noise multipliers rounded up; and of the discretised sum L~ of k losses, which differs
    from the true sum L by martingale steps of at most the mesh h, with a drift of at most h^2 / 8,
    ``L~ <= L + r`` but for a probability beta, ``r = k h^2 / 8 + h sqrt(k log(1/beta) / 2)``
    (Hoeffding), so that ``epsilon >= epsilon~(delta + beta) - r``.

    Args:
        event: Gaussians, sampled or not, and Laplace releases.
        relation: the neighbouring relation.
        delta: the target.
        reserve: added to delta for the lower bound, if part of delta was set aside.

    Returns:
        Both bounds; the lower one is 0 if none is known.

    Reference: Koskela, Jalko and Honkela, Computing Tight Differential Privacy Guarantees Using
    FFT, 2020, https://arxiv.org/abs/1906.03049; Gopi, Lee and Wutschitz, Numerical Composition of
    Differential Privacy, 2021, https://arxiv.org/abs/2106.02848, for bounds on both sides;
    Doroshenko et al., Connect the Dots, 2022, https://arxiv.org/abs/2207.04380, for the
    discretisation.
    """
    parts = leaves(event)
    upper, mesh = _upper(parts, relation, delta)
    if upper in (0.0, math.inf) or not _is_tight(parts):
        return Bracket(0.0, upper)
    releases, beta, cut = _releases(parts), delta / 500, delta * _CUT
    spread = math.sqrt(releases * math.log(1 / beta) / 2)
    mesh = min(mesh, _RESOLUTION * upper / spread)
    room = releases * mesh**2 / 8 + mesh * spread
    directions = _directions(parts, relation, mesh, cut, down=False)
    # Noise beyond the cut may be discretised by more than the mesh.
    lower = max(_epsilon(d, mesh, delta + reserve + beta + 2 * cut, lower=True) for d in directions)
    return Bracket(max(0.0, lower - room), upper)


def pld_upper(event: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float) -> float:
    """Returns the upper bound alone, as `pld_bracket` does."""
    return _upper(leaves(event), relation, delta)[0]


def pld_delta(event: dp_accounting.DpEvent, relation: NeighboringRelation, epsilon: float) -> float:
    """Returns an upper bound on the delta of an event at an epsilon."""
    parts = leaves(event)
    guess = _guess(parts, relation, 1e-6)
    if guess == math.inf:
        return 1.0
    mesh, delta = _mesh(guess, _releases(parts)), 1e-9
    while True:
        cut = delta * _CUT
        directions = _directions(parts, relation, mesh, cut, down=True)
        delta = max(_delta(d, mesh, epsilon) for d in directions)
        # The cut must be negligible even if delta turns out smaller than guessed.
        if delta > 1e3 * cut or cut < 1e-100:
            return delta


def _epsilon(parts: Direction, mesh: float, delta: float, *, lower: bool = False) -> float:
    """Returns a bound on the epsilon of one direction."""
    cumulants = Cumulants(parts, mesh)
    tilt = tilt_for_delta(cumulants, delta, mesh)
    for _ in range(3):
        tail = composed(parts, mesh, tilt, cumulants)
        epsilon = tail.epsilon(delta, lower=lower)
        inside = epsilon > tail.losses[0] or tail.losses[0] <= 0
        if epsilon in (0.0, math.inf) or (inside and _is_precise(tail, epsilon, delta)):
            break
        # The tilt of the best bound on delta, where the error is smallest.
        before, tilt = tilt, tilt_for_epsilon(cumulants, epsilon, mesh)
        if abs(tilt - before) <= 0.05 * before:
            break
    return epsilon


def _delta(parts: Direction, mesh: float, epsilon: float) -> float:
    """Returns an upper bound on the delta of one direction."""
    cumulants = Cumulants(parts, mesh)
    tilt = tilt_for_epsilon(cumulants, epsilon, mesh)
    return composed(parts, mesh, tilt, cumulants).delta(epsilon)


def _is_precise(tail: Tail, epsilon: float, delta: float) -> bool:
    return tail.rounding(epsilon) <= _NEGLIGIBLE * delta


def _upper(parts: Leaves, relation: NeighboringRelation, delta: float) -> tuple[float, float]:
    """Returns the upper bound, and the mesh it was found with."""
    epsilon, releases = _guess(parts, relation, delta), _releases(parts)
    if epsilon == math.inf:
        return epsilon, math.inf
    for _ in range(3):
        guess, mesh = epsilon, _mesh(epsilon, releases)
        if parts.others:  # rounded up rather than to both sides, so it needs a finer grid
            mesh = min(mesh, 1e-4)
        directions = _directions(parts, relation, mesh, delta * _CUT, down=True)
        epsilon = max(_epsilon(d, mesh, delta) for d in directions)
        # For few releases the guess can be several times too large, and the mesh with it.
        if epsilon > 0.6 * guess or epsilon == 0:
            break
    return epsilon, mesh


def _mesh(epsilon: float, releases: int) -> float:
    """Returns a mesh h that suits an epsilon: the grid's drift ``k h^2 / 8`` is 1e-5 of it."""
    epsilon = max(epsilon, 1e-3)
    fine = min(_RESOLUTION * epsilon, math.sqrt(_DRIFT * epsilon)) / math.sqrt(releases)
    return max(fine, 1e-6 * epsilon)  # otherwise a huge epsilon would need a huge grid


def _is_tight(parts: Leaves) -> bool:
    """Returns whether the discretised distributions correspond to actual worst cases.

    Truncated sampling has an upper bound only, and dp-accounting discretises other events upwards.
    """
    return not parts.others and all(
        isinstance(g.sampling, PoissonSampling) for g in parts.gaussians
    )


def _releases(parts: Leaves) -> int:
    others = sum(count for _, count in parts.others)
    return max(1, others + sum(int(g.counts.sum()) for g in parts.gaussians))


def _guess(parts: Leaves, relation: NeighboringRelation, delta: float) -> float:
    """Returns an estimate of epsilon, by RDP on a few of the noise multipliers."""
    orders = ORDERS if delta > 1e-12 else TAIL_ORDERS
    total = np.zeros(len(orders))
    for gaussians in parts.gaussians:
        few = bucketed(gaussians, 16, down=True)
        replace = relation is NeighboringRelation.REPLACE_ONE
        sigmas = few.sigmas / 2 if replace else few.sigmas
        total += few.counts @ rdp_poisson(getattr(few.sampling, "rate", 1.0), sigmas, orders)
    for other, count in parts.others:
        total += count * np.minimum(np.array(orders) / 2, 1.0) / _laplace_scale(other, relation)
    return float(dp_accounting.rdp.rdp_privacy_accountant.compute_epsilon(orders, total, delta)[0])


def _directions(
    parts: Leaves, relation: NeighboringRelation, mesh: float, cut: float, *, down: bool
) -> list[Direction]:
    """Returns the discretised losses and their numbers, for removing and for adding an example.

    Args:
        parts: the releases.
        relation: the neighbouring relation; under replace-one there is one direction.
        mesh: the distance of the grid's points.
        cut: the probability that may count as an unlimited loss, over all releases.
        down: whether noise multipliers are rounded down and masses up, for an upper bound.
    """
    directions: list[Direction] = [[], []]
    share = cut / _releases(parts)
    for gaussians in parts.gaussians:
        few = bucketed(_poisson(gaussians), _BUCKETS, down=down)
        for sigma, count in zip(few.sigmas, few.counts, strict=True):
            sampling: Any = few.sampling
            pmfs = release_pmfs(sampling, float(sigma), relation, mesh, share, lower=not down)
            for direction, pmf in zip(directions, pmfs * (2 // len(pmfs)), strict=True):
                direction.append((pmf, int(count)))
    for other, count in parts.others:
        for direction in directions:
            direction.append((_laplace(other, relation, mesh), count))
    same = all(one is two for (one, _), (two, _) in zip(*directions, strict=True))
    return directions[:1] if same else directions


def _laplace(event: dp_accounting.DpEvent, relation: NeighboringRelation, mesh: float) -> Pmf:
    distribution = library.privacy_loss_distribution.from_laplace_mechanism(
        _laplace_scale(event, relation), value_discretization_interval=mesh
    )
    dense = distribution._pmf_remove.to_dense_pmf()
    return Pmf(int(dense._lower_loss), np.asarray(dense._probs), float(dense._infinity_mass))


def _laplace_scale(event: dp_accounting.DpEvent, relation: NeighboringRelation) -> float:
    if not isinstance(event, dp_accounting.LaplaceDpEvent):
        raise ValueError(f"{event!r}: PLD has no distribution for it; expected accountant 'rdp'")
    replace = relation is NeighboringRelation.REPLACE_ONE
    return float(event.noise_multiplier / 2 if replace else event.noise_multiplier)


def _poisson(gaussians: Gaussians) -> Gaussians:
    if isinstance(gaussians.sampling, FixedSampling):
        raise ValueError(f"{gaussians.sampling!r}: PLD has no bound for it; expected 'rdp'")
    return gaussians
