"""The contract of rules and thresholds, as checks that a rule written elsewhere can call too."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._record import Record
from dpjax.gradients import as_per_example_grads
from dpjax.rules import Rule
from dpjax.thresholds import Threshold, ThresholdContext
from dpjax.thresholds.base import CEILING, FLOOR

__all__ = ["SLACK", "ContractViolation", "check_rule", "check_threshold", "hostile_norms"]

SLACK = 2e-7
"""How far float32 may carry a contribution beyond its bound, relatively."""


class ContractViolation(AssertionError):
    """A rule or a threshold does not keep what the privacy proof relies on."""


def check_rule(
    rule: Rule, thresholds: tuple[float, ...] = (FLOOR, 1e-3, 1.0, 50.0, CEILING)
) -> None:
    """Holds a rule to its contract; raises `ContractViolation` naming what is broken.

    Checked: frozen and serialisable; weights finite and not negative for every norm (0, subnormal,
    huge, infinite) and 0 for +inf; ``weight * norm <= bound (1 + SLACK)`` in float64; jit changes
    nothing; groups broadcast; the sum over a batch equals a loop.

    Args:
        rule: the rule.
        thresholds: values of c to try.

    Example:
        >>> import dpjax
        >>> check_rule(dpjax.rules.auto_s())
    """
    _check_record(rule)
    norms = hostile_norms()
    for c in thresholds:
        bound = float(rule.bound(c))
        _require(math.isfinite(bound) and bound > 0, rule, f"bound({c}) is {bound}")
        eager, jitted = rule.weight(norms, c), jax.jit(rule.weight)(norms, c)
        for weights in (eager, jitted):
            _check_weights(rule, norms, np.asarray(weights, np.float64), c, bound)
        same = np.allclose(eager, jitted, rtol=1e-5, atol=0)
        _require(same, rule, f"jit changes a weight at c = {c}")
    _check_groups(rule)
    _check_batch_sum(rule)


def check_threshold(
    threshold: Threshold, sigma: float = 1.0, expected_batch_size: float = 256.0
) -> None:
    """Holds an adaptive threshold to its contract; raises `ContractViolation`.

    Checked: frozen and serialisable; sigma_S above sigma; every statistic, also of hostile norms,
    finite and within the sensitivity; after any noisy sum (0, huge, negative, infinite, NaN) the
    threshold is finite and positive and the state keeps its shapes and dtypes; jit changes nothing.

    Args:
        threshold: the adaptive threshold.
        sigma: the total noise multiplier to try it with.
        expected_batch_size: B.

    Example:
        >>> import dpjax
        >>> check_threshold(dpjax.thresholds.quantile(target=0.5))
    """
    _check_record(threshold)
    sigma_s = threshold.sigma_statistic(sigma, expected_batch_size)
    ok = sigma_s is not None and math.isfinite(sigma_s) and sigma_s > sigma
    _require(ok, threshold, f"sigma_statistic({sigma}, {expected_batch_size}) is {sigma_s}")
    context = ThresholdContext(expected_batch_size, 1000, jnp.float32(sigma), float(sigma_s or 0))
    state = threshold.init()
    width = _check_statistic(threshold, state)
    jitted_update = jax.jit(threshold.update)
    for size in (0.0, 1.0, -1.0, 256.0, -256.0, 1e6, -1e6, 1e30, -1e30, np.inf, -np.inf, np.nan):
        for pattern in (np.ones(width), np.eye(width)[0], np.eye(width)[-1]):
            noisy = jnp.asarray(np.where(pattern > 0, size, 0.0), jnp.float32)
            moved = threshold.update(state, noisy, context)
            _check_state(threshold, state, moved, f"a noisy sum of {size}")
            _check_statistic(threshold, moved)
            jitted = jitted_update(state, noisy, context)
            same = np.allclose(moved.threshold, jitted.threshold, rtol=1e-6)
            _require(same, threshold, f"jit changes the update for a noisy sum of {size}")


def hostile_norms() -> jax.Array:
    """Returns norms on a log grid with 0, subnormals and the largest float; +inf comes last."""
    grid = np.logspace(-37, 38, 1501)
    special = [0.0, 1e-45, 1e-40, float(np.finfo(np.float32).max)]
    return jnp.asarray([*special, *grid, np.inf], jnp.float32)


def _require(condition: bool, record: Record, what: str) -> None:
    if not condition:
        raise ContractViolation(f"{record!r}: {what}")


def _check_record(record: Record) -> None:
    declared = getattr(type(record), "__dataclass_params__", None)
    _require(getattr(declared, "frozen", False), record, "is no frozen dataclass")
    back = type(record).from_plain(record.to_plain())
    _require(back == record, record, "does not survive to_plain and from_plain")


def _check_weights(
    rule: Rule, norms: jax.Array, weights: np.ndarray, c: float, bound: float
) -> None:
    _require(bool(np.all(np.isfinite(weights))), rule, f"a weight is not finite at c = {c}")
    _require(bool(np.all(weights >= 0)), rule, f"a weight is negative at c = {c}")
    _require(weights[-1] == 0, rule, f"weight(inf, {c}) is {weights[-1]}, not 0")
    length = weights[:-1] * np.asarray(norms[:-1], np.float64)
    worst = int(np.argmax(length))
    _require(
        bool(length[worst] <= bound * (1 + SLACK)),
        rule,
        f"weight * norm is {length[worst]:.9g} at norm {norms[worst]:.6g}, beyond {bound:.9g}",
    )


def _check_groups(rule: Rule) -> None:
    norms = jnp.asarray([[0.1, 2.0], [5.0, 0.0]])
    c = jnp.asarray([0.5, 1.5])
    expected = np.asarray([[rule.weight(n, c[g]) for g, n in enumerate(row)] for row in norms])
    _require(np.allclose(rule.weight(norms, c), expected), rule, "groups do not broadcast")
    bounds = np.broadcast_to(np.asarray(rule.bound(c)), (2,))
    _require(np.allclose(bounds, [rule.bound(x) for x in c]), rule, "bound does not broadcast")


def _check_batch_sum(rule: Rule) -> None:
    rows = np.random.default_rng(0).normal(size=(16, 5)) * np.logspace(-3, 3, 16)[:, None]
    rows = rows.astype(np.float32)
    sums = as_per_example_grads(jnp.asarray(rows)).aggregate(lambda n: (rule.weight(n, 1.0), ()))
    one_by_one = [
        float(rule.weight(jnp.float32(np.linalg.norm(row.astype(np.float64))), 1.0)) * row
        for row in rows
    ]
    same = np.allclose(sums.gradient.hi, np.sum(one_by_one, axis=0), rtol=1e-5, atol=1e-5)
    _require(same, rule, "the sum over a batch differs from a loop")


def _check_statistic(threshold: Threshold, state: Any) -> int:
    """Checks the statistics of hostile norms; returns their width m."""
    norms = hostile_norms()
    rows = np.asarray(threshold.statistic(norms, state), np.float64)
    _require(rows.ndim == 2 and rows.shape[0] == norms.size, threshold, "statistic is not (k, m)")
    _require(bool(np.all(np.isfinite(rows))), threshold, "a statistic is not finite")
    alone = [threshold.statistic(norms[i : i + 1], state)[0] for i in range(0, norms.size, 97)]
    same = np.allclose(alone, rows[::97], rtol=1e-6, atol=1e-6)
    _require(same, threshold, "an example's statistic depends on the others'")
    longest = float(np.linalg.norm(rows, axis=1).max())
    within = longest <= threshold.sensitivity * (1 + SLACK)
    _require(within, threshold, f"a statistic is {longest:.9g} long, beyond the sensitivity")
    return rows.shape[1]


def _check_state(threshold: Threshold, before: Any, after: Any, cause: str) -> None:
    kept = jax.tree.map(lambda x, y: x.shape == y.shape and x.dtype == y.dtype, before, after)
    _require(all(jax.tree.leaves(kept)), threshold, f"the state changes its shape after {cause}")
    c = float(after.threshold)
    _require(math.isfinite(c) and c > 0, threshold, f"the threshold is {c} after {cause}")
