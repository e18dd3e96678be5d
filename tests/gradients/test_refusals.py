"""What `per_example_grads` and `privatize` refuse, in one sentence that says what was expected."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen, nnx

import dpjax
from dpjax.gradients import as_per_example_grads
from tests.gradients.drawn import drawn_of

W = jnp.zeros(2)
BATCH = jnp.ones((4, 2))
MECHANISM = dpjax.Mechanism(dpjax.rules.abadi(), 1.0, 1.0)


def loss(w, x):
    return jnp.sum(w * x)


def grads_of(*args, loss_fn=loss, **kwargs):
    return dpjax.per_example_grads(loss_fn)(*args, **kwargs)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("vmpa", r"engine = 'vmpa': did you mean 'vmap'\? \(known: .*vmap"),
        ("nothing", r"engine = 'nothing': \(known: .*vmap"),
        (None, r"engine = None: \(known: .*vmap"),
    ],
)
def test_an_unknown_engine_is_named_with_the_nearest(engine, message):
    with pytest.raises(ValueError, match=message):
        dpjax.per_example_grads(loss, engine=engine)


@pytest.mark.parametrize(
    ("chunk", "error"),
    [(0, ValueError), (-2, ValueError), (2.5, TypeError), (True, TypeError), ("4", TypeError)],
)
def test_a_chunk_is_a_positive_integer(chunk, error):
    with pytest.raises(error, match=f"chunk = {chunk!r}: expected an integer >= 1"):
        dpjax.per_example_grads(loss, chunk=chunk)


def test_a_ragged_batch_names_the_leaves():
    ragged = {"x": jnp.ones((3, 2)), "y": jnp.ones(4)}
    message = r"batch is ragged: batch\['x'\] has 3, batch\['y'\] has 4 rows"
    with pytest.raises(ValueError, match=message):
        grads_of(W, ragged)
    with pytest.raises(ValueError, match=r"data is ragged: data\['x'\] has 3, data\['y'\] has 4"):
        grads_of(W, ragged, drawn_of(jnp.arange(2), 2, 3))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({}, "batch has no leaves: expected arrays with a leading batch axis"),
        ({"x": jnp.float32(1)}, r"batch\['x'\] is a scalar: expected a leading batch axis"),
    ],
)
def test_a_batch_has_a_leading_axis(batch, message):
    with pytest.raises(ValueError, match=message):
        grads_of(W, batch)


@pytest.mark.parametrize("shape", [(), (3,), (4, 1), (1, 4)])
def test_a_mask_has_one_entry_per_row(shape):
    with pytest.raises(ValueError, match=r"mask has shape \(.*\): expected \(4,\), one per row"):
        grads_of(W, BATCH, mask=jnp.ones(shape))
    with pytest.raises(ValueError, match=r"mask has shape \(.*\): expected \(4,\), one per row"):
        as_per_example_grads(BATCH, mask=jnp.ones(shape))


def test_a_mask_has_numbers():
    with pytest.raises(TypeError, match="mask = 'all': expected 4 numbers, 0 for padding"):
        grads_of(W, BATCH, mask="all")


@pytest.mark.parametrize("bad", [lambda w, x: w * x, lambda w, x: 1, lambda w, x: x > w])
def test_a_loss_is_one_floating_point_number(bad):
    message = "loss_fn returned .*: expected one floating-point number for ONE example"
    with pytest.raises(ValueError, match=message):
        grads_of(W, BATCH, loss_fn=bad)


def test_a_loss_with_auxiliary_output_is_refused():
    with pytest.raises(ValueError, match="expected one floating-point number for ONE example"):
        grads_of(W, BATCH, loss_fn=lambda w, x: (loss(w, x), x))


def test_parameters_are_real():
    message = r"params\['head'\] has dtype complex64: expected a real parameter"
    with pytest.raises(TypeError, match=message):
        grads_of({"body": W, "head": jnp.ones(2, jnp.complex64)}, BATCH)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bool_])
def test_other_leaves_are_held(dtype):
    params = {"body": W, "head": jnp.ones(2, dtype)}
    grads = dpjax.per_example_grads(lambda p, x: loss(p["body"], x))(params, BATCH)
    assert grads.like["head"] is None
    tx = dpjax.privatize(dpjax.methods.dp_sgd(1.0), 4, jax.random.key(0))
    with pytest.raises(TypeError, match=r"params\['head'\] is not an array of floats"):
        tx.init(params)
    updates, _ = tx.update(grads, tx.init({"body": W, "head": None}), params)
    assert updates["head"] is None


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.BatchNorm(use_running_average=False, name="second_norm")(linen.Dense(3)(x))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(2, 3, rngs=rngs)
        self.second_norm = nnx.BatchNorm(3, rngs=rngs)


BATCH_STATS = "second_norm keeps batch statistics, .*GroupNorm"


def test_linen_batch_statistics_are_refused_by_name():
    variables = LinenNet().init(jax.random.key(0), BATCH)
    for refuse in (dpjax.refuse_batch_stats, lambda v: grads_of(v, BATCH)):
        with pytest.raises(ValueError, match=BATCH_STATS):
            refuse(variables)
    dpjax.refuse_batch_stats(variables["params"])


def test_nnx_batch_statistics_are_refused_by_name():
    model = NnxNet(nnx.Rngs(0))
    for refuse in (dpjax.refuse_batch_stats, lambda v: grads_of(v, BATCH)):
        with pytest.raises(ValueError, match=BATCH_STATS):
            refuse(model)
        with pytest.raises(ValueError, match=BATCH_STATS):
            refuse(nnx.state(model))
    dpjax.refuse_batch_stats(nnx.state(model, nnx.Param))


@pytest.mark.parametrize(
    "params",
    [
        jnp.zeros(3),
        {"a": jnp.zeros((2, 3)), "b": jnp.zeros(2)},
        {"a": jnp.zeros((2, 3)), "b": jnp.zeros(3)},
        {"a": jnp.zeros(2), "b": jnp.zeros(())},
    ],
)
def test_averaged_gradients_are_told_from_per_example_ones(params):
    tx = optax.chain(dpjax.privatize(MECHANISM, 4, jax.random.key(0)), optax.sgd(0.1))
    averaged = jax.tree.map(jnp.ones_like, params)
    with pytest.raises(ValueError, match="grads has the shapes of params: expected one gradient"):
        tx.update(averaged, tx.init(params), params)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            {"a": (3,), "b": (3, 2)},
            r"grads has 3 rows shaped \[\(\), \(2,\)\]: expected one gradient",
        ),
        ({"a": (3, 3), "b": (3, 2)}, r"in front of each parameter, shaped \[\(2,\), \(2,\)\]"),
        ({"a": (4, 2), "b": (3, 2)}, "grads is ragged"),
        ({"a": (4, 2), "b": ()}, r"grads\['b'\] is a scalar"),
    ],
)
def test_gradients_that_do_not_fit_are_refused_by_their_shapes(shapes, message):
    tx = dpjax.privatize(MECHANISM, 4, jax.random.key(0))
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    with pytest.raises(ValueError, match=message):
        tx.update(
            {name: jnp.ones(shape) for name, shape in shapes.items()}, tx.init(params), params
        )


def test_a_mask_beside_an_object_that_has_its_own_is_refused():
    tx = dpjax.privatize(MECHANISM, 4, jax.random.key(0))
    with pytest.raises(ValueError, match="mask: expected only with a plain pytree"):
        tx.update(grads_of(W, BATCH), tx.init(W), W, mask=jnp.ones(4))


def test_weights_have_one_entry_per_row_and_group():
    grads = grads_of({"a": W, "b": W}, BATCH, loss_fn=lambda p, x: loss(p["a"] + p["b"], x))
    with pytest.raises(ValueError, match=r"weights has shape \(3,\): expected \(4,\)"):
        grads.weighted_sum(jnp.ones(3))
    with pytest.raises(ValueError, match=r"weights has shape \(4,\): expected \(4, 2\)"):
        grads.weighted_sum(jnp.ones(4), "per_leaf")
    with pytest.raises(ValueError, match=r"no parameter lies under 'aa'|'a' has no label"):
        grads.group_norms({"aa": "x", "b": "y"})


@pytest.mark.parametrize("shape", [(4,), (2, 4), ()])
def test_weights_of_aggregate_have_the_shape_of_the_norms(shape):
    grads = grads_of({"a": W, "b": W}, BATCH, loss_fn=lambda p, x: loss(p["a"] + p["b"], x))
    with pytest.raises(ValueError, match=r"weights has shape .*: expected \(4, 2\)"):
        grads.aggregate(lambda n: (jnp.ones(shape), n), "per_leaf")
