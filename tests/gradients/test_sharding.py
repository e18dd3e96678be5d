"""The private update inside `shard_map` over eight devices equals that of one device.

Clipping happens on each example, before the one sum over the devices; the noise comes after it.
"""

import re
from collections import Counter
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import dpjax
from tests.gradients import softmax
from tests.gradients.compare import assert_close
from tests.gradients.drawn import drawn_of, rows_of

DEVICES, ROWS = 8, 48
PARAMS = softmax.make_params()
DATA = softmax.make_data(ROWS, spread=2.0)  # norms over many orders of magnitude
KEY = jax.random.key(0)

MECHANISMS = {
    "fixed": dpjax.methods.dp_sgd(1.0, 0.3),
    "adaptive": dpjax.methods.dc_sgd_e(1.0, c0=0.3),
    "per_leaf": dpjax.Mechanism(dpjax.rules.auto_s(), 0.3, 1.0, groups="per_leaf"),
}


@pytest.fixture(scope="module")
def mesh():
    if jax.device_count() < DEVICES:
        pytest.skip(f"needs {DEVICES} devices")
    return jax.make_mesh((DEVICES,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def private_step(mechanism, chunk, axis_name, params, state, data, drawn=None):
    grads_of = dpjax.per_example_grads(softmax.loss, "vmap", chunk=chunk)
    tx = dpjax.privatize(mechanism, ROWS, KEY, axis_name)
    return tx.update(grads_of(params, data, drawn), state, params)


def initial_state(mechanism):
    return dpjax.privatize(mechanism, ROWS, KEY).init(PARAMS)


@cache
def of_one_device(name, rows=None):
    """Returns the update and state from all rows, or some of them, on one device in one piece."""
    mechanism = MECHANISMS[name]
    data = DATA if rows is None else jax.tree.map(lambda x: x[np.array(rows)], DATA)
    step = jax.jit(partial(private_step, mechanism, None, None))
    return step(PARAMS, initial_state(mechanism), data)


def sharded(mesh, step, *batch_specs, check_vma=True):
    return jax.jit(
        jax.shard_map(
            step, mesh=mesh, in_specs=(P(), P(), *batch_specs), out_specs=P(), check_vma=check_vma
        )
    )


def clipped_by_hand(grads, c):
    return softmax.weighted_sum(grads, np.minimum(1, c / softmax.norms(grads)))


@pytest.mark.parametrize(("name", "chunk"), [("fixed", None), ("adaptive", 4), ("per_leaf", 4)])
def test_eight_devices_release_what_one_does(mesh, name, chunk):
    mechanism = MECHANISMS[name]
    eight = sharded(mesh, partial(private_step, mechanism, chunk, "data"), P("data"))
    found = eight(PARAMS, initial_state(mechanism), DATA)
    assert_close(found, of_one_device(name), rtol=1e-6, atol=1e-7)


def test_the_sum_over_devices_is_that_of_clipped_gradients(mesh):
    """The same against float64 by hand, without noise, beside what clipping late would give."""
    mechanism = dpjax.Mechanism(dpjax.rules.abadi(), 0.3, 0.0)
    step = sharded(mesh, partial(private_step, mechanism, 4, "data"), P("data"))
    update, _ = step(PARAMS, initial_state(mechanism), DATA)
    grads = softmax.gradients(PARAMS, DATA)[1]
    expected = jax.tree.map(lambda g: g / ROWS, clipped_by_hand(grads, 0.3))
    assert_close(update, expected, rtol=1e-5, atol=1e-7)

    # The trap: at shared parameters JAX sums gradients over the devices before anybody clips.
    def late(params, data):
        return jax.lax.map(lambda example: jax.grad(softmax.loss)(params, example), data)

    summed = jax.jit(jax.shard_map(late, mesh=mesh, in_specs=(P(), P("data")), out_specs=P()))(
        PARAMS, DATA
    )
    by_device = jax.tree.map(lambda g: g.reshape(DEVICES, -1, *g.shape[1:]).sum(axis=0), grads)
    assert_close(summed, by_device, rtol=1e-4, atol=1e-4)
    wrong = jax.tree.map(lambda g: g / ROWS, clipped_by_hand(by_device, 0.3))
    assert not np.allclose(update["w"], wrong["w"], rtol=0.1)


def test_without_checks_of_device_types_too(mesh):
    mechanism = MECHANISMS["fixed"]
    step = partial(private_step, mechanism, 4, "data")
    unchecked = sharded(mesh, step, P("data"), check_vma=False)
    found = unchecked(PARAMS, initial_state(mechanism), DATA)
    assert_close(found, of_one_device("fixed"), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("split", ["rows", "indices"])
def test_each_device_may_draw_its_own_number_of_rows(mesh, split):
    """Each device holds its rows, or all of them; 0 to 6 of them are drawn, in chunks of 4."""
    mechanism = MECHANISMS["adaptive"]
    state = initial_state(mechanism)
    held = ROWS // DEVICES
    counts = np.array([0, 6, 1, 3, 0, 5, 4, 2])
    local = np.stack([np.random.default_rng(s).permutation(held) for s in range(DEVICES)])
    in_data = local + held * np.arange(DEVICES)[:, None]
    used = np.concatenate([rows[:n] for rows, n in zip(in_data, counts, strict=True)])

    def step(params, state, data, indices, count):
        drawn = drawn_of(indices[0], count[0], rows_of(data))
        return private_step(mechanism, 4, "data", params, state, data, drawn)

    data_spec, indices = (P("data"), local) if split == "rows" else (P(), in_data)
    eight = sharded(mesh, step, data_spec, P("data"), P("data"))
    found = eight(PARAMS, state, DATA, jnp.asarray(indices), jnp.asarray(counts))
    assert_close(found, of_one_device("adaptive", tuple(used.tolist())), rtol=1e-6, atol=1e-7)


def test_norms_and_sums_for_people_work_inside_shard_map(mesh):
    grads_of = dpjax.per_example_grads(softmax.loss, "vmap", chunk=4)

    def look(params, data):
        grads = grads_of(params, data)
        return grads.norms, grads.losses, jax.lax.psum(grads.weighted_sum(grads.norms), "data")

    specs = {"in_specs": (P(), P("data")), "out_specs": (P("data"), P("data"), P())}
    norms, losses, total = jax.jit(jax.shard_map(look, mesh=mesh, **specs))(PARAMS, DATA)
    expected_losses, grads = softmax.gradients(PARAMS, DATA)
    expected = softmax.norms(grads)
    np.testing.assert_allclose(norms, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4, atol=1e-5)
    assert_close(total, softmax.weighted_sum(grads, expected), rtol=1e-4, atol=1e-3)


def test_each_device_may_train_its_own_parameters(mesh):
    """An ensemble over devices: the rows are shared and the parameters differ."""
    members = [softmax.make_params(seed) for seed in range(DEVICES)]
    grads_of = dpjax.per_example_grads(softmax.loss, "vmap", chunk=4)

    def look(params, data):
        return grads_of(jax.tree.map(lambda p: p[0], params), data).norms[None]

    specs = {"in_specs": (P("data"), P()), "out_specs": P("data")}
    stacked = jax.tree.map(lambda *p: jnp.stack(p), *members)
    norms = jax.jit(jax.shard_map(look, mesh=mesh, **specs))(stacked, DATA)
    for found, params in zip(norms, members, strict=True):
        expected = softmax.norms(softmax.gradients(params, DATA)[1])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def equations(jaxpr):
    """Yields every equation, also of inner programs."""
    for eqn in jaxpr.eqns:
        yield eqn
        for sub in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            if hasattr(sub, "eqns") or hasattr(sub, "jaxpr"):
                yield from equations(getattr(sub, "jaxpr", sub))


def test_the_devices_speak_once_a_step(mesh):
    mechanism = MECHANISMS["adaptive"]
    tx = optax.chain(dpjax.privatize(mechanism, ROWS, KEY, "data"), optax.adam(1e-3))
    grads_of = dpjax.per_example_grads(softmax.loss, "vmap", chunk=4)

    def step(params, state, data):
        updates, state = tx.update(grads_of(params, data), state, params)
        return optax.apply_updates(params, updates), state

    arguments = (PARAMS, tx.init(PARAMS), DATA)
    program = sharded(mesh, step, P("data"))
    names = Counter(
        eqn.primitive.name for eqn in equations(jax.make_jaxpr(program)(*arguments).jaxpr)
    )
    assert names["shard_map"] == 1
    # One psum of (b, w, statistic), two limbs each, which newer releases of JAX write as six.
    assert sum(n for name, n in names.items() if name.startswith("psum")) in (1, 6)
    assert not [name for name in names if "gather" in name and name != "gather"]

    compiled = program.lower(*arguments).compile().as_text()
    assert len(re.findall(r"= .*\ball-reduce(-start)?\(", compiled)) == 1  # XLA joins the leaves
    for other in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert other not in compiled
