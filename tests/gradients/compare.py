"""Comparison of pytrees that may hold random keys."""

import jax
import numpy as np


def assert_close(found, expected, rtol=1e-5, atol=1e-6):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(_numbers(a), _numbers(e), rtol=rtol, atol=atol)


def assert_same(found, expected):
    """Asserts equality bit for bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(_numbers(a), _numbers(e))


def _numbers(leaf):
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return np.asarray(leaf)
