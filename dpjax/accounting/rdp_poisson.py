"""Renyi divergences of the Poisson-sampled Gaussian, for many noise multipliers at once.

dp-accounting computes one noise multiplier at a time; a schedule has thousands. The sums here are
its own (Mironov, Talwar, Zhang 2019, sections 3.2 and 3.3), laid out over arrays.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

__all__ = ["rdp_poisson"]

# dp-accounting's limits: a series that has not converged by then leaves its order out.
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

    Reference: Mironov, Talwar, Zhang, Renyi Differential Privacy of the Sampled Gaussian Mechanism.
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
    # A tiny divergence drowns in rounding; its leading term, binom(alpha, 2) q^2 E (L - 1)^2, does
    # not.
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
