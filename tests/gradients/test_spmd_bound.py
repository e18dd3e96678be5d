"""On a mesh that splits the parameters too, no contribution is longer than its bound.

There a norm is summed over several axes and devices, not over one flat row. One row at a time is
real, and the length of its contribution is taken in float64.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import dpjax
from tests.gradients.test_bound_engine import KINDS, SLACK
from tests.registry import RULES

DEVICES, ROWS = 8, 4
pytestmark = pytest.mark.skipif(jax.device_count() < DEVICES, reason=f"needs {DEVICES} devices")

SHAPES = {"convolution": (3, 3, 8, 64), "kernel": (48, 32)}
SPECS = {"convolution": P(None, None, None, "model"), "kernel": P("model")}
C = 0.7


def loss(params, example):
    """The gradient by one leaf is a part of the example, by the other a product of two parts."""
    flat, u, v = example
    return jnp.sum(params["convolution"] * flat) + u @ params["kernel"] @ v


@cache
def contribution(engine):
    """Returns a jitted function of rows on the mesh, and of which is real: the sum, its figure."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    by_row = NamedSharding(mesh, P("data"))
    mechanism = dpjax.Mechanism(RULES["auto_v"], C, 1.0)
    params = {
        k: jax.device_put(jnp.zeros(s), NamedSharding(mesh, SPECS[k])) for k, s in SHAPES.items()
    }
    state = dpjax.privatize(mechanism, 1, jax.random.key(0)).init(params)
    grads_of = dpjax.per_example_grads(loss, engine, sharding=by_row)

    @jax.jit
    def run(params, rows, mask):
        total = dpjax.clipped_sum(mechanism, grads_of(params, rows, mask=mask), state)
        return total.gradient, total.gradient_low, total.rerounding

    return lambda rows, mask: run(params, *jax.device_put((rows, mask), by_row))


def drawn(kind, rng):
    flat = np.stack([kind(rng, np.prod(SHAPES["convolution"])) for _ in range(ROWS)])
    u, v = (rng.standard_normal((ROWS, n)) for n in SHAPES["kernel"])
    short = np.abs(flat).max() * 2.0**-9 if rng.random() < 0.5 else 0.0
    rows = flat.reshape(ROWS, *SHAPES["convolution"]), u * np.sqrt(short), v * np.sqrt(short)
    return tuple(x.astype(np.float32) for x in rows)


SLOW = [pytest.param(engine, marks=pytest.mark.slow) for engine in ("ghost", "ghost_two_pass")]


@pytest.mark.parametrize("engine", ["vmap", *SLOW])
def test_no_contribution_exceeds_its_bound_on_a_mesh(engine):
    bound = float(RULES["auto_v"].bound(np.float64(np.float32(C))))
    rng = np.random.default_rng(0)
    for kind in KINDS:
        rows = drawn(kind, rng)
        for i in range(ROWS):
            *halves, figure = contribution(engine)(rows, np.arange(ROWS) == i)
            pairs = zip(*map(jax.tree.leaves, halves), strict=True)
            parts = [np.float64(hi) + np.float64(lo) for hi, lo in pairs]
            length = np.sqrt(sum(np.sum(np.square(x)) for x in parts))
            assert float(figure) < 1e-4
            assert (1 - 1e-4) * bound < length <= bound * (1 + SLACK + float(figure)), kind
