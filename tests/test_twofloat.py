"""Two-float sums against exact rational arithmetic and float64, compiled."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import twofloat
from dpjax.twofloat import TwoFloat, added, row_sum, two_sum

# Away from overflow, and from sums whose error would be subnormal: XLA flushes those to zero.
NORMAL = st.floats(2.0**-70, 2.0**70, width=32)
FLOATS = st.one_of(st.just(0.0), NORMAL, NORMAL.map(lambda x: -x))
compiled_two_sum = jax.jit(two_sum)


def exact(pair):
    """Returns the value of a pair, in float64: the two halves overlap by at most 53 bits."""
    return np.asarray(pair.hi, np.float64) + np.asarray(pair.lo, np.float64)


@settings(max_examples=300, deadline=None)
@given(FLOATS, FLOATS)
def test_two_sum_is_exact(a, b):
    s, e = compiled_two_sum(jnp.float32(a), jnp.float32(b))
    assert s == np.float32(a) + np.float32(b)
    assert Fraction(float(s)) + Fraction(float(e)) == Fraction(a) + Fraction(b)


@settings(max_examples=100, deadline=None)
@given(st.lists(FLOATS, min_size=4, max_size=4))
def test_pairs_add_to_one_part_in_two_to_the_46(numbers):
    x, y = (
        TwoFloat(*compiled_two_sum(*map(jnp.float32, pair))) for pair in (numbers[:2], numbers[2:])
    )
    total = jax.jit(added)(x, y)
    true = sum(map(Fraction, numbers))
    largest = sum(abs(Fraction(n)) for n in numbers)
    found = Fraction(float(total.hi)) + Fraction(float(total.lo))
    assert abs(found - true) <= largest / 2**46
    assert total.hi == np.float32(np.float64(total.hi) + np.float64(total.lo))


def weighted_row_sum(weights, rows):
    most = jnp.max(jnp.abs(jnp.asarray(weights)[:, None] * rows), initial=0.0)
    return twofloat.weighted_row_sum(jnp.asarray(weights), jnp.asarray(rows), most)


@pytest.mark.parametrize("rows", [1, 2, 8, 63, 64, 65, 128, 129, 300, 4200])
@pytest.mark.parametrize("size", [2.0**-80, 1.0, 2.0**80])
def test_weighted_rows_against_float64(rows, size):
    """The product is rounded once, as float32 does; nothing else is, to 2^-46 of the largest."""
    rng = np.random.default_rng(rows)
    x = (size * (1 + rng.standard_normal((rows, 37)))).astype(np.float32)
    weights = rng.uniform(0.3, 1, rows).astype(np.float32)
    found = jax.jit(weighted_row_sum)(weights, x)
    products = (weights[:, None] * x).astype(np.float64)
    off = np.abs(exact(found) - products.sum(axis=0))
    assert np.all(off <= rows * np.abs(products).max() * 2.0**-45)
    assert np.array_equal(found.hi, exact(found).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [3, 140])
def test_a_row_of_weight_zero_may_hold_anything(rows, dtype):
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 5)).astype(dtype)
    weights = rng.uniform(0.3, 1, rows).astype(dtype)
    weights[1], bad = 0, x.copy()
    bad[1] = [np.nan, np.inf, -np.inf, 3e38, 1]
    with jax.enable_x64(dtype == np.float64):
        sums = jax.jit(twofloat.weighted_row_sum)
        found, expected = (sums(weights, jnp.asarray(some), jnp.float32(8)) for some in (bad, x))
        assert np.array_equal(exact(found), exact(expected))
    assert np.all(np.isfinite(exact(found)))


def test_the_order_of_rows_does_not_matter():
    """Of up to 128: their sum is one of integers."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((128, 50)) * np.logspace(-6, 0, 128)[:, None]).astype(np.float32)
    weights = rng.uniform(0, 1, 128).astype(np.float32)
    sums = jax.jit(weighted_row_sum)
    for order in (np.arange(128)[::-1], rng.permutation(128)):
        found, expected = sums(weights[order], x[order]), sums(weights, x)
        assert np.array_equal(exact(found), exact(expected))
    plain = [(w @ g) for w, g in ((weights, x), (weights[::-1], x[::-1]))]
    assert not np.array_equal(*plain)  # the rejecting arm: float32 sums do depend on it


def test_limbs_do_not_overflow():
    """Rows of the largest product that is allowed, of either sign, in full blocks and beyond."""
    for sign, size in ((1.0, 128), (-1.0, 128), (0.9999999, 512)):
        rows = np.full((size, 3), sign, np.float32)
        found = twofloat.weighted_row_sum(jnp.ones(size), jnp.asarray(rows), jnp.float32(1.0))
        np.testing.assert_allclose(exact(found), [size * float(np.float32(sign))] * 3, rtol=1e-12)


def test_cancelling_rows_of_any_size():
    rows = np.array([[1e20], [3.0], [-1e20], [2e-9], [1e12], [-1e12]], np.float32)
    true = sum(Fraction(float(x)) for x in rows[:, 0])
    found = exact(row_sum(jnp.asarray(rows)))[0]
    assert abs(Fraction(found) - true) <= Fraction(1e20) / 2**46
    ordinary = np.array([[2.0**20], [2.0**-20], [-(2.0**20)], [2.0**-30]], np.float32)
    assert exact(row_sum(jnp.asarray(ordinary)))[0] == 2.0**-20 + 2.0**-30


def test_no_rows_integers_and_overflow():
    none = row_sum(jnp.zeros((0, 3)))
    assert none.hi.tolist() == none.lo.tolist() == [0, 0, 0]
    assert row_sum(jnp.array([True, False, True])).hi == 2
    huge = jnp.full((3, 1), 3e38, jnp.float32)
    assert row_sum(huge).hi.tolist() == [np.inf]
    assert row_sum(huge).lo.tolist() == [0]


def test_float64_is_summed_plainly():
    with jax.enable_x64(True):
        rows = np.random.default_rng(0).standard_normal((300, 4))
        weights = np.linspace(0, 1, 300)
        found = jax.jit(weighted_row_sum)(weights, rows)
        assert found.hi.dtype == np.float64
        assert not np.any(found.lo)
        np.testing.assert_allclose(found.hi, weights @ rows, rtol=1e-13, atol=1e-13)


def test_vmap_and_scan_give_the_same_bits():
    x = np.random.default_rng(1).standard_normal((3, 100, 7)).astype(np.float32)
    weights = np.random.default_rng(2).uniform(0, 1, (3, 100)).astype(np.float32)
    one_by_one = [jax.jit(weighted_row_sum)(w, rows) for w, rows in zip(weights, x, strict=True)]
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *one_by_one)
    mapped = jax.jit(jax.vmap(weighted_row_sum))(weights, x)
    scanned = jax.lax.scan(lambda c, wx: (c, weighted_row_sum(*wx)), 0, (weights, x))[1]
    for found in (mapped, scanned):
        np.testing.assert_allclose(exact(found), exact(expected), rtol=0, atol=1e-12)
