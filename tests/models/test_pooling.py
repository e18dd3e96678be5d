"""Pooling by slices against Flax's window reductions, in value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dpjax.models import pooling
from tests.models import reference
from tests.models.helpers import fast_jit

SETTINGS = [(2, 1, 0), (2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 3, 0)]


@pytest.mark.parametrize(("window", "stride", "padding"), SETTINGS)
def test_max_pool_is_flax_max_pool_in_value_and_gradient(window, stride, padding):
    # A shuffled range has no ties, where the two may differ in their gradients.
    order = np.random.default_rng(0).permutation(2 * 9 * 8 * 3).astype(np.float32)
    x = jnp.asarray(order.reshape(2, 9, 8, 3))
    weights = jnp.cos(jnp.arange(1000.0))
    around = [(padding, padding)] * 2

    def flax(x):
        return nnx.max_pool(x, (window, window), (stride, stride), around)

    def ours(x):
        return jax.vmap(lambda one: pooling.max_pool(one, window, stride, padding))(x)

    def total(f):
        return lambda x: jnp.sum(f(x).reshape(-1) * weights[: f(x).size])

    run = fast_jit(lambda x: [(f(x), jax.grad(total(f))(x)) for f in (ours, flax)])
    (value, gradient), (flax_value, flax_gradient) = run(x)
    np.testing.assert_array_equal(value, flax_value)
    np.testing.assert_array_equal(value[0], reference.pool(np.max, x[0], window, stride, padding))
    # Summation order over overlapping windows is free.
    np.testing.assert_allclose(gradient, flax_gradient, rtol=1e-6, atol=1e-6)


def test_ties_share_the_gradient():
    gradient = jax.grad(lambda x: pooling.max_pool(x, 2, 2).sum())(jnp.ones((2, 2, 1)))
    np.testing.assert_array_equal(gradient, np.full((2, 2, 1), 0.25))


@pytest.mark.parametrize(("window", "stride"), [(2, 2), (3, 2)])
def test_avg_pool(window, stride):
    x = np.random.default_rng(1).normal(size=(9, 8, 3)).astype(np.float32)
    expected = reference.pool(np.mean, x, window, stride)
    np.testing.assert_allclose(pooling.avg_pool(jnp.asarray(x), window, stride), expected, 1e-5)


def test_adaptive_pools_cover_the_image_with_overlap():
    x = np.arange(5.0 * 2).reshape(5, 2, 1)
    # Of five rows, two cells take 0-2 and 2-4: floor(i 5/2) to ceil((i+1) 5/2).
    np.testing.assert_array_equal(
        pooling.adaptive_max_pool(jnp.asarray(x), 2)[..., 0], [[4, 5], [8, 9]]
    )
    np.testing.assert_array_equal(
        pooling.adaptive_avg_pool(jnp.asarray(x), 2)[..., 0], [[2, 3], [6, 7]]
    )
    # More cells than rows: rows are repeated.
    assert pooling.adaptive_avg_pool(jnp.asarray(x), 6).shape == (6, 6, 1)
    np.testing.assert_allclose(pooling.adaptive_avg_pool(jnp.asarray(x), 1)[0, 0, 0], x.mean())
