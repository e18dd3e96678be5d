"""Whole method steps on flat float64 gradients g (k, d), with the standard normal draws supplied.

Every step returns (sum of contributions + noise) / B. A padded row (mask 0) adds nothing; a real
row with an entry that is not finite adds a zero gradient and the statistic of norm +inf.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from . import rules, thresholds

Array = NDArray[np.float64]
Groups = Sequence[Sequence[int] | NDArray[np.int_]]

SENSITIVITY = {
    "quantile": 0.5,
    "dc_sgd_p": 1.0,
    "dc_sgd_e": 1.0,
    "private_mean": 1.0,
    "global_z": 0.5,
}


def row_norms(g: Array) -> Array:
    """|g_i|, without overflow or underflow of the squares; +inf for a row that is not finite."""
    finite = np.isfinite(g).all(axis=1)
    rows = np.where(finite[:, None], g, 0.0)
    scale = np.abs(rows).max(axis=1, initial=0.0)
    units = rows / np.where(scale > 0, scale, 1.0)[:, None]
    return np.where(finite, scale * np.sqrt((units**2).sum(axis=1)), np.inf)


def fixed_rule_step(
    g: Array,
    mask: Array,
    rule_name: str,
    c: float | tuple[float, ...],
    sigma: float,
    B: float,
    z_grad: Array,
    groups: Groups | None = None,
    **rule_params: float,
) -> Array:
    """(sum_i w(|g_i|) g_i + sigma bound z) / B."""
    total, bound = _weighted_sum(g, mask, rule_name, c, groups, rule_params)
    return (total + sigma * bound * z_grad) / B


def adaptive_step(
    g: Array,
    mask: Array,
    rule_name: str,
    threshold_kind: str,
    state: Mapping[str, float],
    sigma: float,
    sigma_next: float,
    sigma_s: float,
    B: float,
    z_grad: Array,
    z_stat: Array,
    threshold_params: Mapping[str, float | int | str],
    rule_params: Mapping[str, float] | None = None,
    groups: Groups | None = None,
) -> tuple[Array, dict[str, float]]:
    """One joint release: gradient with sigma_T and state["c"], statistic with sens * sigma_S.

    sigma and sigma_next are the total, accounted ones at t and t + 1. state has "c" (z for
    global_z) and, for dc_sgd_p and dc_sgd_e, "R".
    """
    total, bound = _weighted_sum(g, mask, rule_name, state["c"], groups, rule_params or {})
    update = (total + thresholds.sigma_gradient(sigma, sigma_s) * bound * z_grad) / B
    statistic = _statistic(threshold_kind, row_norms(g[mask != 0]), state, threshold_params)
    noisy = statistic.sum(axis=0) + SENSITIVITY[threshold_kind] * sigma_s * z_stat
    sigma_t_next = thresholds.sigma_gradient(sigma_next, sigma_s)
    return update, _next_state(
        threshold_kind, noisy, state, threshold_params, B, sigma_t_next, sigma_s, g.shape[1]
    )


def adaclip_step(
    g: Array,
    mask: Array,
    state: tuple[Array, Array],
    sigma: float,
    B: float,
    z_grad: Array,
    beta1: float,
    beta2: float,
    h_floor: float,
    h_ceiling: float,
    published: bool = False,
) -> tuple[Array, tuple[Array, Array]]:
    """u_i = clip((g_i - m)/b, 1), b = sqrt(s) sqrt(sum s); g~ = b (sum u_i + sigma z)/B + m.

    v = (g~ - m)^2 - b^2 sigma^2/B^2 with the old m; s^2 <- clamp(beta2 s^2 + (1 - beta2) B v), or
    as published s^2 <- beta2 s^2 + (1 - beta2) clamp(v); m <- beta1 m + (1 - beta1) g~. The state
    is (m, s^2), and the update is g~.
    """
    m, s2 = state
    s = np.sqrt(s2)
    b = np.sqrt(s) * math.sqrt(s.sum())
    u = (_usable(g, mask) - m) / b
    clipped = rules.weight("abadi", row_norms(u), 1.0) @ u
    released = b * (clipped + sigma * z_grad) / B + m
    v = (released - m) ** 2 - b**2 * sigma**2 / B**2
    if published:
        s2 = beta2 * s2 + (1 - beta2) * np.clip(v, h_floor, h_ceiling)
    else:
        s2 = np.clip(beta2 * s2 + (1 - beta2) * B * v, h_floor, h_ceiling)
    return released, (beta1 * m + (1 - beta1) * released, s2)


def psasc_momentum_step(
    grad_at: Callable[[Array], Array],
    iterates: Sequence[Array],
    gamma0: float,
    gamma1: float,
    outer: Array,
    mask: Array,
    c: float,
    r: float,
    s: float,
    sigma: float,
    B: float,
    z_grad: Array,
) -> tuple[Array, Array]:
    """m_i = sum_j gamma0^(k - j) grad f(w_j, x_i); M <- (1 - gamma1) M + noisy sum; M/B, M."""
    newest = len(iterates) - 1
    inner = sum(gamma0 ** (newest - j) * grad_at(w) for j, w in enumerate(iterates))
    total, bound = _weighted_sum(inner, mask, "psasc", c, None, {"r": r, "s": s})
    outer = (1 - gamma1) * outer + total + sigma * bound * z_grad
    return outer / B, outer


def psasc_full_batch_momentum_step(
    g: Array,
    m: Array | None,
    gamma: float,
    mask: Array,
    c: float,
    r: float,
    s: float,
    sigma: float,
    B: float,
    z_grad: Array,
) -> tuple[Array, Array]:
    """m_i <- gamma g_i + (1 - gamma) m_i (m_i <- g_i at first), then PSASC of m_i; the sum/B, m.

    A row that is padded or not finite keeps its m_i (zero at first) and adds nothing.
    """
    usable = _is_usable(g, mask)
    averaged = g if m is None else gamma * g + (1 - gamma) * m
    m = np.where(usable[:, None], averaged, 0.0 if m is None else m)
    total, bound = _weighted_sum(m, usable, "psasc", c, None, {"r": r, "s": s})
    return (total + sigma * bound * z_grad) / B, m


def auto_dp_sgd_as_printed_step(
    g: Array, mask: Array, W: float, sigma_t: float, B: float, z_grad: Array
) -> Array:
    """(sum_i W g_i + sigma_t s_t z) / B, s_t = W sum_i |g_i| / B: no guarantee."""
    rows = _usable(g, mask)
    s_t = W * row_norms(rows).sum() / B
    return (W * rows.sum(axis=0) + sigma_t * s_t * z_grad) / B


def _is_usable(g: Array, mask: Array) -> NDArray[np.bool_]:
    """Rows that are real and finite."""
    return (mask != 0) & np.isfinite(g).all(axis=1)


def _usable(g: Array, mask: Array) -> Array:
    """The rows that are real and finite."""
    return g[_is_usable(g, mask)]


def _weighted_sum(
    g: Array,
    mask: Array,
    rule_name: str,
    c: float | tuple[float, ...],
    groups: Groups | None,
    params: Mapping[str, float],
) -> tuple[Array, float]:
    """Per group, sum_i w(|g_i|; c_g) g_i, and sqrt(sum_g bound_g^2); a scalar c is c/sqrt(G)."""
    rows = _usable(g, mask)
    parts = [np.arange(g.shape[1])] if groups is None else [np.asarray(p) for p in groups]
    cs = c if isinstance(c, tuple) else (c / math.sqrt(len(parts)),) * len(parts)
    total = np.zeros(g.shape[1])
    for part, c_g in zip(parts, cs, strict=True):
        block = rows[:, part]
        total[part] = rules.weight(rule_name, row_norms(block), c_g, **params) @ block
    return total, math.sqrt(sum(rules.bound(rule_name, c_g, **params) ** 2 for c_g in cs))


def _statistic(
    kind: str, norms: Array, state: Mapping[str, float], params: Mapping[str, float | int | str]
) -> Array:
    """The named threshold's statistic of each norm, shape (k, m)."""
    if kind == "quantile":
        return thresholds.quantile_statistic(norms, state["c"])
    if kind == "private_mean":
        return thresholds.private_mean_statistic(norms, state["c"], params["kappa"])
    if kind == "global_z":
        return thresholds.global_z_statistic(norms, state["c"], params["tau"])
    return thresholds.histogram_statistic(norms, state["R"], params["bins"])


def _next_state(
    kind: str,
    noisy: Array,
    state: Mapping[str, float],
    params: Mapping[str, float | int | str],
    B: float,
    sigma_t_next: float,
    sigma_s: float,
    d: int,
) -> dict[str, float]:
    """The named threshold's state after the noisy sum of statistics."""
    c = state["c"]
    if kind == "dc_sgd_p":
        c, R = thresholds.dc_sgd_p_update(c, state["R"], noisy, params["p"])
        return {"c": c, "R": R}
    if kind == "dc_sgd_e":
        negative = params.get("negative", "nonneg")
        c, R = thresholds.dc_sgd_e_update(
            c, state["R"], noisy, sigma_t_next, d, B, negative, sigma_s
        )
        return {"c": c, "R": R}
    limits = params["floor"], params["ceiling"]
    if kind == "quantile":
        c = thresholds.quantile_update(c, noisy, B, params["target"], params["lr"], *limits)
    elif kind == "private_mean":
        c = thresholds.private_mean_update(c, noisy, B, params["alpha"], params["kappa"], *limits)
    else:
        c = thresholds.global_z_update(c, noisy, B, params["eta"], *limits)
    return {"c": c}
