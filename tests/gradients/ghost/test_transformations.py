"""The ghost engines under gathers, a scan over steps, keys of their own, and every float type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from tests.gradients.drawn import drawn_of, rows_of
from tests.gradients.ghost.cases import get
from tests.gradients.ghost.contract import (
    ROWS,
    Case,
    Expected,
    assert_flat_norms,
    assert_sums,
    cast,
    oracle,
)
from tests.models.helpers import fast_jit

ENGINES = ("ghost", "ghost_two_pass")
PAIRS = [("ghost", "conv_network"), ("ghost", "recurrent"), ("ghost_two_pass", "recurrent")]


@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_rows_gathered_by_index_up_to_a_count(engine, name):
    """Also an index outside the data, which is padding, and one that appears twice."""
    case = get(name)
    grads_of = dpjax.per_example_grads(case.loss, engine=engine, chunk=2)
    leaves = oracle(case)[1]

    @fast_jit
    def run(params, data, indices, count, weights):
        grads = grads_of(params, data, drawn_of(indices, count, rows_of(data)))
        return grads.norms, grads.weighted_sum(weights)

    weights = np.arange(1.0, 7.0)
    params, data = cast((case.params, case.batch), "float32")
    for drawn, count in [([4, 0, 9, 0, 2, 1], 5), ([3, 1, 0, 2, 4, -1], 6), ([0] * 6, 0)]:
        indices = np.array(drawn)
        inside = (indices >= 0) & (indices < ROWS) & (np.arange(6) < count)
        taken = [g[np.clip(indices, 0, ROWS - 1)] for g in leaves]
        expected = Expected(taken, inside)
        norms, total = run(params, data, indices, jnp.int32(count), cast(weights, "float32"))
        assert_flat_norms(norms, expected, "float32")
        assert_sums(total, expected, weights[:, None], "float32")


@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_a_scan_over_steps_is_the_loop(engine, name):
    """Parameters that change from step to step, and are traced."""
    case = get(name)
    grads_of = dpjax.per_example_grads(case.loss, engine=engine)

    def step(params, mask):
        grads = grads_of(params, cast(case.batch, "float32"), mask=mask)
        total, norms = grads.aggregate(lambda n: (1 / (1 + n), n)).rounded
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, total), norms

    masks = jnp.asarray([[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [1, 1, 1, 1, 0]])
    start = cast(case.params, "float32")
    found, norms = fast_jit(lambda params: jax.lax.scan(step, params, masks))(start)
    params, expected = case.params, []
    for mask in np.asarray(masks, bool):
        rows = Expected(oracle(Case(case.loss, params, case.batch))[1], mask)
        expected.append(rows.norms.sum())
        weights = np.broadcast_to((1 / (1 + rows.norms))[:, None], rows.group_norms.shape)
        sums = [total for total, _ in rows.weighted(weights)]
        sums = jax.tree.unflatten(jax.tree.structure(params), sums)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, sums)
    np.testing.assert_allclose(norms, expected, rtol=1e-4)
    for f, p in zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(f, p, rtol=1e-4, atol=1e-5)


def dropped(params, x, key):
    """Dropout of features and of weights: a parameter meets the key before the data."""
    first, second = jax.random.split(key)
    x = jnp.where(jax.random.bernoulli(first, 0.6, x.shape), x / 0.6, 0)
    w = params["w"] * jax.random.bernoulli(second, 0.7, params["w"].shape)
    noise = jax.random.normal(second, params["v"].shape, x.dtype)
    return jnp.sum(jnp.sin(jnp.tanh(x @ w) @ (params["v"] + noise)))


@pytest.mark.parametrize(("engine", "chunk"), [("ghost", None), ("ghost_two_pass", 2)])
def test_a_key_gives_each_row_the_masks_that_vmap_gives(engine, chunk):
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((4, 3)), "v": rng.standard_normal((3, 2))}
    x, key = rng.standard_normal((ROWS, 2, 4)), jax.random.key(3)
    grads_of = dpjax.per_example_grads(dropped, engine=engine, chunk=chunk)
    params, x = cast((params, x), "float32")

    @fast_jit
    def run(params, x, key):
        grads = grads_of(params, x, key=key)
        return grads.norms, grads.weighted_sum(jnp.arange(1.0, 6.0)), grads.losses

    norms, total, losses = run(params, x, key)
    single = fast_jit(jax.value_and_grad(dropped))
    alone = [single(params, x[i], jax.random.fold_in(key, i)) for i in range(ROWS)]
    leaves = zip(*(jax.tree.leaves(grads) for _, grads in alone), strict=True)
    expected = Expected([np.stack(g).astype(np.float64) for g in leaves], np.ones(ROWS, bool))
    np.testing.assert_allclose(losses, [loss for loss, _ in alone], rtol=1e-4, atol=1e-5)
    assert_flat_norms(norms, expected, "float32")
    assert_sums(total, expected, np.arange(1.0, 6.0)[:, None], "float32")
    other = run(params, x, jax.random.key(4))[0]
    assert not np.allclose(other, norms, rtol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "name", "engine"),
    [
        ("float16", "dense_over_positions", "ghost"),
        ("bfloat16", "conv_same", "ghost"),
        ("bfloat16", "dense_over_positions", "ghost_two_pass"),
        ("float16", "embedding_then_mean", "ghost"),
    ],
)
def test_parameters_in_half_precision(dtype, name, engine):
    """Against float64 at the rounded parameters and rows; norms and sums are float32."""
    case = get(name)
    rounded = jax.tree.map(
        lambda x: (
            np.asarray(x).astype(jnp.dtype(dtype)).astype(np.float64)
            if np.issubdtype(np.asarray(x).dtype, np.floating)
            else x
        ),
        (case.params, case.batch),
    )
    expected = Expected(oracle(Case(case.loss, *rounded))[1], np.ones(ROWS, bool))
    grads_of = dpjax.per_example_grads(case.loss, engine=engine)

    @fast_jit
    def run(params, batch):
        grads = grads_of(params, batch)
        return grads.norms, grads.weighted_sum(jnp.ones(ROWS))

    norms, total = run(*cast(rounded, dtype))
    assert norms.dtype == np.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(total)} == {np.dtype("float32")}
    assert_flat_norms(norms, expected, dtype)
    assert_sums(total, expected, np.ones((ROWS, 1)), dtype)


@pytest.mark.parametrize("engine", ENGINES)
def test_float32_parameters_among_float64_ones(engine):
    def loss(params, x):
        return jnp.sum(jnp.sin(x @ params["narrow"].astype(jnp.float64) @ params["wide"]))

    rng = np.random.default_rng(0)
    params = {"narrow": rng.standard_normal((3, 4)), "wide": rng.standard_normal((4, 2))}
    params["narrow"] = params["narrow"].astype(np.float32).astype(np.float64)
    x = rng.standard_normal((ROWS, 2, 3))
    expected = Expected(oracle(Case(loss, params, x))[1], np.ones(ROWS, bool))
    with jax.enable_x64(True):
        given = {"narrow": cast(params["narrow"], "float32"), "wide": jnp.asarray(params["wide"])}
        grads = dpjax.per_example_grads(loss, engine=engine)(given, jnp.asarray(x))
        assert_flat_norms(np.asarray(grads.norms), expected, "float32")
        assert_sums(grads.weighted_sum(jnp.ones(ROWS)), expected, np.ones((ROWS, 1)), "float32")
