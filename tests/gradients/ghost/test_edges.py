"""Rows at the edge of what floating point and indices can hold, and rows beside them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from tests.models.helpers import fast_jit

GHOSTS = ["ghost", "ghost_two_pass"]


def norms_and_sum(loss, params, batch, engine, weights=None):
    rows = len(jax.tree.leaves(batch)[0])
    weights = jnp.ones(rows) if weights is None else weights

    @fast_jit
    def run(params, batch):
        grads = dpjax.per_example_grads(loss, engine=engine)(params, batch)
        return grads.norms, grads.weighted_sum(weights)

    return run(params, batch)


def one_by_one(loss, params, batch):
    rows = len(jax.tree.leaves(batch)[0])
    grads = [jax.grad(loss)(params, jax.tree.map(lambda x, i=i: x[i], batch)) for i in range(rows)]
    return np.stack([np.asarray(g, np.float64) for g in grads])


@pytest.mark.parametrize(("dtype", "rows"), [("uint8", 256), ("int8", 128), ("uint8", 300)])
def test_indices_narrower_than_the_table(dtype, rows):
    def loss(table, ids):
        return jnp.sum(jnp.take(table, ids, axis=0) ** 2)

    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(rows, 80)), jnp.float32)
    ids = jnp.asarray(rng.integers(0, 128, (4, 3)), dtype)
    assert dpjax.explain(loss, table, ids[0]).leaves[0].method == "rows"
    norms, _ = norms_and_sum(loss, table, ids, "ghost")
    expected = np.linalg.norm(one_by_one(loss, table, ids).reshape(4, -1), axis=1)
    np.testing.assert_allclose(norms, expected, rtol=1e-5)


@pytest.mark.parametrize("engine", ["ghost"])
def test_one_row_of_a_table_by_a_scalar(engine):
    """A `dynamic_slice`: only that row has a gradient; an index outside is clipped."""

    def loss(table, i):
        return jnp.sum(jnp.tanh(jax.lax.dynamic_index_in_dim(table, i, keepdims=False)))

    table = jnp.asarray(np.random.default_rng(0).normal(size=(50, 6)), jnp.float32)
    ids = jnp.array([3, 3, 49, 70])
    assert dpjax.explain(loss, table, ids[0]).leaves[0].method == "rows"
    norms, total = norms_and_sum(loss, table, ids, engine)
    expected = one_by_one(loss, table, ids)
    np.testing.assert_allclose(norms, np.linalg.norm(expected.reshape(4, -1), axis=1), rtol=1e-5)
    np.testing.assert_allclose(total, expected.sum(axis=0), rtol=1e-5, atol=1e-6)


def products(w, row):
    return jnp.sum(row[1] * (row[0] @ w))


@pytest.mark.parametrize("engine", [*GHOSTS, "vmap"])
def test_no_row_changes_the_norm_of_another(engine):
    """Rows that nearly cancel over positions, beside a row of zeros, of huge or of tiny numbers."""
    rng = np.random.default_rng(0)
    t, k, rows = 8, 64, 6
    x = 1 + 0.15 * rng.normal(size=(rows, t, k))
    b = rng.normal(size=(rows, t, k))
    b -= b.mean(axis=1, keepdims=True)
    w = jnp.zeros((k, k))
    run = fast_jit(lambda x, b: dpjax.per_example_grads(products, engine=engine)(w, (x, b)).norms)
    first = run(jnp.asarray(x, jnp.float32), jnp.asarray(b, jnp.float32))
    for scale in (0.0, 1e-20, 1e15, np.nan):
        other = b.copy()
        other[2] *= scale
        found = run(jnp.asarray(x, jnp.float32), jnp.asarray(other, jnp.float32))
        kept = np.arange(rows) != 2
        np.testing.assert_array_equal(np.asarray(found)[kept], np.asarray(first)[kept])


@pytest.mark.parametrize(("engine", "blocks"), [("ghost", 1), ("ghost", 2), ("ghost_two_pass", 2)])
def test_tiny_factors_do_not_vanish(engine, blocks):
    """Also where one block has tiny inputs and the other tiny cotangents."""

    def loss(w, row):
        return jnp.sum(row[1] * jnp.einsum("gtk,gkc->gtc", row[0], w))

    rng = np.random.default_rng(0)
    x, b = (rng.normal(size=(1, blocks, 4, 16)) for _ in range(2))
    scale = np.full((1, blocks, 1, 1), 1e-12)
    scale[:, 1:] = 1e-25
    x, b = x * scale, b * scale[:, ::-1]
    norms, _ = norms_and_sum(
        loss, jnp.zeros((blocks, 16, 16)), (jnp.float32(x), jnp.float32(b)), engine
    )
    gradient = np.einsum(
        "ngtk,ngtc->ngkc", np.float32(x).astype(float), np.float32(b).astype(float)
    )
    expected = np.linalg.norm(gradient)
    assert expected * (1 - 1e-6) <= norms[0] <= expected * 1.01


@pytest.mark.parametrize("engine", GHOSTS)
def test_wide_rows_of_huge_numbers_are_not_dropped(engine):
    """The square of such a row overflows, its norm does not; the gradient is formed."""
    w, x, b = jnp.zeros((1024, 3)), jnp.full((1, 64, 1024), 1e18), jnp.ones((1, 64, 3))
    assert dpjax.explain(products, w, (x[0], b[0])).leaves[0].method == "form"
    norms, _ = norms_and_sum(products, w, (x, b), engine)
    expected = 64e18 * np.sqrt(3 * 1024)
    assert expected * (1 - 1e-6) <= float(norms[0]) <= expected * 1.001


@pytest.mark.parametrize("k", [4096, 50_000])
def test_constant_inputs_of_any_width(k):
    """Where an inner product in float32 is furthest off; the norm must not be too small."""
    x, b = jnp.full((1, 2, k), 1.1), jnp.full((1, 2, 3), 0.7)
    norms, _ = norms_and_sum(products, jnp.zeros((k, 3)), (x, b), "ghost")
    expected = 2 * float(x[0, 0, 0]) * float(b[0, 0, 0]) * np.sqrt(3 * k)
    assert expected <= float(norms[0]) <= expected * 1.001


def test_huge_cotangents_at_a_table():
    def loss(table, row):
        return jnp.sum(row[1] * table[row[0]])

    ids = jnp.array([[1, 2, 1]])
    b = jnp.full((1, 3, 80), 1e25)
    norms, _ = norms_and_sum(loss, jnp.zeros((400, 80)), (ids, b), "ghost")
    np.testing.assert_allclose(norms, np.sqrt(80 * 5) * 1e25, rtol=1e-5)


@pytest.mark.parametrize(("engine", "groups"), [("ghost", 1), ("vmap", 2), ("ghost_two_pass", 1)])
def test_a_bad_row_leaves_other_kernels_alone(engine, groups):
    """A convolution whose kernel depends on the example, or whose channels are in groups."""

    def loss(w, x):
        scale = x[0, 0, 0] if groups == 1 else 1.0
        found = jax.lax.conv_general_dilated(
            x[None],
            w * scale,
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )
        return jnp.sum(jnp.tanh(found))

    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(3, 3, 4 // groups, 4)), jnp.float32)
    x = rng.normal(size=(3, 5, 5, 4)).astype(np.float32)
    x[1] = np.nan
    norms, total = norms_and_sum(loss, w, jnp.asarray(x), engine)
    expected = one_by_one(loss, w, jnp.asarray(x[[0, 2]]))
    lengths = np.linalg.norm(expected.reshape(2, -1), axis=1)
    np.testing.assert_allclose(norms, [lengths[0], np.inf, lengths[1]], rtol=1e-4)
    np.testing.assert_allclose(total, expected.sum(axis=0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("engine", [*GHOSTS, "auto"])
def test_an_empty_batch(engine):
    norms, total = norms_and_sum(
        products, jnp.ones((4, 3)), (jnp.zeros((0, 2, 4)), jnp.zeros((0, 2, 3))), engine
    )
    assert norms.shape == (0,)
    assert not np.any(total)


@pytest.mark.parametrize("engine", ["ghost"])
def test_an_equation_with_several_parameter_operands(engine):
    def loss(params, x):
        return jnp.sum(jnp.linalg.solve(params + 3 * jnp.eye(3), x) ** 2)

    rng = np.random.default_rng(0)
    params, x = (
        jnp.asarray(rng.normal(size=(3, 3)), jnp.float32),
        jnp.asarray(rng.normal(size=(4, 3))),
    )
    norms, total = norms_and_sum(loss, params, x, engine)
    expected = one_by_one(loss, params, x)
    np.testing.assert_allclose(norms, np.linalg.norm(expected.reshape(4, -1), axis=1), rtol=1e-4)
    np.testing.assert_allclose(total, expected.sum(axis=0), rtol=1e-4, atol=1e-5)
