"""Auxiliary outputs come out of the pass that gives the loss, and change nothing else.

The losses of the table are summed into one program, which is compiled once for each engine.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.gradients import ENGINES, group_index
from dpjax.gradients.rows import batch_rows, loss_arguments
from dpjax.gradients.vmap import MaterialisedChunk
from tests.gradients.compare import assert_close, assert_same
from tests.models.helpers import fast_jit

ROWS, CHUNK = 5, 2
KEY = jax.random.key(7)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), jnp.float32)


def mlp(params, x, key):
    """Logits, and what follows from them: integers, booleans."""
    del key
    logits = jnp.tanh(x @ params["first"] + params["bias"]) @ params["second"]
    loss = jax.nn.logsumexp(logits) - logits[0]
    predicted = jnp.argmax(logits)
    return loss, {"logits": logits, "predicted": predicted, "correct": predicted == 0}


def of_parameters_alone(params, x, key):
    """Also constants, the loss itself, and an argument as it came."""
    del key
    loss = jnp.sum(jnp.sin(x @ params["w"]))
    return loss, [params["w"], jnp.sum(params["w"] ** 2), 3, 2.5, jnp.arange(3), loss, x]


def with_a_key(params, x, key):
    kept = jax.random.bernoulli(key, 0.5, x.shape)
    return jnp.sum(jnp.sin(jnp.where(kept, x, 0) @ params)), (kept, jax.random.split(key)[0])


def recurrent(params, xs, key):
    """States of all turns; and a state, a parameter and a product that the loss never sees."""
    del key

    def step(carry, x):
        h, seen = carry
        h = jnp.tanh(x @ params["in"] + h @ params["hidden"])
        seen = seen + h @ params["probe"]
        return (h, seen), (h, jnp.argmax(h), x @ params["hidden"][: len(x)])

    start = jnp.zeros_like(params["in"][0]), params["probe"][0]
    (h, seen), outputs = jax.lax.scan(step, start, xs)
    return jnp.sum(jnp.sin(h)), (seen, outputs)


def through_calls(params, x, key):
    """Both outputs come out of calls; the second call is for the auxiliary output alone."""
    del key

    @jax.jit
    def both(w, x):
        hidden = jnp.tanh(x @ w)
        return jnp.sum(hidden**2), hidden

    @jax.checkpoint
    def around(w, x):
        loss, hidden = both(w, x)
        return loss, both(w.T[: len(hidden)], hidden)[1]

    return around(params, x)


def through_branches(params, x, key):
    """One equation has both outputs; the loss has a derivative of its own."""
    del key

    @jax.custom_vjp
    def scaled(w, x):
        return jnp.sum(w * x), w + x

    def forward(w, x):
        return scaled(w, x), (w, x)

    def backward(kept, cotangents):
        w, x = kept
        return x * cotangents[0] + cotangents[1], w * cotangents[0] + cotangents[1]

    scaled.defvjp(forward, backward)
    loss, first = scaled(params["scale"], x)
    more, second = jax.lax.cond(
        x[0] > 0,
        lambda w: (jnp.sum(w * x), 2 * w),
        lambda w: (jnp.sum(w), w - x),
        params["branch"],
    )
    return loss + more, (first, second)


def convolution(params, x, key):
    del key
    maps = jax.lax.conv(x[None], params["kernel"], (1,), "SAME")
    seen = jax.lax.conv(maps, params["seen"], (1,), "SAME")
    return jnp.sum(jnp.sin(maps)), {"maps": maps, "seen": seen}


def nothing(params, x, key):
    del key
    return jnp.sum(jnp.cos(x * params)), ()


TABLE = {
    mlp: ({"first": normal(3, 8), "bias": normal(8), "second": normal(8, 4)}, (3,)),
    of_parameters_alone: ({"w": normal(3, 2)}, (3,)),
    with_a_key: (normal(4, 2), (4,)),
    recurrent: ({"in": normal(2, 3), "hidden": normal(3, 3), "probe": normal(3, 3)}, (4, 2)),
    through_calls: (normal(3, 3), (3,)),
    through_branches: ({"scale": normal(3), "branch": normal(3)}, (3,)),
    convolution: ({"kernel": normal(3, 2, 3), "seen": normal(2, 3, 3)}, (2, 6)),
    nothing: (normal(3), (3,)),
}
PARAMS = {loss.__name__: params for loss, (params, _) in TABLE.items()}
BATCH = {loss.__name__: normal(ROWS, *shape, seed=1) for loss, (_, shape) in TABLE.items()}


def everything(params, example, key):
    found = {f.__name__: f(params[f.__name__], example[f.__name__], key) for f in TABLE}
    return sum(loss for loss, _ in found.values()), {name: aux for name, (_, aux) in found.items()}


def reporting(loss_fn):
    """The loss as the engines are handed it: its value is reported with the auxiliary outputs."""

    def pair(*args):
        loss, aux = loss_fn(*args)
        return loss, (loss, aux)

    return pair


def chunks(size):
    rows = batch_rows(BATCH, None, size)
    return [rows.take(start) for start in range(0, ROWS, size)]


@cache
def expected():
    """Returns losses, auxiliary outputs and norms by leaf."""
    (data,) = [loss_arguments(chunk, KEY) for chunk in chunks(ROWS)]
    of_one = jax.value_and_grad(everything, has_aux=True)
    (losses, aux), grads = fast_jit(jax.vmap(of_one, (None, 0, 0)))(PARAMS, *data)
    rows = [np.reshape(leaf, (ROWS, -1)) for leaf in jax.tree.leaves(grads)]
    return losses, aux, jnp.stack([np.linalg.norm(leaf, axis=1) for leaf in rows], axis=1)


@pytest.mark.parametrize("size", [ROWS, CHUNK])
@pytest.mark.parametrize("engine", ["vmap", "ghost", "ghost_two_pass", "auto"])
def test_losses_aux_and_norms_are_those_of_the_loss(engine, size):
    groups = group_index("per_leaf", PARAMS)

    @fast_jit
    def run(params, chunk):
        found = ENGINES[engine](reporting(everything), params, chunk, KEY)
        return *found.aux, found.norms(groups)

    found = [run(PARAMS, chunk) for chunk in chunks(size)]
    stacked = jax.tree.map(lambda *parts: jnp.concatenate(parts)[:ROWS], *found)
    assert_close(stacked, expected())
    for leaf, like in zip(jax.tree.leaves(stacked), jax.tree.leaves(expected()), strict=True):
        assert (leaf.shape, leaf.dtype) == (like.shape, like.dtype)
    exact = [x for x in jax.tree.leaves(stacked) if not jnp.issubdtype(x.dtype, jnp.inexact)]
    assert_same(
        exact, [x for x in jax.tree.leaves(expected()) if not jnp.issubdtype(x.dtype, jnp.inexact)]
    )


DOT, LOOP = ("dot_general",), ("scan/dot_general",)
MEETS = {
    mlp: {"first": DOT, "bias": ("add",), "second": DOT},
    of_parameters_alone: {"w": DOT},
    with_a_key: {"": DOT},
    recurrent: {"in": LOOP, "hidden": LOOP, "probe": ()},
    through_calls: {"": DOT},
    convolution: {"kernel": ("conv_general_dilated",), "seen": ()},
}


def without_aux(loss_fn):
    return lambda *args: (loss_fn(*args)[0], ())


def step(engine, loss_fn, groups):
    """Returns the function from parameters and a chunk to all that an engine gives."""

    def run(params, chunk):
        found = ENGINES[engine](reporting(loss_fn), params, chunk, KEY)
        norms = found.norms(groups)
        total = found.weighted_sum(1 / (1 + norms), norms, groups)
        losses, aux = found.aux
        return losses, norms, total, aux

    return run


@pytest.mark.parametrize("engine", ["vmap", "ghost", "ghost_two_pass"])
@pytest.mark.parametrize("loss", [mlp, recurrent])
def test_gradients_do_not_change_by_a_bit(loss, engine):
    params = PARAMS[loss.__name__]
    chunk = batch_rows(BATCH[loss.__name__], None, None).all()
    groups = group_index("per_leaf", params)

    def half(*args):
        """An auxiliary output in half precision is no reason to distrust the second pass."""
        value, aux = loss(*args)
        return value, (aux, jax.tree.map(lambda x: x.astype(jnp.bfloat16), aux))

    # Compiled as users do.
    *found, _ = jax.jit(step(engine, half, groups))(params, chunk)
    *plain, _ = jax.jit(step(engine, without_aux(loss), groups))(params, chunk)
    assert_same(found, plain)
    # What only the auxiliary outputs depend on has no gradient.
    for i, path in enumerate(groups.names):
        assert bool(np.any(found[1][:, i])) == bool(np.any(found[2].hi[path]))
        assert bool(np.any(found[1][:, i])) == bool(MEETS[loss][path])


@pytest.mark.parametrize("loss", MEETS, ids=lambda loss: loss.__name__)
def test_only_what_the_loss_depends_on_is_planned_for(loss):
    """A weight that meets data once more for the auxiliary output is not formed for that."""
    shapes = jax.eval_shape(lambda: (PARAMS[loss.__name__], BATCH[loss.__name__][0], KEY))
    found = dpjax.explain(loss, *shapes)
    assert {leaf.path: leaf.meets for leaf in found.leaves} == MEETS[loss]
    assert all(leaf.method in ("none", "form", "gram") for leaf in found.leaves)
    assert found.fallbacks == ()


def test_a_plain_pytree_has_no_aux():
    grads = MaterialisedChunk(normal(3, 2), jnp.ones(3, bool))
    assert grads.aux == ()
    assert grads.map(jnp.sin).aux == ()


@pytest.mark.parametrize("engine", ["ghost", "ghost_two_pass"])
def test_the_forward_pass_is_shared(engine):
    """By the compiler's own count: logits of two wide layers cost next to nothing."""
    params = {"first": normal(64, 128), "bias": normal(128), "second": normal(128, 64)}
    chunk = batch_rows(normal(ROWS, 64), None, None).all()
    groups = group_index(None, params)

    def flops(loss_fn):
        lowered = fast_jit(step(engine, loss_fn, groups)).lower(params, chunk)
        return lowered.compile().cost_analysis()["flops"]

    assert flops(mlp) < 1.1 * flops(without_aux(mlp))
