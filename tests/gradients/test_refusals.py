"""What `per_example_grads` and `privatize` refuse, in one sentence that says what was expected."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState

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


@pytest.mark.parametrize(
    ("batch_loss", "error"),
    [
        (lambda w, x: jnp.mean(jnp.square(x @ w - 1), axis=0), IndexError),
        (lambda w, x: jnp.mean(x[:, 0] * w[0]), IndexError),
        (lambda w, x: x["label"] * w, TypeError),
        (lambda w, x: w.no_such_thing, AttributeError),
    ],
)
def test_an_error_inside_the_loss_says_that_it_was_given_one_example(batch_loss, error):
    with pytest.raises(error) as raised:
        grads_of(W, BATCH, loss_fn=batch_loss)
    note = r"dpjax called loss_fn with ONE example, .*shape=\(2,\)"
    assert any(re.match(note, each) for each in raised.value.__notes__)


@pytest.mark.parametrize("bad", [lambda w, x: w * x, lambda w, x: 1, lambda w, x: x > w])
def test_a_loss_is_one_floating_point_number(bad):
    message = "loss_fn returned .*: expected one floating-point number for ONE example"
    with pytest.raises(ValueError, match=message):
        grads_of(W, BATCH, loss_fn=bad)


def test_a_loss_with_auxiliary_output_is_refused():
    with pytest.raises(ValueError, match="expected one floating-point number for ONE example"):
        grads_of(W, BATCH, loss_fn=lambda w, x: (loss(w, x), x))


@pytest.mark.parametrize("key", [None, jax.random.key(0)])
def test_random_streams_among_the_parameters_are_refused(key):
    model = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    message = r"^params holds random streams \(nnx.Rngs\).*expected dpjax\.nnx\.per_example_grads"
    for params in (model, {"body": model}, nnx.state(model)):
        with pytest.raises(ValueError, match=message):
            grads_of(params, BATCH, key=key, loss_fn=lambda m, x, *key: jnp.sum(m(x)))


@pytest.mark.parametrize("shape", [(3,), (2, 2), (0,)])
def test_the_words_of_a_legacy_key_have_its_shape(shape):
    key = jnp.zeros(shape, jnp.uint32)
    with pytest.raises(TypeError, match=r"an array of uint32 with shape \(.*expected one JAX"):
        grads_of(W, BATCH, key=key, loss_fn=lambda w, x, key: loss(w, x))


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


class OwnNorm(linen.Module):
    """A normalisation that a user wrote."""

    @linen.compact
    def __call__(self, x):
        mean = self.variable("batch_stats", "mean", jnp.zeros, x.shape[1:])
        mean.value = 0.9 * mean.value + 0.1 * x.mean(0)
        return x - mean.value


class Nested(linen.Module):
    norm: linen.Module

    @linen.compact
    def __call__(self, x):
        return self.norm(linen.Dense(3)(x))


class Trainer:
    """Keeps model and variables in attributes, as a user's class may."""

    def __init__(self, model, variables):
        self.model, self.variables = model, variables

    def loss(self, params, x):
        return trained(self.model, params, self.variables["batch_stats"], x)


class WithStats(TrainState):
    """As in Flax's guide to batch normalisation."""

    batch_stats: Any


def trained(model, params, stats, x):
    held = {"params": params, "batch_stats": stats}
    return jnp.sum(model.apply(held, x[None], mutable=["batch_stats"])[0])


def in_a_train_state(model, variables):
    state = WithStats.create(apply_fn=model.apply, tx=optax.sgd(0.1), **variables)
    return lambda params, x: trained(model, params, state.batch_stats, x)


def closed_over(model, variables):
    stats = variables["batch_stats"]
    return lambda params, x: trained(model, params, stats, x)


def closed_over_whole(model, variables):
    return lambda params, x: trained(model, params, variables["batch_stats"], x)


def bound(model, variables):
    return functools.partial(
        lambda stats, params, x: trained(model, params, stats, x), variables["batch_stats"]
    )


def new_in_every_step(model, variables):
    return lambda params, x: trained(model, params, {}, x)


HELD = {
    "train_state": in_a_train_state,
    "statistics": closed_over,
    "variables": closed_over_whole,
    "partial": bound,
    "method": lambda model, variables: Trainer(model, variables).loss,
    "new": new_in_every_step,
}


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


@pytest.mark.parametrize("name", HELD)
def test_linen_layers_that_update_batch_statistics_are_refused_wherever_these_are_held(name):
    model = LinenNet()
    variables = model.init(jax.random.key(0), BATCH)
    with pytest.raises(ValueError, match=rf"^{BATCH_STATS}"):
        grads_of(variables["params"], BATCH, loss_fn=HELD[name](model, variables))


def test_a_normalisation_of_ones_own_is_refused_by_its_path():
    model = Nested(Nested(OwnNorm()))
    variables = model.init(jax.random.key(0), BATCH)
    with pytest.raises(ValueError, match=r"^norm/norm keeps batch statistics"):
        grads_of(variables["params"], BATCH, loss_fn=closed_over(model, variables))


@pytest.mark.parametrize("mutable", [False, ["batch_stats"], ["intermediates"]])
def test_frozen_linen_statistics_are_taken(mutable):
    model = Nested(linen.BatchNorm(use_running_average=True))
    variables = model.init(jax.random.key(0), BATCH)

    def frozen(params, x):
        held = {"params": params, "batch_stats": variables["batch_stats"]}
        found = model.apply(held, x[None], mutable=mutable)
        return jnp.sum(found[0] if mutable else found)

    assert np.all(np.isfinite(grads_of(variables["params"], BATCH, loss_fn=frozen).norms))


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
