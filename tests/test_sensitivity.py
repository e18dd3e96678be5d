"""The claim everything rests on: one example moves the joint release by at most 1 / sigma.

The joint vector is (gradient / (bound sigma_T), statistic / (sens sigma_S)). The added example is
ordinary, zero, subnormal, huge, NaN, or NaN in one group only; it opens a new chunk or not.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import methods, rules
from dpjax._states import find_state
from tests import registry
from tests.gradients.drawn import drawn_of, rows_of

B, CHUNK, SIGMA = 32.0, 4, 1.0
GROUPS = {"flat": None, "per_leaf": "per_leaf", "labels": {"a": "x", "b": "y", "c": "x"}}
ADDED = {
    "ordinary": {"a": [3.0, -4.0, 1.0], "b": [2.0, 5.0], "c": 1.5},
    "zero": {"a": [0.0, 0.0, 0.0], "b": [0.0, 0.0], "c": 0.0},
    "subnormal": {"a": [1e-40, 0.0, 0.0], "b": [1e-42, 0.0], "c": 0.0},
    "huge": {"a": [1e20, -1e20, 0.0], "b": [3e19, 0.0], "c": 1e20},
    "nan": {"a": [np.nan, 0.0, 0.0], "b": [np.nan, 1.0], "c": np.nan},
    "nan in one group": {"a": [1.0, 2.0, 3.0], "b": [np.nan, 1.0], "c": 4.0},
    "inf in one group": {"a": [1.0, np.inf, 3.0], "b": [2.0, 1.0], "c": 4.0},
}
# With the example at position p of the drawn indices: 6 -> 7 rows stays in its chunk of four,
# 8 -> 9 opens a new one, and 0 -> 1 is the first of all.
POSITIONS = (0, 6, 8)

SOUND = [
    name
    for name in registry.METHODS
    if name not in ("auto_dp_sgd", "psasc_momentum_full_batch")  # no bound; no parts of a batch
]
GHOSTS = ("ghost", "ghost_two_pass")


def linear_loss(params, example):
    """Has the example itself as its gradient."""
    return sum(jnp.sum(params[name] * example[name]) for name in params)


def drawn_rows(added):
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=(12, *np.shape(value))) * 0.7 for name, value in added.items()}
    return {
        name: jnp.asarray(np.concatenate([rows[name], np.asarray(added[name])[None]]), jnp.float32)
        for name in rows
    }


def release_parts(method, groups, engine="vmap"):
    """Returns a jitted (data, indices, count) -> (ClippedSum, scales of both parts)."""
    method = method.replace(groups=groups)
    params = {"a": jnp.zeros(3), "b": jnp.zeros(2), "c": jnp.zeros(())}
    tx = optax.chain(method.transformation(B, jax.random.key(0)), optax.sgd(0.1))
    state = tx.init(params)
    released = find_state(state, dpjax.PrivatizeState).released
    statistic_scale = 1.0
    if method.adaptive:
        sigma_s = method.sigma_statistic(B)
        statistic_scale = method.threshold.sensitivity * sigma_s

    @jax.jit
    def parts(data, indices, count):
        grads = dpjax.per_example_grads(linear_loss, engine, chunk=CHUNK)(
            params, data, drawn_of(indices, count, rows_of(data))
        )
        return method.clipped_sum(grads, state)

    return parts, float(released.bound * released.sigma_gradient), statistic_scale


def joint_move(parts, gradient_scale, statistic_scale, data, position):
    """Returns how far adding row 12 at `position` of the batch moves the joint vector."""
    without = np.arange(12)
    with_added = np.insert(without, position, 12)[:12]
    size = max(position, 6) if position != 8 else 8
    before = parts(data, without, size)
    after = parts(data, with_added, size + 1)
    square = 0.0
    for x, y in zip(jax.tree.leaves(before.gradient), jax.tree.leaves(after.gradient), strict=True):
        square += np.sum((np.float64(x) - np.float64(y)) ** 2) / gradient_scale**2
    statistic = np.float64(after.statistic) - np.float64(before.statistic)
    return np.sqrt(square + np.sum(statistic**2) / statistic_scale**2)


@pytest.mark.parametrize(
    "engine", ["vmap", *(pytest.param(e, marks=pytest.mark.slow) for e in GHOSTS)]
)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("name", SOUND)
def test_one_example_moves_the_joint_release_by_at_most_one_over_sigma(name, groups, engine):
    if engine in GHOSTS and name == "adaclip":
        pytest.skip("needs the vectors, which only the vmap engine holds")
    parts, *scales = release_parts(registry.METHODS[name](SIGMA), GROUPS[groups], engine)
    for kind, added in ADDED.items():
        for position in POSITIONS:
            move = joint_move(parts, *scales, drawn_rows(added), position)
            assert move <= (1 + 1e-5) / SIGMA, (kind, position, move)
            assert np.isfinite(move), (kind, position)


@pytest.mark.parametrize("groups", GROUPS)
def test_plain_clipping_reaches_the_bound(groups):
    for method in (methods.dp_sgd(SIGMA), methods.andrew(SIGMA), methods.dc_sgd_e(SIGMA)):
        parts, *scales = release_parts(method, GROUPS[groups])
        for kind in ("ordinary", "huge"):
            assert joint_move(parts, *scales, drawn_rows(ADDED[kind]), 8) >= 0.99 / SIGMA


def test_the_measurement_sees_a_bound_that_is_too_small():
    """The rejecting arm: the same measurement on a mechanism whose noise assumes half the bound."""
    parts, gradient_scale, statistic_scale = release_parts(methods.dp_sgd(SIGMA), None)
    data = drawn_rows(ADDED["ordinary"])
    assert joint_move(parts, gradient_scale / 2, statistic_scale, data, 6) > 1.9 / SIGMA


@pytest.mark.parametrize("added", ADDED)
def test_stored_momentum_keeps_examples_apart(added):
    """Full batches: replacing example 0 by padding moves the release by at most the bound."""
    rows = drawn_rows(ADDED[added])
    params = {"a": jnp.zeros(3), "b": jnp.zeros(2), "c": jnp.zeros(())}
    method = methods.psasc_momentum_full_batch(0.0, dataset_size=13)
    tx = method.transformation(13, jax.random.key(0))
    step = jax.jit(lambda rows, state, mask: tx.update(rows, state, params, mask=mask))
    present, absent = jnp.ones(13), jnp.ones(13).at[12].set(0)
    bound = rules.psasc().bound(1.0)
    states = [tx.init(params), tx.init(params)]
    for scale in (1.0, -0.5, 2.0):
        scaled = jax.tree.map(lambda x, by=scale: x * by, rows)
        out = []
        for i, mask in enumerate((present, absent)):
            update, states[i] = step(scaled, states[i], mask)
            out.append(np.concatenate([np.ravel(x) for x in jax.tree.leaves(update)]))
        assert np.linalg.norm(np.float64(out[0]) - np.float64(out[1])) * 13 <= bound * (1 + 1e-5)


def test_a_finite_huge_gradient_is_clipped_and_not_dropped():
    for dtype, row in ((jnp.float32, [1e20, 0.0]), (jnp.float16, [300.0, 0.0])):
        mechanism = dpjax.Mechanism(rules.abadi(), 1.0, 0.0)
        tx = dpjax.privatize(mechanism, 1, jax.random.key(0))
        params = jnp.zeros(2, dtype)
        update, _ = tx.update(jnp.asarray([row], dtype), tx.init(params), params)
        np.testing.assert_allclose(np.float64(update), [1.0, 0.0], rtol=1e-3)
