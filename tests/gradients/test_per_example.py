"""Norms, losses and sums of `per_example_grads` against a float64 loop, however they are cut up."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.gradients import as_per_example_grads
from dpjax.sampling import Poisson
from tests.gradients import softmax
from tests.gradients.compare import assert_close
from tests.gradients.drawn import drawn_of

B = 10
CHUNKS = (None, 1, 3, pytest.param(4, marks=pytest.mark.slow))
PARAMS = softmax.make_params()
DATA = softmax.make_data(B)
WEIGHTS = np.linspace(-1.0, 2.0, B).astype(np.float32)
GROUP_WEIGHTS = np.stack([WEIGHTS, WEIGHTS[::-1] + 0.5], axis=1)


def rule(norms):
    """Weights and two statistics that are not zero at norm 0, as padding would show it."""
    return 1.0 / (1.0 + norms), {"bit": norms <= 1.0, "row": jnp.stack([norms, 1.0 + norms], 1)}


def everything(grads):
    """Uses one object for all it offers."""
    return {
        "losses": grads.losses,
        "norms": grads.norms,
        "per_leaf": grads.group_norms("per_leaf"),
        "sum": grads.weighted_sum(WEIGHTS),
        "group_sum": grads.weighted_sum(GROUP_WEIGHTS, "per_leaf"),
        "aggregate": grads.aggregate(rule).rounded,
        "group_aggregate": grads.aggregate(lambda n: (n + 1.0, n[:, 0]), softmax.LABELS).rounded,
    }


@cache
def of_batch(chunk):
    grads_of = dpjax.per_example_grads(softmax.loss, "vmap", chunk)
    return jax.jit(lambda data, mask: everything(grads_of(PARAMS, data, mask=mask)))


@cache
def of_indices(chunk):
    grads_of = dpjax.per_example_grads(softmax.loss, "vmap", chunk)
    return jax.jit(
        lambda data, indices, count: everything(grads_of(PARAMS, data, drawn_of(indices, count, B)))
    )


def oracle(rows):
    """The same in float64; `rows[i]` is the row of DATA at position i, None for padding."""
    losses, grads = softmax.gradients(PARAMS, DATA)
    real = np.array([row is not None for row in rows])
    taken = [0 if row is None else row for row in rows]
    grads = jax.tree.map(lambda g: g[taken] * real.reshape(-1, *[1] * (g.ndim - 1)), grads)
    n, per_leaf = softmax.norms(grads), softmax.group_norms(grads)
    return {
        "losses": losses[taken] * real,
        "norms": n,
        "per_leaf": per_leaf,
        "sum": softmax.weighted_sum(grads, WEIGHTS),
        "group_sum": softmax.weighted_sum(grads, GROUP_WEIGHTS),
        "aggregate": (
            softmax.weighted_sum(grads, 1 / (1 + n)),
            {"bit": np.sum(n[real] <= 1), "row": np.array([n[real].sum(), (1 + n[real]).sum()])},
        ),
        "group_aggregate": (softmax.weighted_sum(grads, per_leaf + 1), per_leaf[real, 0].sum()),
    }


def assert_matches(found, rows):
    expected = oracle(rows)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, a), e in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=2e-5, err_msg=name)
    for name in ("sum", "group_sum", "aggregate", "group_aggregate"):
        total = found[name][0] if "aggregate" in name else found[name]
        assert {leaf.dtype for leaf in jax.tree.leaves(total)} == {np.dtype("float32")}


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_batch_matches_the_loop(chunk):
    assert_matches(of_batch(chunk)(DATA, jnp.ones(B)), range(B))


def test_numpy_arrays_outside_of_jit_match_the_loop():
    """The first thing that is tried: no jit, arrays as they were loaded."""
    data = jax.tree.map(np.asarray, DATA)
    grads = dpjax.per_example_grads(softmax.loss, engine="ghost")(PARAMS, data)
    np.testing.assert_allclose(grads.norms, oracle(range(B))["norms"], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("chunk", [B, B + 3])
def test_a_chunk_of_all_rows_or_more_is_the_whole_batch(chunk):
    grads_of = dpjax.per_example_grads(softmax.loss, chunk=chunk)

    @jax.jit
    def run(data):
        grads = grads_of(PARAMS, data)
        return grads.norms, grads.weighted_sum(WEIGHTS)

    norms, total = run(DATA)
    expected = oracle(range(B))
    np.testing.assert_allclose(norms, expected["norms"], rtol=1e-5)
    assert_close(total, expected["sum"], atol=2e-5)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("padding", [0.0, np.nan, np.inf, 3e38])
def test_padding_counts_as_nothing_whatever_it_holds(chunk, padding):
    mask = np.array([1, 0, 1, 1, 0, 0, 1, 1, 1, 0])
    held = {"x": jnp.where(mask[:, None] == 1, DATA["x"], padding), "y": DATA["y"]}
    rows = [i if mask[i] else None for i in range(B)]
    assert_matches(of_batch(chunk)(held, mask.astype(np.float32)), rows)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_fully_masked_batch_is_exactly_zero(chunk):
    found = of_batch(chunk)({"x": DATA["x"] * jnp.nan, "y": DATA["y"]}, jnp.zeros(B))
    for leaf in jax.tree.leaves(found):
        assert not np.any(leaf)


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_an_empty_batch_gives_zeros(chunk):
    grads_of = dpjax.per_example_grads(softmax.loss, chunk=chunk)
    none = jax.tree.map(lambda leaf: leaf[:0], DATA)
    for grads in (grads_of(PARAMS, none), grads_of(PARAMS, DATA, drawn_of([], 0, B))):
        assert grads.norms.shape == (0,)
        assert grads.losses.shape == (0,)
        assert grads.group_norms("per_leaf").shape == (0, 2)
        total, statistic = grads.aggregate(lambda n: (n, n[:, None])).rounded
        assert statistic.shape == (1,)
        assert jax.tree.map(jnp.shape, total) == jax.tree.map(jnp.shape, PARAMS)
        for leaf in jax.tree.leaves((total, statistic, grads.weighted_sum(jnp.ones(0)))):
            assert not np.any(leaf)


# Out of order, out of range on both sides, and row 4 twice.
INDICES = np.array([7, 2, -1, 4, 9, B, 0, 4, 5, 1000])


@pytest.mark.parametrize("chunk", [None, 1, 4])
@pytest.mark.parametrize("count", [0, 1, 4, 8, B, B + 5, -3])
def test_indices_and_count_match_the_loop(chunk, count):
    used = max(0, min(count, B))
    rows = [int(i) if p < used and 0 <= i < B else None for p, i in enumerate(INDICES)]
    assert_matches(of_indices(chunk)(DATA, INDICES, np.int32(count)), rows)


def test_without_mask_or_count_every_row_is_real():
    grads_of = dpjax.per_example_grads(softmax.loss, chunk=3)

    @jax.jit
    def norms_and_real(data):
        grads, drawn = grads_of(PARAMS, data), grads_of(PARAMS, data, drawn_of(INDICES, None, B))
        return grads.norms, grads.real, drawn.norms, drawn.real

    norms, real, drawn_norms, drawn_real = norms_and_real(DATA)
    expected = oracle(range(B))["norms"]
    np.testing.assert_allclose(norms, expected, rtol=1e-5)
    assert np.all(real)
    inside = (INDICES >= 0) & (INDICES < B)
    np.testing.assert_array_equal(drawn_real, inside)
    np.testing.assert_allclose(drawn_norms, expected[INDICES % B] * inside, rtol=1e-5)


@pytest.mark.parametrize("chunk", [None, 4, 7])
def test_a_part_and_packed_rows_give_the_gradients_of_the_whole(chunk):
    """Also the keys of the rows: those of their numbers in the whole data set."""

    def loss(w, x, key):
        return jnp.sum(w * x) * jax.random.uniform(key)

    grads_of = dpjax.per_example_grads(loss, chunk=chunk)
    sampling, key, w = Poisson(12, 24), jax.random.key(1), jnp.zeros(3)
    data = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    ones = jnp.ones(24)

    @jax.jit
    def total(rows, drawn):
        grads = grads_of(w, rows, drawn, key)
        return grads.weighted_sum(ones[: grads.real.shape[0]])

    whole = sampling.draw(key, 3)
    want = total(data, whole)
    parts = [sampling.draw(key, 3, part=(start, 8)) for start in (0, 8, 16)]
    found = sum(total(data[i : i + 8], p) for i, p in zip((0, 8, 16), parts, strict=True))
    np.testing.assert_allclose(found, want, rtol=1e-5)
    rows = whole.rows()
    gathered = np.zeros((24, 3), np.float32)
    gathered[: len(rows)] = data[rows]
    packed = whole.packed()
    np.testing.assert_allclose(total(gathered, packed), want, rtol=1e-6)
    pieces = [total(gathered[b : b + 10], packed.part(b, 10)) for b in (0, 10)]
    pieces.append(total(gathered[[*range(20, 24), *range(6)]], packed.part(20, 10)))
    np.testing.assert_allclose(sum(pieces), want, rtol=1e-5)


def test_data_has_the_rows_that_were_drawn_from():
    grads_of = dpjax.per_example_grads(lambda w, x: w * x)
    drawn = Poisson(2, 8).draw(jax.random.key(0), 0)
    with pytest.raises(ValueError, match=r"data has 5 rows: expected the 8 that Poisson\(batch"):
        grads_of(jnp.float32(0), jnp.ones(5), drawn)
    with pytest.raises(ValueError, match="rows has 5 rows: expected 8, one for each packed index"):
        grads_of(jnp.float32(0), jnp.ones(5), drawn.packed())
    with pytest.raises(ValueError, match="mask with a drawn batch: expected none"):
        grads_of(jnp.float32(0), jnp.ones(8), drawn, mask=np.ones(8))
    with pytest.raises(TypeError, match=r"expected what sampling\.draw returned, or mask="):
        grads_of(jnp.float32(0), jnp.ones(8), np.ones(8))


def test_the_key_is_folded_with_the_row_in_the_data():
    def loss(w, x, key):
        return jnp.sum(w * x) * jax.random.uniform(key)

    key, w = jax.random.key(3), jnp.zeros(softmax.FEATURES)
    expected = [
        np.linalg.norm(x) * float(jax.random.uniform(jax.random.fold_in(key, i)))
        for i, x in enumerate(np.asarray(DATA["x"], np.float64))
    ]
    for chunk in (None, 3):
        grads_of = dpjax.per_example_grads(loss, chunk=chunk)
        batch = jax.jit(lambda key, f=grads_of: f(w, DATA["x"], key=key).norms)
        drawn = jax.jit(lambda key, i, f=grads_of: f(w, DATA["x"], drawn_of(i, None, B), key).norms)
        np.testing.assert_allclose(batch(key), expected, rtol=1e-6)
        for indices in ([7, 2, 5, 5], [5, 7, 0, 2]):
            found = drawn(key, jnp.array(indices))
            np.testing.assert_allclose(found, np.take(expected, indices), rtol=1e-6)


def test_a_plain_pytree_of_gradients_is_taken_with_a_mask():
    mask = np.array([1, 1, 0, 1, 1, 0, 1, 1, 1, 1])
    _, plain = softmax.gradients(PARAMS, DATA)
    plain = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32).at[2].set(jnp.nan), plain)
    expected = oracle([i if mask[i] else None for i in range(B)])

    @jax.jit
    def found(plain):
        grads = as_per_example_grads(plain, mask=mask)
        with pytest.raises(TypeError, match="a plain pytree of gradients has no losses"):
            _ = grads.losses
        total = grads.weighted_sum(GROUP_WEIGHTS, "per_leaf")
        return grads.norms, grads.aggregate(rule).rounded, total

    names = ("norms", "aggregate", "group_sum")
    assert_close(found(plain), tuple(expected[name] for name in names), atol=2e-5)
