"""The proven bound as float32 keeps it: no example's contribution is longer than its bound.

For every rule of the registry, one row at a time goes through the engine; the norm of what
`weighted_sum` returns is taken in float64 and held against the rule's bound in float64.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.gradients import as_per_example_grads
from tests.registry import RULES

SLACK = 2e-7
THRESHOLDS = np.array([1.0, 0.1, 3.0, 1e-3, 700.0], np.float32)
SIZES = (1, 2, 3, 10, 100, 800, 1856, 3500, 20_000, 200_000)
# How often a row of each size is drawn: a bad case must be looked for where it is cheap to look.
DRAWS = {800: 12, 1856: 12, 3500: 8, 20_000: 2, 200_000: 1}


@cache
def contributions():
    """Returns a jitted function of one row: its contribution under every rule and threshold.

    The loss is ``sum(w x)``, so that the row is its own gradient.
    """
    grads_of = dpjax.per_example_grads(lambda w, x: jnp.sum(w * x))

    @jax.jit
    def run(row):
        grads = grads_of(jnp.zeros_like(row), row[None])
        norms = grads.norms
        weights = jnp.stack(
            [rule.weight(norms, c)[0] for rule in RULES.values() for c in THRESHOLDS]
        )
        return jax.lax.map(lambda w: grads.weighted_sum(w[None]), weights)

    return run


def excess(row):
    """Returns |contribution| / bound - 1 as a table, rule by threshold."""
    sums = np.asarray(contributions()(row), np.float64)
    table = np.sqrt(np.sum(sums * sums, axis=1)).reshape(len(RULES), len(THRESHOLDS))
    exact = THRESHOLDS.astype(np.float64)
    bounds = [np.broadcast_to(rule.bound(exact), exact.shape) for rule in RULES.values()]
    return table / np.stack(bounds) - 1


def normal(rng, d):
    return rng.standard_normal(d)


def heavy_tailed(rng, d):
    return np.clip(rng.standard_cauchy(d), -1e12, 1e12)


def sparse(rng, d):
    return rng.standard_normal(d) * (rng.random(d) < 0.05)


def one_large(rng, d):
    return np.where(np.arange(d) == d // 2, 100.0, rng.standard_normal(d) * 1e-3)


def tiny(rng, d):
    return rng.standard_normal(d) * 1e-15


def huge(rng, d):
    return rng.standard_normal(d) * 1e25


def constant(rng, d):
    return np.full(d, rng.uniform(1, 2) * 2.0 ** rng.integers(-4, 4))


def constant_tiny(rng, d):
    return constant(rng, d) * 1e-15


def constant_huge(rng, d):
    return constant(rng, d) * 1e25


def near_a_threshold(rng, d):
    """Just around a length at which some rule changes: 1, 3 (also global_clip's z) or 700."""
    row = rng.standard_normal(d)
    return (
        row / np.linalg.norm(row) * rng.choice([1.0, 3.0, 700.0]) * (1 + rng.uniform(-3e-7, 1e-7))
    )


def constant_near_a_threshold(rng, d):
    return np.full(d, rng.choice([1.0, 3.0, 700.0]) / np.sqrt(d) * (1 + rng.uniform(-3e-7, 6e-7)))


# Measured on CPU, jax 0.10.2, over 60 draws at each of 33 sizes: up to 5.4e-7 for constant rows
# (d = 4000, auto_v), 2.8e-7 for heavy tails (d = 1600, psac), 2.0e-7 at d >= 4096. The sum of
# squares of a row below 4096 entries is not taken pairwise, and its error is not rounded up.
TOO_SHORT = "the float32 norm comes out up to 5e-7 too small, so that the row exceeds its bound"
EXCEEDS = pytest.mark.xfail(reason=TOO_SHORT)
MAY_EXCEED = pytest.mark.xfail(reason=TOO_SHORT, strict=False)

KINDS = (
    normal,
    sparse,
    one_large,
    tiny,
    huge,
    near_a_threshold,
    pytest.param(heavy_tailed, marks=MAY_EXCEED),
    pytest.param(constant, marks=EXCEEDS),
    pytest.param(constant_tiny, marks=EXCEEDS),
    pytest.param(constant_huge, marks=EXCEEDS),
    pytest.param(constant_near_a_threshold, marks=EXCEEDS),
)


def worst_excess(kind, seed=0):
    """Returns the worst excess of each rule over all draws, and at which size it was."""
    rng = np.random.default_rng(seed)
    found = dict.fromkeys(RULES, (-np.inf, 0))
    for d in SIZES:
        for _ in range(DRAWS.get(d, 4)):
            table = excess(np.asarray(kind(rng, d), np.float32)).max(axis=1)
            for name, value in zip(RULES, table, strict=True):
                found[name] = max(found[name], (float(value), d))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_contribution_exceeds_its_bound(kind):
    worst = worst_excess(kind)
    assert worst["auto_v"][0] > -SLACK  # its bound is attained by every length
    beyond = {name: v for name, v in worst.items() if not v[0] <= SLACK}
    assert not beyond, f"(relative excess, size): {beyond}"


@pytest.mark.xfail(reason="the leaves' squares are added one by one: 3.5e-7 at 50, 1.4e-6 at 200")
def test_no_contribution_over_many_leaves_exceeds_its_bound():
    leaves, rng = 40, np.random.default_rng(0)

    @jax.jit
    def clipped(row):
        grads = as_per_example_grads([row[None]] * leaves)
        return grads.weighted_sum(RULES["auto_v"].weight(grads.norms, 1.0))

    worst = -np.inf
    for kind in (normal, constant):
        for _ in range(100):
            total = np.asarray(clipped(np.asarray(kind(rng, 10), np.float32)), np.float64)
            worst = max(worst, np.linalg.norm(total) - 1)
    assert worst <= SLACK
