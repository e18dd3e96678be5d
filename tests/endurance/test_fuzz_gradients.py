"""Gradients of any value, shape and type: contributions within the bound, releases that are finite.

Shapes and types are a fixed table, so that each is compiled once; the values are fuzzed.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpjax
from dpjax.testing import SLACK
from tests import registry
from tests.endurance.counting import count, examples
from tests.endurance.junk import HUGE, float32s

ROWS, WIDTH = 4, 5
row = st.one_of(
    st.lists(float32s, min_size=WIDTH, max_size=WIDTH),
    st.tuples(
        float32s, st.lists(st.sampled_from([-1.0, 0.0, 1e-7, 1.0]), min_size=WIDTH, max_size=WIDTH)
    ).map(lambda p: [p[0] * v for v in p[1]]),
)
batches = st.lists(row, min_size=ROWS, max_size=ROWS)


def as_rows(values):
    return np.clip(np.asarray(values, np.float64), -np.inf, np.inf).astype(np.float32)


@cache
def compiled(name):
    """Returns (contribution of every row by itself, release of all rows), jitted."""
    mechanism = dpjax.Mechanism(registry.RULES[name], 1.3, 0.5)
    tx = dpjax.privatize(mechanism, ROWS, jax.random.key(3))
    params = jnp.zeros(WIDTH)
    state = tx.init(params)

    @jax.jit
    def run(rows, step):
        alone = jax.vmap(lambda g: dpjax.clipped_sum(mechanism, g[None], state).gradient)(rows)
        release, after = tx.update(rows, state._replace(step=step), params)
        return alone, release, after.released.bound

    return run


@pytest.mark.parametrize("name", registry.RULES)
def test_contributions_and_releases(name):
    @examples(40)
    @given(values=batches, step=st.integers(0, 2**31 - 2))
    def any_rows(values, step):
        count("input", "privatize")
        with np.errstate(over="ignore"):
            rows = as_rows(values)
        alone, release, bound = compiled(name)(rows, jnp.int32(step))
        lengths = np.linalg.norm(np.asarray(alone, np.float64), axis=1)
        assert np.all(lengths <= float(bound) * (1 + SLACK))
        assert np.all(np.isfinite(release))
        broken = ~np.all(np.isfinite(rows), axis=1)
        assert np.all(np.asarray(alone)[broken] == 0)

    any_rows()


# Pytrees of parameters, by shape and type: 0-d, empty, half precision, several leaves.
TREES = {
    "0-d": {"w": ((), jnp.float32)},
    "empty leaf": {"w": ((3,), jnp.float32), "none": ((0,), jnp.float32)},
    "empty matrix": {"w": ((2, 2), jnp.float32), "none": ((0, 4), jnp.float32)},
    "bfloat16": {"w": ((3,), jnp.bfloat16)},
    "float16": {"w": ((2, 1), jnp.float16)},
    "mixed": {"a": ((2,), jnp.float32), "b": ((1, 2), jnp.float16), "c": ((), jnp.bfloat16)},
}


def loss(params, scale):
    """Has the gradient `scale` in every entry of every leaf."""
    return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(params)) * scale


@cache
def whole_step(tree, batch, chunk):
    """Returns a jitted step, on one of the trees and a batch of a size."""
    params = {name: jnp.zeros(shape, dtype) for name, (shape, dtype) in TREES[tree].items()}
    mechanism = dpjax.Mechanism(dpjax.rules.abadi(), 1.0, 1.0)
    tx = dpjax.privatize(mechanism, 4.0, jax.random.key(1))

    @jax.jit
    def run(scales, mask):
        grads = dpjax.per_example_grads(loss, chunk=chunk)(params, scales, mask=mask)
        total = dpjax.clipped_sum(mechanism, grads, tx.init(params)).gradient
        return grads.norms, total, tx.update(grads, tx.init(params), params)[0]

    return run, params


SIZES = [(0, None), (1, None), (5, 2)]


@pytest.mark.parametrize(("batch", "chunk"), SIZES)
@pytest.mark.parametrize("tree", TREES)
def test_trees_and_batches_of_odd_shapes(tree, batch, chunk):
    run, params = whole_step(tree, batch, chunk)
    half = tree in ("float16", "mixed")
    most = 6e4 if half else HUGE

    @examples(8)
    @given(data=st.data())
    def any_scale(data):
        count("input", "per_example_grads")
        values = st.one_of(st.floats(-most, most, width=32), st.sampled_from([np.nan, np.inf, 0.0]))
        scales = data.draw(st.lists(values, min_size=batch, max_size=batch))
        mask = data.draw(st.lists(st.booleans(), min_size=batch, max_size=batch))
        norms, total, release = run(
            jnp.asarray(np.asarray(scales, np.float32).reshape(batch)),
            jnp.asarray(np.asarray(mask, np.float32).reshape(batch)),
        )
        assert norms.shape == (batch,)
        assert not np.any(np.isnan(norms))
        length = np.sqrt(sum(np.sum(np.float64(leaf) ** 2) for leaf in jax.tree.leaves(total)))
        assert length <= sum(mask) * (1 + 1e-5)
        for name, leaf in release.items():
            assert leaf.shape == params[name].shape
            assert leaf.dtype == params[name].dtype
            assert np.all(np.isfinite(np.asarray(leaf, np.float32)))

    any_scale()


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.bool_, jnp.complex64])
def test_leaves_that_are_no_real_numbers_are_refused(dtype):
    mechanism = dpjax.Mechanism(dpjax.rules.abadi(), 1.0, 1.0)
    tx = dpjax.privatize(mechanism, 4.0, jax.random.key(1))
    state = tx.init({"w": jnp.zeros(2)})
    for refused in (
        lambda: dpjax.per_example_grads(loss)({"w": jnp.zeros(2, dtype)}, jnp.ones(3)),
        lambda: tx.update({"w": jnp.ones((3, 2), dtype)}, state),
    ):
        count("input", "per_example_grads")
        with pytest.raises((TypeError, ValueError), match=r"floating-point|a real parameter"):
            refused()
