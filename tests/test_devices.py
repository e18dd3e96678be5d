"""The exact sum over devices: integer limbs on a public grid."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from dpjax.batch_sums import ClippedSum, Limits, summed_over_devices

DEVICES, ROWS, WIDTH = 8, 16, 50
pytestmark = pytest.mark.skipif(jax.device_count() < DEVICES, reason=f"needs {DEVICES} devices")


def parts_of(numbers, positions=ROWS):
    """Returns one part per device, stacked, of float64 numbers (DEVICES, ...)."""
    hi = numbers.astype(np.float32)
    lo = (numbers - hi).astype(np.float32)
    every = np.ones(DEVICES)
    return ClippedSum(
        {"w": hi},
        hi[:, :2],
        {"w": lo},
        lo[:, :2],
        (positions * every).astype(np.int32),
        (0 * every).astype(np.float32),
    )


@jax.jit
def summed(parts, bound, sensitivity):
    def one(part):
        own = jax.tree.map(lambda leaf: leaf[0], part)
        return summed_over_devices(own, "data", jax.random.key(0), Limits(bound, sensitivity))

    mesh = Mesh(np.asarray(jax.devices()[:DEVICES]), ("data",))
    return jax.shard_map(one, mesh=mesh, in_specs=P("data"), out_specs=P())(parts)


def value(total):
    return np.float64(total.gradient["w"]) + np.float64(total.gradient_low["w"])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-80, 80), st.floats(1e-6, 1))
def test_any_order_of_devices_gives_the_same_bits(seed, exponent, size):
    """Also at the limit: on every device all rows at the bound, with one sign."""
    rng = np.random.default_rng(seed)
    bound = np.float32(2.0**exponent * rng.uniform(1, 2))
    numbers = (
        size
        * ROWS
        * float(bound)
        * rng.choice([rng.uniform(-1, 1, (DEVICES, WIDTH)), np.ones((DEVICES, WIDTH))])
    )
    total = summed(parts_of(numbers), bound, bound)
    shuffled = summed(parts_of(rng.permutation(numbers)), bound, bound)
    for x, y in zip(jax.tree.leaves(total), jax.tree.leaves(shuffled), strict=True):
        assert np.array_equal(x, y)
    held = parts_of(numbers)
    held = np.float64(held.gradient["w"]) + np.float64(held.gradient_low["w"])
    unit = 2.0 * DEVICES * ROWS * float(bound) * DEVICES * 2.0**-60
    # Each device's part is off by one unit at most, and the result by 2^-48 of itself.
    most = DEVICES * unit + 2.0**-47 * np.abs(held.sum(axis=0))
    assert np.all(np.abs(value(total) - held.sum(axis=0)) <= most)
    assert np.array_equal(total.statistic, total.gradient["w"][:2])
    assert int(total.positions) == DEVICES * ROWS


def test_nothing_adds_up_to_nothing():
    total = summed(parts_of(np.zeros((DEVICES, WIDTH)), positions=0), 1.0, 1.0)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(total))


def test_plain_float_sums_would_depend_on_the_order():
    """The arm that must be rejected: hi and lo each summed by psum."""
    numbers = np.random.default_rng(0).uniform(-1, 1, (DEVICES, 2000))

    def order(parts):
        hi = parts.gradient["w"]
        return np.float64(sum(hi[1:], start=hi[0])) + np.float64(sum(parts.gradient_low["w"]))

    first, second = order(parts_of(numbers)), order(parts_of(numbers[::-1]))
    assert np.linalg.norm(first - second) > 1e-6


def test_float64_parts_are_summed_in_float64():
    with jax.enable_x64(True):
        numbers = np.random.default_rng(0).standard_normal((DEVICES, WIDTH))
        parts = parts_of(numbers)
        parts = ClippedSum(
            {"w": numbers},
            parts.statistic,
            {"w": np.zeros_like(numbers)},
            parts.statistic_low,
            parts.positions,
            parts.rerounding,
        )
        total = summed(parts, 10.0, 10.0)
        assert total.gradient["w"].dtype == np.float64
        np.testing.assert_allclose(value(total), numbers.sum(axis=0), rtol=1e-13, atol=1e-13)
