"""Gradients that overflow, vanish or are not finite, and parameters of every float type.

The loss is ``sum(w * x)``: the gradient of an example is the example, exactly.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.gradients import as_per_example_grads, combined_norm
from tests.gradients.drawn import drawn_of

RULE = dpjax.rules.abadi()
CHUNKS = (None, 2)


def linear(params, example):
    return sum(jnp.sum(w * x) for w, x in zip(params, example, strict=True))


def one_leaf(w, x):
    return jnp.sum(w * x)


@cache
def clipped(chunk, dtype=jnp.float32):
    """Returns a function of the rows: their norms, and the sum clipped to 1 and counted."""
    grads_of = dpjax.per_example_grads(one_leaf, chunk=chunk)

    def counted(norms):
        return RULE.weight(norms, 1.0), {"rows": jnp.ones_like(norms), "inf": jnp.isinf(norms)}

    @jax.jit
    def run(rows):
        grads = grads_of(jnp.zeros(rows.shape[1], dtype), rows)
        return grads.norms, *grads.aggregate(counted).rounded

    return lambda rows: run(jnp.asarray(rows, dtype))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        (jnp.float32, [[1e20, 0], [3, 4], [-1e25, 1e25], [0.3, 0.4]]),
        (jnp.float32, [[3e-30, 4e-30], [1e-15, 0], [0, 0], [6, 8]]),
        (jnp.float32, [[3e37, 4e37], [8e37, 0], [1e-37, 0], [1, 1]]),
        (jnp.float16, [[300, 0], [6e4, 6e4], [6e-8, 0], [3, 4]]),
        (jnp.bfloat16, [[1e20, 0], [1e30, 1e30], [1e-30, 0], [3, 4]]),
    ],
)
def test_finite_gradients_are_clipped_not_dropped(chunk, dtype, rows):
    norms, total, counts = clipped(chunk, dtype)(rows)
    exact = np.asarray(jnp.asarray(rows, dtype), np.float64)  # as the dtype rounds them
    true = np.linalg.norm(exact, axis=1)
    np.testing.assert_allclose(norms, true, rtol=3e-7)
    expected = sum(row / max(n, 1.0) for row, n in zip(exact, true, strict=True))
    np.testing.assert_allclose(total, expected, rtol=5e-6)
    assert counts["rows"] == 4
    assert counts["inf"] == 0


@pytest.mark.parametrize("row", [[3e38, 0], [3e38, 1e38]])
def test_near_the_largest_float_the_norm_stands_and_the_contribution_is_bounded(row):
    norms, total, _ = clipped(None)([row])
    np.testing.assert_allclose(norms[0], np.hypot(*row), rtol=3e-7)
    # 1 / norm has no normal float32: the rule may drop the example, never exceed the bound.
    assert np.linalg.norm(np.asarray(total, np.float64)) <= 1.0 + 2e-7


def test_a_norm_beyond_the_largest_float_counts_as_not_finite():
    norms, total, counts = clipped(None)([[3e38, 3e38], [3.0, 4.0]])
    assert norms.tolist() == [np.inf, 5.0]
    np.testing.assert_allclose(total, [0.6, 0.8], rtol=5e-6)
    assert counts["inf"] == 1


def test_subnormal_gradients_stay_within_their_own_length():
    rows = [[1e-40, 0.0], [3e-45, 0.0], [5e-39, 5e-39]]
    norms, total, _ = clipped(None)(rows)
    # XLA may flush subnormal numbers to zero; it may not make them larger.
    assert np.all(np.asarray(norms, np.float64) <= np.linalg.norm(rows, axis=1) * (1 + 1e-2))
    assert np.all(np.abs(total) <= 1e-38)
    assert float(combined_norm(jnp.array([3e-30, 4e-30]))) == pytest.approx(5e-30, rel=3e-7)


NOT_FINITE = [np.nan, np.inf, -np.inf]
WEIGHTS = [1.0, 0.0, -2.0, 1e30, np.inf, -np.inf, np.nan]


@cache
def weighted(chunk):
    grads_of = dpjax.per_example_grads(linear, chunk=chunk)

    @jax.jit
    def run(batch, mask, weights):
        grads = grads_of((jnp.zeros(2), jnp.zeros(3)), batch, mask=mask)
        both = jnp.stack([weights, weights], 1)
        sums = grads.weighted_sum(weights), grads.weighted_sum(both, "per_leaf")
        counts = grads.aggregate(lambda n: (n, jnp.isinf(n))).statistic.hi
        return grads.norms, grads.group_norms("per_leaf"), sums, counts

    return run


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("held", ["real", "padded"])
def test_a_row_that_is_not_finite_adds_nothing_whatever_its_weight(chunk, held):
    run = weighted(chunk)
    a, b = np.ones((5, 2), np.float32), np.full((5, 3), 2.0, np.float32)
    mask = np.ones(5) if held == "real" else np.array([1, 0, 1, 1, 1])
    for bad in NOT_FINITE:
        b[1, 2] = bad  # in the second leaf only
        for weight in WEIGHTS:
            weights = np.array([1, weight, 2, 3, 4], np.float32)
            norms, by_group, sums, count = run((a, b), mask, weights)
            assert norms[1] == (np.inf if held == "real" else 0)
            assert by_group[1].tolist() == [norms[1]] * 2
            np.testing.assert_allclose(np.delete(norms, 1), np.sqrt(14), rtol=3e-7)
            for total in sums:
                assert total[0].tolist() == [10.0] * 2
                assert total[1].tolist() == [20.0] * 3
            assert count == (1 if held == "real" else 0)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_weight_that_is_not_finite_counts_as_zero(chunk):
    grads_of = dpjax.per_example_grads(one_leaf, chunk=chunk)
    run = jax.jit(lambda weights: grads_of(jnp.zeros(2), jnp.ones((3, 2))).weighted_sum(weights))
    for weight in NOT_FINITE:
        assert run(jnp.array([1.0, weight, 2.0])).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("fn", [jnp.sign, jnp.nan_to_num, lambda g: jnp.clip(g, -1.0, 1.0)])
def test_map_cannot_bring_a_row_that_is_not_finite_back(fn):
    grads = as_per_example_grads(jnp.array([[np.inf, 1.0], [1.0, 1.0]])).map(fn)
    assert grads.weighted_sum(jnp.ones(2)).tolist() == [1.0, 1.0]
    assert grads.norms[0] == np.inf


@pytest.mark.parametrize("chunk", [None, 1, 2, 3])
def test_aggregate_shows_every_row_once_and_masks_both_outputs(chunk):
    rows = np.array([[3, 4], [6, 8], [np.nan, 1], [0, 1], [5, 12]], np.float32)
    mask = np.array([1, 1, 1, 0, 1])
    grads_of = dpjax.per_example_grads(one_leaf, chunk=chunk)
    seen = []

    def fn(norms):
        jax.debug.callback(lambda n: seen.extend(np.asarray(n).tolist()), norms)
        return jnp.ones_like(norms), jnp.ones_like(norms)

    run = jax.jit(lambda: grads_of(jnp.zeros(2), rows, mask=mask).aggregate(fn).rounded)
    total, count = run()
    jax.effects_barrier()
    shown = sorted(n for n in seen if n)  # padding is shown as 0
    np.testing.assert_allclose(shown, [5.0, 10.0, 13.0, np.inf], rtol=5e-6)
    assert np.all(np.asarray(shown[:3]) >= [5.0, 10.0, 13.0])  # never below the true ones
    assert total.tolist() == [3 + 6 + 5, 4 + 8 + 12]
    assert count == 4


@pytest.mark.parametrize(
    ("dtype", "chunk"), [("float16", 64), ("bfloat16", None), ("bfloat16", 64), ("float32", 64)]
)
def test_sums_of_half_precision_gradients_are_taken_in_float32(dtype, chunk):
    rows = jnp.asarray(np.random.default_rng(0).standard_normal((200, 3)), dtype)
    exact = np.asarray(rows, np.float64)
    grads_of = dpjax.per_example_grads(one_leaf, chunk=chunk)

    @jax.jit
    def run(rows):
        grads = grads_of(jnp.zeros(3, dtype), rows)
        return grads.norms, grads.losses, grads.weighted_sum(jnp.full(200, 0.1))

    norms, losses, total = run(rows)
    assert (norms.dtype, total.dtype) == (jnp.float32, jnp.float32)
    assert losses.dtype == dtype
    np.testing.assert_allclose(norms, np.linalg.norm(exact, axis=1), rtol=3e-7)
    np.testing.assert_allclose(total, 0.1 * exact.sum(axis=0), atol=1e-5)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_float64_parameters_keep_float64(chunk):
    with jax.enable_x64(True):
        rows = np.array([[1e200, 0], [3, 4], [1e-200, 0], [1e300, 1e300], [np.nan, 1]])
        grads_of = dpjax.per_example_grads(one_leaf, chunk=chunk)

        @jax.jit
        def run(w, rows):
            grads = grads_of(w, rows)
            drawn = grads_of(w, rows, drawn_of(np.arange(5), 2, 5))
            clip = lambda n: (RULE.weight(n, 1.0), n[:, None] > 0)  # noqa: E731
            return grads.norms, *grads.aggregate(clip).rounded, drawn.weighted_sum(jnp.full(5, 0.1))

        norms, total, count, drawn = run(jnp.zeros(2, jnp.float64), jnp.asarray(rows))
        assert {x.dtype for x in (norms, total, drawn)} == {np.dtype("float64")}
        np.testing.assert_allclose(norms, [1e200, 5, 1e-200, 1e300 * 2**0.5, np.inf], rtol=1e-15)
        np.testing.assert_allclose(total, [1.6 + 0.5**0.5, 0.8 + 0.5**0.5], rtol=1e-14)
        assert count.tolist() == [5]
        np.testing.assert_allclose(drawn, [1e199, 0.4], rtol=1e-15)


def test_it_cannot_be_flattened():
    grads = dpjax.per_example_grads(one_leaf)(jnp.zeros(2), jnp.ones((3, 2)))
    with pytest.raises(TypeError, match="cannot leave the function that made them"):
        jax.tree.leaves(grads)
