"""The proven bound as float32 keeps it: no example's contribution is longer than its bound.

One row at a time goes through the engine and `clipped_sum`, which is what `privatize` runs; the
norm of the sum is taken in float64 and held against the rule's bound in float64.
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
SIZES = (1, 2, 3, 10, 100, 800, 1856, 4095, 20_000, 200_000)
# How often a row of each size is drawn: a bad case must be looked for where it is cheap to look.
DRAWS = {800: 12, 1856: 12, 4095: 12, 20_000: 2, 200_000: 1}


@cache
def contribution(name):
    """Returns a jitted function of one row and the threshold: what the rule lets into the sum.

    The loss is ``sum(w x)``, so that the row is its own gradient. The threshold is handed over in
    the state of an adaptive one: one program for all of them.
    """
    mechanism = dpjax.Mechanism(RULES[name], dpjax.thresholds.dc_sgd_e(), 1.0)
    grads_of = dpjax.per_example_grads(lambda w, x: jnp.sum(w * x))
    state = dpjax.privatize(mechanism, 1, jax.random.key(0)).init(jnp.zeros(1))

    @jax.jit
    def run(row, c):
        at_c = state._replace(threshold=state.threshold._replace(threshold=c))
        grads = grads_of(jnp.zeros_like(row), row[None])
        return dpjax.clipped_sum(mechanism, grads, at_c).gradient

    return run


def excess(name, row):
    """Returns the largest |contribution| / bound - 1 over the thresholds."""
    return max(
        float(np.linalg.norm(np.asarray(contribution(name)(row, c), np.float64)))
        / float(RULES[name].bound(np.float64(c)))
        - 1
        for c in THRESHOLDS
    )


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
        row / np.linalg.norm(row) * rng.choice([1.0, 3.0, 700.0]) * (1 + rng.uniform(-8e-6, 1e-6))
    )


def constant_near_a_threshold(rng, d):
    return np.full(d, rng.choice([1.0, 3.0, 700.0]) / np.sqrt(d) * (1 + rng.uniform(-8e-6, 1e-6)))


def absorbed(rng, d):
    """One entry beside which every other square vanishes in a float32 sum taken in order."""
    row = np.full(d, 2.0**-12 * rng.uniform(0.9, 1.0))
    row[rng.integers(min(d, 40))] = 1.0
    return row


KINDS = (
    normal,
    heavy_tailed,
    sparse,
    one_large,
    tiny,
    huge,
    constant,
    constant_tiny,
    constant_huge,
    near_a_threshold,
    constant_near_a_threshold,
    absorbed,
)


def worst_excess(name, kind, sizes=SIZES, seed=0):
    """Returns the worst (excess, size) over all draws."""
    rng = np.random.default_rng(seed)
    return max(
        (excess(name, np.asarray(kind(rng, d), np.float32)), d)
        for d in sizes
        for _ in range(DRAWS.get(d, 4))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_contribution_exceeds_its_bound(kind):
    """With auto_v, whose bound is attained by every length, so that nothing hides in a margin."""
    worst = worst_excess("auto_v", kind)
    assert worst[0] > -1e-5
    assert worst[0] <= SLACK, f"(relative excess, size): {worst}"


@pytest.mark.parametrize("name", RULES)
def test_no_rule_exceeds_its_bound(name):
    kinds = (heavy_tailed, tiny, constant, constant_huge, near_a_threshold)
    worst = {kind.__name__: worst_excess(name, kind, (10, 1856)) for kind in kinds}
    worst["constant_near_a_threshold"] = worst_excess(name, constant_near_a_threshold, (1856,))
    assert max(worst.values())[0] > -1e-5  # global_clip's too: rows come that near to its z
    assert max(worst.values())[0] <= SLACK, f"(relative excess, size): {worst}"


def test_no_contribution_over_many_leaves_exceeds_its_bound():
    leaves, rng = 40, np.random.default_rng(0)
    mechanism = dpjax.Mechanism(RULES["auto_v"], 1.0, 1.0)
    state = dpjax.privatize(mechanism, 1, jax.random.key(0)).init(jnp.zeros(1))

    @jax.jit
    def clipped(row):
        grads = as_per_example_grads([row[None]] * leaves)
        return dpjax.clipped_sum(mechanism, grads, state).gradient

    worst = -np.inf
    for kind in (normal, constant):
        for _ in range(100):
            total = np.asarray(clipped(np.asarray(kind(rng, 10), np.float32)), np.float64)
            worst = max(worst, np.linalg.norm(total) - 1)
    assert -1e-5 < worst <= SLACK


@pytest.mark.parametrize("groups", [None, "per_leaf"])
def test_no_contribution_of_two_groups_exceeds_the_joint_bound(groups):
    mechanism = dpjax.Mechanism(RULES["auto_v"], 0.7, 1.0, groups=groups)
    tx = dpjax.privatize(mechanism, 1, jax.random.key(0))
    rng = np.random.default_rng(0)

    @jax.jit
    def clipped(a, b):
        grads = {"a": a[None], "b": b[None]}
        state = tx.init({"a": a, "b": b})
        return dpjax.clipped_sum(mechanism, grads, state).gradient, state.released.bound

    for kind in (normal, constant, heavy_tailed, huge):
        for _ in range(20):
            total, bound = clipped(
                np.asarray(kind(rng, 800), np.float32), np.asarray(kind(rng, 37), np.float32)
            )
            length = np.sqrt(sum(np.sum(np.square(t, dtype=np.float64)) for t in total.values()))
            assert length <= float(bound) * (1 + SLACK)
            assert length <= float(np.float32(0.7)) * (1 + SLACK)
