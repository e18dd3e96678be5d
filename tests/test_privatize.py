"""`privatize` as an optax citizen, and where it must refuse."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import dpjax
from dpjax import Mechanism, methods, rules, thresholds
from tests import registry

KEY = jax.random.key(0)
ROWS = jnp.array([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0], [1.0, 0.0, 0.0], [0.0, 6.0, 8.0]])
PARAMS = jnp.zeros(3)


def linear(params, row):
    return jnp.sum(params * row)


@pytest.mark.parametrize("c", [1e-25, 1e-19, 1e19, 1e25])
@pytest.mark.parametrize("groups", [None, "per_leaf"])
def test_the_noise_is_there_at_any_threshold(c, groups):
    """Squaring such a bound in float32 would give 0, and a release without noise, or infinity."""
    params = {"a": jnp.zeros(2000), "b": jnp.zeros(2000)}
    for threshold in (c, lambda t: c):
        tx = dpjax.privatize(Mechanism(rules.abadi(), threshold, 1.0, groups), 1, KEY)
        empty = jax.tree.map(lambda p: p[None], params)
        update, state = jax.jit(
            lambda s, tx=tx, e=empty: tx.update(e, s, params, mask=jnp.zeros(1))
        )(tx.init(params))
        for leaf in jax.tree.leaves(update):
            assert np.std(np.float64(leaf) / c) == pytest.approx(1.0, rel=0.1)
        assert float(state.released.bound) == pytest.approx(c, rel=1e-6)


def test_a_schedule_that_vanishes_keeps_its_noise():
    tx = dpjax.privatize(
        Mechanism(rules.abadi(), lambda t: 0.5 ** jnp.minimum(t, 120), 1.0), 1, KEY
    )
    state = tx.init(PARAMS)._replace(step=jnp.int32(119))
    update, state = tx.update(ROWS, state, PARAMS)
    assert float(state.released.bound) == pytest.approx(1e-25, rel=1e-5)
    assert np.any(np.abs(np.float64(update)) > 1e-27)


@pytest.mark.parametrize("c", [1e-26, 1e26])
def test_thresholds_beyond_float32_are_refused(c):
    with pytest.raises(ValueError, match="where float32 holds the noise"):
        Mechanism(rules.abadi(), c, 1.0)


@pytest.mark.parametrize(
    ("curve", "found"),
    [
        (lambda t: 0.0, "0 at step 0"),
        (lambda t: -1.0, "-1 at step 0"),
        (lambda t: jnp.nan, "nan at step 0"),
        (lambda t: jnp.where(t < 3, 1.0, jnp.inf), "inf at step 3"),
    ],
)
def test_bare_callables_are_probed(curve, found):
    for make in (
        lambda: Mechanism(rules.abadi(), 1.0, curve),
        lambda: Mechanism(rules.abadi(), curve),
    ):
        with pytest.raises(ValueError, match=f"expected finite values, the first > 0, got {found}"):
            make()


def test_a_line_may_end_below_zero_behind_the_run():
    """Nobody knows how long a run is: the accounting refuses what was released without noise."""
    noise = Mechanism(rules.abadi(), lambda t: 1 - t / 10, lambda t: 1 - t / 10)
    sampling = dpjax.sampling.Poisson.with_rate(0.1)
    assert dpjax.epsilon(noise, sampling, steps=5, delta=1e-3) > 0
    with pytest.raises(ValueError, match="noise_multiplier = 0 at step 10"):
        dpjax.epsilon(noise, sampling, steps=12, delta=1e-3)


@pytest.mark.parametrize("kind", [thresholds.dc_sgd_e, dpjax.schedules.yu_linear, dict])
def test_a_class_is_no_schedule(kind):
    with pytest.raises(TypeError, match="expected an instance"):
        Mechanism(rules.abadi(), kind, 1.0)


def test_replace_derives_the_range_anew():
    assert float(thresholds.dc_sgd_p(0.5).replace(c0=5.0).init().range) == 10.0
    assert float(thresholds.dc_sgd_e().replace(bins=10).init().range) == 10.0


def on_two_devices(axis_name, rows_spec, out_spec, key_spec=None, **kwargs):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    mechanism = Mechanism(rules.abadi(), 1.0, 1.0)

    def step(rows, keys):
        key = keys if key_spec is None else keys[0]
        tx = dpjax.privatize(mechanism, 4, key, axis_name)
        return tx.update(rows, tx.init(PARAMS), PARAMS)[0][None]

    keys = KEY if key_spec is None else jax.random.split(KEY, 2)
    specs = {"in_specs": (rows_spec, key_spec or P()), "out_specs": out_spec}
    return jax.jit(jax.shard_map(step, mesh=mesh, **specs, **kwargs))(ROWS, keys)


def test_rows_that_differ_by_device_need_axis_name():
    """Otherwise the devices would put the same noise on different sums."""
    with pytest.raises(ValueError, match="expected axis_name = 'data'"):
        on_two_devices(None, P("data"), P("data"))
    on_two_devices("data", P("data"), P())
    ensemble = on_two_devices(None, P("data"), P("data"), key_spec=P("data"))
    assert ensemble.shape == (2, 3)


def test_rows_that_every_device_has_are_not_counted_twice():
    with pytest.raises(ValueError, match="counted once per device"):
        on_two_devices("data", P(), P())


def test_without_the_types_nothing_is_refused():
    split = on_two_devices("data", P("data"), P(), check_vma=False)
    np.testing.assert_allclose(split, on_two_devices("data", P("data"), P()), rtol=1e-6)


class Normalised(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.BatchNorm(use_running_average=False, name="second")(linen.Dense(3)(x))
        return jnp.sum(x)


def test_frozen_batch_statistics_may_be_bound_to_the_loss():
    model = Normalised()
    variables = model.init(KEY, jnp.ones((2, 3)))
    stats = variables["batch_stats"]

    def frozen_loss(statistics, params, x):
        inference = linen.BatchNorm(use_running_average=True)
        held = {"params": params, "batch_stats": statistics["second"]}
        return jnp.sum(inference.apply(held, x))

    bound = functools.partial(frozen_loss, stats)
    grads = dpjax.per_example_grads(bound)(variables["params"]["second"], jnp.ones((2, 3)))
    assert np.all(np.isfinite(grads.norms))


def test_nnx_modules_with_batch_statistics_are_refused():
    model = nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="keeps batch statistics"):
        dpjax.refuse_batch_stats(model)
    with pytest.raises(ValueError, match="keeps batch statistics"):
        dpjax.per_example_grads(lambda params, x: jnp.sum(model(x)))


def test_flax_train_state_takes_per_example_gradients():
    mechanism = Mechanism(rules.abadi(), 1.0, 0.0)
    tx = optax.chain(dpjax.privatize(mechanism, 4, KEY), optax.sgd(1.0))
    state = TrainState.create(apply_fn=None, params=PARAMS, tx=tx)
    state = state.apply_gradients(grads=dpjax.per_example_grads(linear)(PARAMS, ROWS))
    clipped = ROWS / jnp.maximum(1.0, jnp.linalg.norm(ROWS, axis=1, keepdims=True))
    np.testing.assert_allclose(state.params, -clipped.sum(0) / 4, rtol=1e-5)


def test_transformations_after_privatize():
    """Extra arguments reach them; MultiSteps and masked see one noisy gradient per batch."""

    def needs_value(updates, state, params=None, *, value, **extra):
        return jax.tree.map(lambda u: u * value, updates), state

    scaled = optax.GradientTransformationExtraArgs(lambda p: (), needs_value)
    private = dpjax.privatize(Mechanism(rules.abadi(), 1.0, 1.0), 4, KEY)
    tx = optax.chain(private, scaled, optax.masked(optax.trace(0.9), True))
    update, _ = tx.update(ROWS, tx.init(PARAMS), PARAMS, value=2.0, mask=jnp.ones(4))
    alone, state = private.update(ROWS, private.init(PARAMS), PARAMS)
    np.testing.assert_allclose(update, 2 * alone, rtol=1e-6)
    assert isinstance(state, dpjax.PrivatizeState)
    assert int(state.step) == 1

    every_second = optax.chain(
        private, optax.MultiSteps(optax.sgd(1.0), 2).gradient_transformation()
    )
    state = every_second.init(PARAMS)
    first, state = every_second.update(ROWS, state, PARAMS)
    second, state = every_second.update(ROWS, state, PARAMS)
    later, _ = private.update(ROWS, private.update(ROWS, private.init(PARAMS), PARAMS)[1], PARAMS)
    assert not np.any(first)
    np.testing.assert_allclose(second, -(alone + later) / 2, rtol=1e-5)


@pytest.mark.parametrize("name", ["dp_sgd", "adaclip", "auto_dp_sgd"])
def test_every_transformation_refuses_what_is_no_batch(name):
    method = registry.METHODS[name](1.0)
    params = jnp.zeros((4, 3))
    tx = method.transformation(4, KEY)
    state = tx.init(params)
    with pytest.raises(ValueError, match="expected one gradient per example"):
        tx.update(jnp.ones((4, 3)), state, params)
    part = method.clipped_sum(jnp.ones((2, 4, 3)), state)
    with pytest.raises(ValueError, match="mask: expected with the parts"):
        tx.update(part, state, params, mask=jnp.ones(2))


def test_state_is_a_pytree_of_arrays_that_survives_a_round_trip():
    for method in (methods.dp_sgd(1.0), methods.dc_sgd_e(1.0), methods.psasc_momentum(1.0)):
        state = method.transformation(4, KEY).init(PARAMS)
        leaves, treedef = jax.tree.flatten(state)
        assert all(isinstance(leaf, jax.Array) for leaf in leaves)
        assert jax.tree.structure(jax.tree.unflatten(treedef, leaves)) == treedef


X64 = """
import sys
import jax, jax.numpy as jnp, optax
from tests import registry
import dpjax
for name in sys.argv[1:]:
    for dtype in (jnp.float32, jnp.float64):
        method = registry.METHODS[name](1.0)
        params = {"w": jnp.zeros(3, dtype)}
        rows = jnp.ones((8, 3), dtype)
        tx = optax.chain(method.transformation(64, jax.random.key(0)), optax.adam(0.1))
        def step(carry, _):
            params, state = carry
            grads = dpjax.per_example_grads(lambda p, x: jnp.sum(p["w"] * x))(params, rows)
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None
        start = (params, tx.init(params))
        (params, _), _ = jax.jit(lambda c: jax.lax.scan(step, c, length=2))(start)
        assert params["w"].dtype == dtype, name
"""


@pytest.mark.parametrize(
    "names",
    [
        ("dp_sgd", "dc_sgd_e"),
        pytest.param(
            ("andrew", "dc_sgd_p", "van_der_veen", "global_adapt", "adaclip"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_scans_in_double_precision(names):
    subprocess.run(
        [sys.executable, "-W", "error", "-c", X64, *names],
        check=True,
        env=os.environ | {"JAX_ENABLE_X64": "1"},
        cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    )
