"""Thresholds from a private statistic: s_i per example, and the update from their noisy sum.

A norm that is not finite always counts as +inf. `hist` and `noisy_sum` already hold the noise.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

C_MIN, C_MAX = 1e-8, 1e8
MAX_ROUNDS = 64


def sigma_gradient(sigma: float, sigma_s: float) -> float:
    """sigma_T = (sigma^-2 - sigma_S^-2)^(-1/2): what the statistic leaves for the gradient."""
    return 1.0 / math.sqrt(sigma**-2 - sigma_s**-2)


def sigma_h(sigma: float) -> float:
    """DC-SGD's histogram noise: 5, from sigma = 2 on 8, above sigma = 3 12."""
    if sigma > 3:
        return 12.0
    return 8.0 if sigma >= 2 else 5.0


def quantile_statistic(norms: ArrayLike, c: float) -> Array:
    """[n <= C] - 1/2, shape (k, 1)."""
    return np.where(np.asarray(norms) <= c, 0.5, -0.5)[:, None]


def quantile_update(
    c: float,
    noisy_sum: ArrayLike,
    B: float,
    target: float,
    lr: float,
    floor: float,
    ceiling: float,
) -> float:
    """C exp(-eta (b - target)), b = noisy_sum/B + 1/2 in [0, 1]; C in [floor, ceiling]."""
    return _clamp(c * math.exp(-lr * (_noisy_fraction(noisy_sum, B) - target)), floor, ceiling)


def histogram_statistic(norms: ArrayLike, R: float, bins: int) -> Array:
    """One-hot of min(b - 1, floor(b n / R)), shape (k, bins)."""
    norms = np.asarray(norms, dtype=np.float64)
    inside = np.where(norms < R, norms, R)
    index = np.minimum(np.floor(bins * inside / R), bins - 1)
    return np.eye(bins)[index.astype(int)]


def dc_sgd_p_update(
    c: float, R: float, hist: ArrayLike, p: float, floor: float = C_MIN, ceiling: float = C_MAX
) -> tuple[float, float]:
    """C = midpoint of the first bin where cumsum(H) >= p S', R = 2C; S' <= 0 keeps both."""
    hist = np.asarray(hist, dtype=np.float64)
    total = hist.sum()
    if total <= 0:
        return c, R
    reached = np.flatnonzero(np.cumsum(hist) >= p * total)
    index = reached[0] if reached.size else hist.size - 1
    c = _clamp((index + 0.5) * R / hist.size, floor, ceiling)
    return c, 2 * c


def dc_sgd_e_update(
    c: float,
    R: float,
    hist: ArrayLike,
    sigma_t_next: float,
    d: int,
    B: float,
    negative: str = "nonneg",
    sigma_h: float | None = None,
) -> tuple[float, float]:
    """C = argmin of the expected squared error, R by the range rule; S' <= 0 keeps both.

    sigma_t_next is sigma_T(t + 1), the gradient's noise multiplier; sigma_h is for "threshold".
    """
    hist = np.asarray(hist, dtype=np.float64)
    total = hist.sum()
    if total <= 0:
        return c, R
    counts = _error_counts(hist, negative, sigma_h)
    if counts.any():
        c = _search(c, R, counts, total, sigma_t_next**2 * d / B**2)
    return c, _next_range(R, hist, total)


def private_mean_statistic(norms: ArrayLike, c: float, kappa: float) -> Array:
    """min(n, kappa C) / (kappa C), shape (k, 1)."""
    norms = np.asarray(norms, dtype=np.float64)
    cap = kappa * c
    return (np.where(norms < cap, norms, cap) / cap)[:, None]


def private_mean_update(
    c: float,
    noisy_sum: ArrayLike,
    B: float,
    alpha: float,
    kappa: float,
    floor: float,
    ceiling: float,
) -> float:
    """C = alpha * fraction * kappa C, fraction = min(noisy_sum/B, 1); fraction <= 0 keeps C."""
    fraction = min(np.asarray(noisy_sum).item() / B, 1.0)
    return c if fraction <= 0 else _clamp(alpha * fraction * kappa * c, floor, ceiling)


def global_z_statistic(norms: ArrayLike, z: float, tau: float) -> Array:
    """[n > tau z] - 1/2, shape (k, 1)."""
    return np.where(np.asarray(norms) <= tau * z, -0.5, 0.5)[:, None]


def global_z_update(
    z: float, noisy_sum: ArrayLike, B: float, eta: float, floor: float, ceiling: float
) -> float:
    """z exp(-eta + a), a = noisy_sum/B + 1/2 in [0, 1]; z in [floor, ceiling]."""
    return _clamp(z * math.exp(-eta + _noisy_fraction(noisy_sum, B)), floor, ceiling)


def _clamp(x: float, low: float, high: float) -> float:
    """min(max(x, low), high)."""
    return float(min(max(x, low), high))


def _noisy_fraction(noisy_sum: ArrayLike, B: float) -> float:
    """noisy_sum/B + 1/2, clamped to [0, 1]: undoes the recentring of a bit."""
    return _clamp(np.asarray(noisy_sum).item() / B + 0.5, 0.0, 1.0)


def _error_counts(hist: Array, negative: str, sigma_h: float | None) -> Array:
    """The bins that enter the error: raw, max(H, 0), or H where H >= 2 sigma_H else 0."""
    if negative == "threshold":
        return np.where(hist < 2 * sigma_h, 0.0, hist)
    return {"nonneg": np.maximum(hist, 0.0), "raw": hist}[negative]


def _search(c: float, R: float, counts: Array, total: float, noise: float) -> float:
    """Least noise c'^2 + sum_k H_k max(m_k - c', 0)^2 / S' over c' = c i/10, i = 1..20.

    Ties go to the smaller; i = 1 or 20 starts another round from there.
    """
    midpoints = (np.arange(counts.size) + 0.5) * R / counts.size
    for _ in range(MAX_ROUNDS):
        candidates = c * np.arange(1, 21) / 10
        excess = np.maximum(midpoints[None, :] - candidates[:, None], 0.0)
        best = int(np.argmin(noise * candidates**2 + excess**2 @ counts / total))
        c = _clamp(candidates[best], C_MIN, C_MAX)
        if best not in (0, 19):
            break
    return c


def _next_range(R: float, hist: Array, total: float) -> float:
    """2R if the last bin holds S'/2 or more; R/2 if the upper half holds S'/b or less; else R."""
    if hist[-1] >= total / 2:
        return 2 * R
    return R / 2 if hist[hist.size // 2 :].sum() <= total / hist.size else R
