"""Privacy loss distributions: the tight accountant, for schedules too, with both its bounds."""

import math
from typing import NamedTuple

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import pld as library
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from dpjax.accounting.buckets import bucketed
from dpjax.accounting.leaves import Fixed, Gaussians, Leaves, Poisson, leaves
from dpjax.accounting.pld_compose import ROUNDING, composed
from dpjax.accounting.pld_step import release_pmfs
from dpjax.accounting.rdp import ORDERS
from dpjax.accounting.rdp_poisson import rdp_poisson

__all__ = ["Bracket", "pld_bracket", "pld_delta", "pld_upper"]

_BUCKETS = 192
# The upper bound pays some 1e-5 of epsilon for its grid; the lower bound's is so fine that it pays
# at most this share.
_RESOLUTION, _DRIFT = 0.005, 8e-5


class Bracket(NamedTuple):
    """Epsilon lies between `lower` and `upper`, both proven up to rounding."""

    lower: float
    upper: float


def pld_bracket(
    event: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float
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
        delta: the target; one so small that the transforms' rounding would show is refused.

    Returns:
        Both bounds; a lower one of 0 where none is known.
    """
    parts = leaves(event)
    upper, mesh = _upper(parts, relation, delta)
    if upper in (0.0, math.inf) or not _is_tight(parts):
        return Bracket(0.0, upper)
    releases, beta, tail = _releases(parts), delta / 500, delta * 1e-6
    spread = math.sqrt(releases * math.log(1 / beta) / 2)
    mesh = min(mesh, _RESOLUTION * upper / spread)
    room = releases * mesh**2 / 8 + mesh * spread
    distribution = _distribution(parts, relation, mesh, tail, down=False)
    # What rounding may have added comes off as well.
    rounding = 2 * ROUNDING * releases
    lower = float(distribution.get_epsilon_for_delta(delta + beta + tail + rounding))
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
    mesh = _mesh(guess, _releases(parts))
    distribution = _distribution(parts, relation, mesh, 1e-15, down=True)
    return float(distribution.get_delta_for_epsilon(epsilon))


def _upper(parts: Leaves, relation: NeighboringRelation, delta: float) -> tuple[float, float]:
    """Returns the upper bound, and the mesh it was found with."""
    epsilon, releases = _guess(parts, relation, delta), _releases(parts)
    if not delta > 20 * ROUNDING * releases:
        raise ValueError(
            f"delta = {delta:g} with accountant = 'pld': expected more than "
            f"{20 * ROUNDING * releases:.2g} for {releases} releases, or accountant = 'rdp' with "
            "orders = dpjax.accounting.TAIL_ORDERS"
        )
    if epsilon == math.inf:
        return epsilon, math.inf
    for _ in range(3):
        guess, mesh = epsilon, _mesh(epsilon, releases)
        if parts.others:  # rounded up, not to both sides: it takes a finer grid
            mesh = min(mesh, 1e-4)
        distribution = _distribution(parts, relation, mesh, delta * 1e-6, down=True)
        epsilon = float(distribution.get_epsilon_for_delta(delta))
        # For few releases the guess can be several times too large, and the mesh with it.
        if epsilon > 0.6 * guess or epsilon == 0:
            break
    return epsilon, mesh


def _mesh(epsilon: float, releases: int) -> float:
    """Returns a mesh h that suits an epsilon: the grid's drift ``k h^2 / 8`` is 1e-5 of it."""
    epsilon = max(epsilon, 1e-3)
    fine = min(_RESOLUTION * epsilon, math.sqrt(_DRIFT * epsilon)) / math.sqrt(releases)
    return max(fine, 1e-6 * epsilon)  # or an enormous epsilon would need an enormous grid


def _is_tight(parts: Leaves) -> bool:
    """Whether the discretised distributions stand for worst cases that do exist.

    Truncated sampling has an upper bound only, and dp-accounting discretises other events upwards.
    """
    return not parts.others and all(isinstance(g.sampling, Poisson) for g in parts.gaussians)


def _releases(parts: Leaves) -> int:
    others = sum(count for _, count in parts.others)
    return max(1, others + sum(int(g.counts.sum()) for g in parts.gaussians))


def _guess(parts: Leaves, relation: NeighboringRelation, delta: float) -> float:
    """Returns about epsilon, by RDP on a few of the noise multipliers."""
    total = np.zeros(len(ORDERS))
    for gaussians in parts.gaussians:
        few = bucketed(gaussians, 16, down=True)
        replace = relation is NeighboringRelation.REPLACE_ONE
        sigmas = few.sigmas / 2 if replace else few.sigmas
        total += few.counts @ rdp_poisson(getattr(few.sampling, "rate", 1.0), sigmas, ORDERS)
    for other, count in parts.others:
        total += count * np.minimum(np.array(ORDERS) / 2, 1.0) / _laplace_scale(other, relation)
    return float(dp_accounting.rdp.rdp_privacy_accountant.compute_epsilon(ORDERS, total, delta)[0])


def _distribution(
    parts: Leaves,
    relation: NeighboringRelation,
    mesh: float,
    tail_mass: float,
    *,
    down: bool,
) -> PrivacyLossDistribution:
    """Returns dp-accounting's distribution of the whole event."""
    directions: list[list] = [[], []]
    for gaussians in parts.gaussians:
        few = bucketed(_poisson(gaussians), _BUCKETS, down=down)
        for sigma, count in zip(few.sigmas, few.counts, strict=True):
            pmfs = release_pmfs(few.sampling, float(sigma), relation, mesh)  # type: ignore[arg-type]
            for direction, pmf in zip(directions, pmfs * (2 // len(pmfs)), strict=True):
                direction.append((pmf, int(count)))
    whole = library.privacy_loss_distribution.identity(mesh)
    if parts.gaussians:
        whole = PrivacyLossDistribution(*(composed(d, mesh, tail_mass) for d in directions))
    for other, count in parts.others:
        whole = whole.compose(_laplace(other, relation, mesh).self_compose(count), tail_mass)
    return whole


def _laplace(
    event: dp_accounting.DpEvent, relation: NeighboringRelation, mesh: float
) -> PrivacyLossDistribution:
    return library.privacy_loss_distribution.from_laplace_mechanism(
        _laplace_scale(event, relation), value_discretization_interval=mesh
    )


def _laplace_scale(event: dp_accounting.DpEvent, relation: NeighboringRelation) -> float:
    if not isinstance(event, dp_accounting.LaplaceDpEvent):
        raise ValueError(f"{event!r}: PLD has no distribution for it; expected accountant 'rdp'")
    replace = relation is NeighboringRelation.REPLACE_ONE
    return float(event.noise_multiplier / 2 if replace else event.noise_multiplier)


def _poisson(gaussians: Gaussians) -> Gaussians:
    if isinstance(gaussians.sampling, Fixed):
        raise ValueError(f"{gaussians.sampling!r}: PLD has no bound for it; expected 'rdp'")
    return gaussians
