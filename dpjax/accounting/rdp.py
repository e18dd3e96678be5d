"""Renyi differential privacy with dp-accounting's orders and conversions, vectorised.

dp-accounting computes one noise multiplier at a time; a schedule has thousands. The sums under
Poisson sampling (Mironov, Talwar, Zhang 2019, https://arxiv.org/abs/1908.10530, sections 3.2 and
3.3) and for batches of fixed size are dp-accounting's, computed for all noise multipliers at once.
"""

import math
from collections.abc import Sequence

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import rdp as library
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from scipy import special

from dpjax.accounting.gaussians import (
    FixedSampling,
    Gaussians,
    PoissonSampling,
    TruncatedSampling,
    leaves,
    releases,
    truncation,
)

__all__ = [
    "ORDERS",
    "TAIL_ORDERS",
    "RdpAccountant",
    "rdp",
    "rdp_delta",
    "rdp_epsilon",
    "rdp_fixed_size",
    "rdp_poisson",
    "truncation_mass",
]

ORDERS: tuple[float, ...] = tuple(library.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
"""dp-accounting's default orders."""

TAIL_ORDERS: tuple[float, ...] = (
    *ORDERS[:-4],
    *range(64, 128, 4),
    *range(128, 256, 8),
    *range(256, 1025, 32),
)
"""The default orders and more beyond 63, which are best for a delta of 1e-15 and less."""


class RdpAccountant(library.RdpAccountant):  # type: ignore[misc]
    """dp-accounting's accountant, which computes all noise multipliers of a schedule at once.

    Divergences of composed releases add up. Other releases, and events that wrap Gaussians
    (`RepeatAndSelectDpEvent`), are left to dp-accounting. Under replace-one the noise multipliers
    in the event are already halved; see `dpjax.accounting.event`. For truncated Poisson sampling
    the divergence is conditional on no batch being full; `truncation_mass` covers the rest.
    """

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> object:
        parts = leaves(event)
        for other, times in parts.others:
            error = super()._maybe_compose(other, count * times, do_compose)
            if error is not None:
                return error
        for gaussians in parts.gaussians if do_compose else ():
            self._rdp += count * (gaussians.counts @ self._one_release(gaussians))
        return None

    def _one_release(self, gaussians: Gaussians) -> np.ndarray:
        sampling, replace = gaussians.sampling, NeighboringRelation.REPLACE_ONE
        replaced = self.neighboring_relation is replace
        if isinstance(sampling, TruncatedSampling) and not replaced:
            return rdp_poisson(sampling.rate, gaussians.sigmas, self._orders)
        if isinstance(sampling, PoissonSampling) and (sampling.rate == 1 or not replaced):
            return rdp_poisson(sampling.rate, gaussians.sigmas, self._orders)
        if isinstance(sampling, FixedSampling) and replaced:
            rate = sampling.size / sampling.dataset_size
            return rdp_fixed_size(rate, gaussians.sigmas, self._orders)
        relation = self.neighboring_relation.name.lower()
        raise ValueError(f"{sampling!r} under {relation}: RDP has no bound for it")


def rdp(
    event: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    orders: Sequence[float] = ORDERS,
) -> np.ndarray:
    """Returns the Renyi divergence of an event at every order.

    >>> rdp(dp_accounting.GaussianDpEvent(2.0), NeighboringRelation.ADD_OR_REMOVE_ONE, [8.0])
    array([1.])

    Reference: Mironov, Renyi Differential Privacy, 2017, https://arxiv.org/abs/1702.07476
    """
    return RdpAccountant(orders, relation).compose(event).rdp


def truncation_mass(event: dp_accounting.DpEvent) -> float:
    """Returns a bound on the probability that a truncated batch was full without the example.

    The pair of outputs that dominates a step under truncated Poisson sampling is a mixture: with
    probability p that of a full batch, and else that of Poisson sampling; p depends on no example,
    and both outputs may show which it was. So delta is at most that of Poisson sampling plus the
    sum of p over all steps.

    Raises:
        ValueError: for a random number of truncated runs, for which this does not hold.

    Reference: https://arxiv.org/abs/2508.15089, as in dp-accounting's PLD.
    """
    gaussians, others = releases(event)
    for other, _ in others:
        if isinstance(other, RepeatAndSelectDpEvent) and truncation_mass(other.event) > 0:
            raise ValueError(
                "TruncatedPoisson in a search with a random number of runs: no bound is known; "
                "expected Poisson sampling, or grid_composition"
            )
    return sum(float(each.counts.sum()) * truncation(each.sampling) for each in gaussians)


def rdp_epsilon(
    event: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    delta: float,
    orders: Sequence[float] = ORDERS,
) -> float:
    """Returns the smallest epsilon over the orders, by dp-accounting's conversion.

    Raises:
        ValueError: if truncation takes half of delta or more.

    Reference: Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy, 2020,
    https://arxiv.org/abs/2004.00010, proposition 12.
    """
    truncated = truncation_mass(event)
    if not truncated < delta / 2:
        raise ValueError(
            f"delta = {delta:g} with accountant = 'rdp': a batch is truncated with probability "
            f"{truncated:.2g} over these steps, expected less than half of delta: a larger "
            "max_size, or accountant = 'pld'"
        )
    values = rdp(event, relation, orders)
    left = delta - truncated
    return float(library.rdp_privacy_accountant.compute_epsilon(orders, values, left)[0])


def rdp_delta(
    event: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    epsilon: float,
    orders: Sequence[float] = ORDERS,
) -> float:
    """Returns the smallest delta over the orders, by dp-accounting's conversion."""
    values = rdp(event, relation, orders)
    delta = float(library.rdp_privacy_accountant.compute_delta(orders, values, epsilon)[0])
    return min(1.0, delta + truncation_mass(event))


# dp-accounting's limits: an order whose series has not converged by then is skipped.
_TERMS, _CONVERGED = 1000, 30.0
_BLOCK = 40


def rdp_poisson(
    rate: float, sigmas: np.ndarray, orders: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Returns the Renyi divergence of one release, for every noise multiplier and order.

    ``log A_alpha / (alpha - 1)`` with, for integer alpha,
    ``A_alpha = sum_i binom(alpha, i) (1 - q)^(alpha - i) q^i exp((i^2 - i) / (2 sigma^2))``.

    Args:
        rate: q, in (0, 1].
        sigmas: (S,) noise multipliers.
        orders: (A,) orders, > 1.

    Returns:
        (S, A) divergences; +inf where the series did not converge.

    >>> float(rdp_poisson(1.0, np.array([2.0]), [8.0])[0, 0])  # alpha / (2 sigma^2)
    1.0

    Reference: Mironov, Talwar and Zhang, Renyi Differential Privacy of the Sampled Gaussian
    Mechanism, 2019, https://arxiv.org/abs/1908.10530
    """
    orders = np.asarray(orders, np.float64)
    if rate == 1.0:
        return orders / (2 * sigmas[:, None] ** 2)
    log_a = np.empty((sigmas.size, orders.size))
    whole = orders == np.round(orders)
    for column in np.flatnonzero(whole):
        log_a[:, column] = _log_a_whole(rate, sigmas, int(orders[column]))
    # Orders with the same fraction share their error functions.
    fractions = np.round(orders - np.floor(orders), 9)
    for fraction in np.unique(fractions[~whole]):
        columns = np.flatnonzero(fractions == fraction)
        for rows in np.array_split(np.arange(sigmas.size), math.ceil(sigmas.size / 256)):
            part = _log_a_fractional(rate, sigmas[rows], orders[columns])
            log_a[np.ix_(rows, columns)] = part
    # A tiny divergence is lost in rounding, but its leading term, binom(alpha, 2) q^2 E (L - 1)^2,
    # is not.
    spread = rate**2 * np.expm1(np.minimum(sigmas**-2.0, 600.0))[:, None]
    leading = np.log1p(orders * (orders - 1) / 2 * spread)
    return np.where(log_a < 1e-12, np.maximum(log_a, leading), log_a) / (orders - 1)


def _log_a_whole(rate: float, sigmas: np.ndarray, order: int) -> np.ndarray:
    i = np.arange(order + 1.0)
    log_terms = _log_binom(order, i) + i * math.log(rate) + (order - i) * math.log1p(-rate)
    return special.logsumexp(log_terms + (i * i - i) / (2 * sigmas[:, None] ** 2), axis=1)


def _log_a_fractional(rate: float, sigmas: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Sums both series of section 3.3 in blocks of terms, until all have converged."""
    log_a = np.full((sigmas.size, orders.size), np.inf)
    total = np.full_like(log_a, -np.inf)
    previous = np.full((2, sigmas.size, orders.size), -np.inf)
    waiting = np.arange(sigmas.size)
    for first in range(0, _TERMS, _BLOCK):
        terms = _log_terms(rate, sigmas[waiting], orders, first)
        so_far = np.logaddexp.accumulate(
            np.concatenate([total[None, waiting], np.logaddexp(*terms)]), axis=0
        )[1:]
        falls = np.diff(np.concatenate([previous[:, None, waiting], terms], axis=1), axis=1) < 0
        small = terms.max(axis=0) < so_far - _CONVERGED
        done = falls.all(axis=0) & small
        last = np.take_along_axis(so_far, done.argmax(axis=0)[None], axis=0)[0]
        new = done.any(axis=0) & np.isinf(log_a[waiting])
        log_a[waiting] = np.where(new, last, log_a[waiting])
        total[waiting], previous[:, waiting] = so_far[-1], terms[:, -1]
        waiting = waiting[np.isinf(log_a[waiting]).any(axis=1)]
        if not waiting.size:
            break
    return log_a


def _log_terms(rate: float, sigmas: np.ndarray, orders: np.ndarray, first: int) -> np.ndarray:
    """Returns (2, block, S, A) logarithms of the terms of the two series, from term `first`."""
    i = np.arange(first, first + _BLOCK, dtype=np.float64)[:, None, None]
    sigma = sigmas[None, :, None]
    j = orders - i
    split = sigma**2 * math.log(1 / rate - 1) + 0.5
    log_q, log_p = math.log(rate), math.log1p(-rate)
    log_binom = _log_binom(orders, i)
    below = special.log_ndtr((split - i) / sigma)
    # j takes few distinct values: the orders differ by whole numbers, like the terms.
    values, where = np.unique(np.round(j, 9), return_inverse=True)
    above = special.log_ndtr((values - split[0]) / sigmas[:, None])
    above = np.moveaxis(above[:, where.reshape(j.shape[0], orders.size)], 0, 1)
    return np.stack(
        [
            log_binom + i * log_q + j * log_p + (i * i - i) / (2 * sigma**2) + below,
            log_binom + j * log_q + i * log_p + (j * j - j) / (2 * sigma**2) + above,
        ]
    )


def _log_binom(n: np.ndarray | float, k: np.ndarray) -> np.ndarray:
    """Returns ``log |binom(n, k)|``: absolute values, as in dp-accounting, bound from above."""
    return special.gammaln(n + 1.0) - special.gammaln(k + 1) - special.gammaln(n - k + 1)


# Beyond this order dp-accounting replaces the forward differences by a simpler, larger bound.
_LAST_DIFFERENCES = 256


def rdp_fixed_size(
    rate: float, sigmas: np.ndarray, orders: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Returns the Renyi divergence of one release, for every noise multiplier and order.

    Bounds ``log A_alpha / (alpha - 1)`` for whole alpha by theorem 27 of Wang, Balle and
    Kasiviswanathan; between whole orders ``log A`` is convex, and so below its chord.

    Args:
        rate: batch size over data set size, in (0, 1).
        sigmas: (S,) noise multipliers: noise over the largest *change* of the sum, which is two
            bounds under replace-one.
        orders: (A,) orders, > 1.

    Returns:
        (S, A) divergences.

    Reference: Wang, Balle and Kasiviswanathan, Subsampled Renyi Differential Privacy and Analytical
    Moments Accountant, 2019, https://arxiv.org/abs/1808.00087
    """
    orders = np.asarray(orders, np.float64)
    below, above = np.floor(orders).astype(int), np.ceil(orders).astype(int)
    whole = np.unique(np.concatenate([below, above]))
    log_a = np.concatenate(
        [_log_a(rate, part, whole) for part in np.array_split(sigmas, -(-sigmas.size // 128))]
    )
    low, high = log_a[:, np.searchsorted(whole, below)], log_a[:, np.searchsorted(whole, above)]
    return (low + (orders - below) * (high - low)) / (orders - 1)


def _log_a(rate: float, sigmas: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Returns (S, A) logarithms of the bound on ``A_alpha`` at whole orders."""
    differenced = orders[orders <= _LAST_DIFFERENCES]
    terms = _fixed_log_terms(rate, sigmas, int(differenced.max(initial=2)), int(orders.max()))
    log_a = np.zeros((sigmas.size, orders.size))
    for column, order in enumerate(orders):
        if order >= 2:
            i = np.arange(2, order + 1)
            exact = order <= _LAST_DIFFERENCES
            used = terms[0 if exact else 1][:, : order - 1] + _log_binom(order, i)
            log_a[:, column] = np.logaddexp(0.0, special.logsumexp(used, axis=1))
    return log_a


def _fixed_log_terms(rate: float, sigmas: np.ndarray, last: int, longest: int) -> list[np.ndarray]:
    """Returns the terms i = 2, 3, ... without their binomials: with differences, and without."""
    i = np.arange(2, longest + 1)
    half = 1 / (2 * sigmas[:, None] ** 2)
    simple = math.log(2) + (i - 1) * i * half
    second = 2 * half[:, 0]  # the Gaussian's own divergence at order 2
    simple[:, 0] = np.minimum(
        math.log(4) + second + np.log(-np.expm1(-second)), second + math.log(2)
    )
    differences = _log_differences(half, last)
    i_last = np.arange(3, last + 1)
    tight = simple[:, : last - 1].copy()
    paired = 0.5 * (
        differences[:, 2 * (i_last // 2) - 1] + differences[:, 2 * (-(-i_last // 2)) - 1]
    )
    tight[:, 1:] = np.minimum(tight[:, 1:], math.log(4) + paired)
    return [tight + i[: last - 1] * math.log(rate), simple + i * math.log(rate)]


def _log_differences(half: np.ndarray, last: int) -> np.ndarray:
    """Returns (S, last + 1) ``log |D^k f(-1)|``, k = 1, 2, ..., of ``f(x) = e^(x (x+1) half)``."""
    x = np.arange(-1.0, last + 2)
    logs, positive = x * (x + 1) * half, np.ones((half.size, x.size), bool)
    found = []
    for _ in range(last + 1):
        logs, positive = _difference(logs, positive)
        found.append(logs[:, 0])
    return np.stack(found, axis=1)


def _difference(logs: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the neighbours' differences of numbers given by logarithm and sign."""
    low, high = logs[:, :-1], logs[:, 1:]
    same = positive[:, :-1] == positive[:, 1:]
    with np.errstate(divide="ignore", invalid="ignore"):  # equal neighbours: log 0
        apart = np.maximum(low, high) + np.log1p(-np.exp(-np.abs(high - low)))
    apart = np.where(high == low, -np.inf, apart)
    together = np.logaddexp(low, high)
    sign = np.where(same, positive[:, 1:] == (high >= low), positive[:, 1:])
    return np.where(same, apart, together), sign
