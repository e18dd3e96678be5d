"""Renyi divergences under batches of fixed size, for many noise multipliers at once.

dp-accounting's own bound, laid out over arrays: there one noise multiplier takes a quarter of a
second, since every order works out its forward differences anew.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

__all__ = ["rdp_fixed_size"]

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

    Reference: Wang, Balle, Kasiviswanathan, Subsampled Renyi Differential Privacy and Analytical
    Moments Accountant, 2019.
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
    terms = _log_terms(rate, sigmas, int(differenced.max(initial=2)), int(orders.max()))
    log_a = np.zeros((sigmas.size, orders.size))
    for column, order in enumerate(orders):
        if order >= 2:
            i = np.arange(2, order + 1)
            exact = order <= _LAST_DIFFERENCES
            used = terms[0 if exact else 1][:, : order - 1] + _log_binom(order, i)
            log_a[:, column] = np.logaddexp(0.0, special.logsumexp(used, axis=1))
    return log_a


def _log_terms(rate: float, sigmas: np.ndarray, last: int, longest: int) -> list[np.ndarray]:
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


def _log_binom(n: int, k: np.ndarray) -> np.ndarray:
    return special.gammaln(n + 1.0) - special.gammaln(k + 1.0) - special.gammaln(n - k + 1.0)
