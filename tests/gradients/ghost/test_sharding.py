"""A batch split over four devices gives the sums and norms of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import dpjax
from tests.gradients.ghost.cases import get
from tests.gradients.ghost.contract import Case, Expected, assert_flat_norms, assert_sums, cast
from tests.models.helpers import fast_jit

DEVICES = 4


@pytest.fixture(scope="module")
def mesh():
    if jax.device_count() < DEVICES:
        pytest.skip(f"needs {DEVICES} devices")
    devices = jax.devices()[:DEVICES]
    kind = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((DEVICES,), ("data",), axis_types=kind, devices=devices)


def eight_rows(case):
    return jax.tree.map(lambda x: np.concatenate([x, x[::-1][:3]]), case.batch)


def gradients(case: Case, batch):
    """Returns the leaves of each row's gradient alone, in float64."""
    with jax.enable_x64(True):
        params, batch = cast(case.params, "float64"), cast(batch, "float64")
        grad = fast_jit(jax.grad(case.loss))
        rows = [grad(params, jax.tree.map(lambda x, i=i: x[i], batch)) for i in range(8)]
        return [np.stack(column) for column in zip(*map(jax.tree.leaves, rows), strict=True)]


@pytest.mark.parametrize("chunk", [None, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("ghost", "conv_network"),
        ("ghost", "model_lstm"),
        ("ghost", "nonlinear_derivative_between_two_loops"),
        pytest.param("ghost_two_pass", "conv_network", marks=pytest.mark.slow),
        pytest.param("ghost_two_pass", "model_lstm", marks=pytest.mark.slow),
    ],
)
def test_four_devices_give_what_one_does(mesh, name, engine, chunk):
    case = get(name)
    batch = eight_rows(case)
    grads_of = dpjax.per_example_grads(case.loss, engine=engine, chunk=chunk)

    def step(params, batch, mask):
        sums = grads_of(params, batch, mask=mask).aggregate(
            lambda n: (1 / (1 + n), jnp.stack([n, jnp.ones_like(n)], 1))
        )
        total, norms = sums.rounded
        return jax.lax.psum((total, norms), "data"), norms[None]

    specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": ((P(), P()), P("data"))}
    mask = np.array([1, 1, 0, 1, 1, 1, 1, 0], bool)
    (total, counted), by_device = fast_jit(jax.shard_map(step, mesh=mesh, **specs))(
        cast(case.params, "float32"), cast(batch, "float32"), mask
    )
    expected = Expected(gradients(case, batch), mask)
    assert_sums(total, expected, 1 / (1 + expected.norms[:, None]), "float32")
    np.testing.assert_allclose(counted, [expected.norms.sum(), mask.sum()], rtol=1e-4)
    pairs = expected.norms.reshape(DEVICES, 2).sum(axis=1)
    np.testing.assert_allclose(by_device[:, 0], pairs, rtol=1e-4)


def test_norms_stay_where_their_rows_are(mesh):
    case = get("conv_network")
    batch = eight_rows(case)
    grads_of = dpjax.per_example_grads(case.loss, engine="ghost")
    specs = {"in_specs": (P(), P("data")), "out_specs": P("data")}
    run = jax.shard_map(lambda p, b: grads_of(p, b).norms, mesh=mesh, **specs)
    norms = fast_jit(run)(cast(case.params, "float32"), cast(batch, "float32"))
    expected = Expected(gradients(case, batch), np.ones(8, bool))
    assert_flat_norms(norms, expected, "float32")
