"""What `explain` says, and what the engine then does."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import models
from tests.models.helpers import fast_jit


def explained(name, shape, **options):
    network = models.build(name, shape, 10, **options)
    params = jax.eval_shape(network.init, jax.random.key(0))
    dtype = jnp.float32 if len(shape) > 1 else jnp.int32

    def loss(params, example):
        logits = network.apply(params, example[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    shapes = jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct((), jnp.int32)
    return dpjax.explain(loss, params, shapes)


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("small_cnn", (28, 28, 1), {}),
        ("cnn4", (28, 28, 1), {}),
        ("resnet9", (32, 32, 3), {}),
        ("resnet18", (32, 32, 3), {"stem": "cifar"}),
        ("nf_resnet18", (32, 32, 3), {}),
        ("lstm", (15,), {"vocabulary": 57}),
        ("bilstm", (15,), {"vocabulary": 57}),
        ("bert", (128,), {"vocabulary": 30_522, "layers": 2}),
        ("roberta", (128,), {"vocabulary": 50_265, "layers": 2}),
    ],
)
def test_no_model_falls_back(name, shape, options):
    found = explained(name, shape, **options)
    assert found.fallbacks == ()
    assert found.auto == "ghost"
    assert all(leaf.method != "none" for leaf in found.leaves)


def test_large_maps_are_formed_and_small_ones_are_not():
    """At T = 1024 positions T^2 is more than K C of a 3x3 kernel; at T = 16 it is far less."""
    found = {
        leaf.path: leaf.method for leaf in explained("resnet18", (32, 32, 3), stem="cifar").leaves
    }
    assert found["blocks/0/conv1/kernel"] == "form"
    assert found["blocks/7/conv2/kernel"] == "gram"
    assert found["dense/kernel"] == "gram"


def test_a_recurrent_kernel_meets_data_in_the_loop():
    found = {leaf.path: leaf for leaf in explained("lstm", (15,), vocabulary=57).leaves}
    assert found["forward/0/recurrent_kernel"].meets == ("scan/dot_general",)
    assert found["forward/0/recurrent_kernel"].method == "gram"
    assert found["embedding"].meets == ("gather",)


def test_reasons():
    def loss(params, x):
        tied = jnp.tanh(x @ params["tied"]) @ params["tied"].T
        scaled = x @ (params["chained"] / jnp.linalg.norm(params["chained"]))
        branch = jax.lax.cond(x[0] > 0, lambda w: jnp.sum(w * x), lambda w: 0.0, params["branch"])
        return jnp.sum(tied) + jnp.sum(scaled) + branch

    names = ("branch", "chained", "tied", "unused")
    params = {name: jnp.ones((3, 3)) for name in names}
    found = {leaf.path: leaf for leaf in dpjax.explain(loss, params, jnp.ones(3)).leaves}
    assert found["tied"].method == "chain"
    assert "2 meeting points" in found["tied"].why
    assert found["chained"].method == "chain"
    assert "computed with" in found["chained"].why
    assert found["branch"].fallback
    assert found["branch"].meets == ("cond",)
    assert found["unused"].method == "none"
    text = str(dpjax.explain(loss, params, jnp.ones(3)))
    assert text.splitlines()[0].split()[0] == "leaf"
    assert "fallback" in text


def test_auto_takes_what_costs_less():
    """One position and a wide kernel: ghost. A lookup that forms no more than it must: vmap."""
    wide = dpjax.explain(lambda w, x: jnp.sum(jnp.tanh(x @ w)), jnp.ones((64, 64)), jnp.ones(64))
    assert wide.auto == "ghost"
    scale = dpjax.explain(lambda w, x: jnp.sum(jnp.tanh(x * w)), jnp.ones(64), jnp.ones(64))
    assert scale.auto == "vmap"


def test_auto_is_the_engine_it_says():
    """Only the vmap engine holds vectors."""
    wide = dpjax.per_example_grads(lambda w, x: jnp.sum(jnp.tanh(x @ w)), engine="auto")
    with pytest.raises(TypeError, match="GhostChunk"):
        _ = wide(jnp.ones((64, 64)), jnp.ones((2, 64))).vectors
    scale = dpjax.per_example_grads(lambda w, x: jnp.sum(jnp.tanh(x * w)), engine="auto")
    assert scale(jnp.ones(64), jnp.ones((2, 64))).vectors.shape == (2, 64)


def test_memory_is_not_that_of_the_gradients():
    """XLA's own figure, for 16 layers of 512 x 512 at B = 64: 1.1 GB of gradients."""
    layers, width, rows = 16, 512, 64

    def loss(params, x):
        for kernel in params:
            x = jnp.tanh(x @ kernel)
        return jnp.sum(x)

    params = [jax.ShapeDtypeStruct((width, width), np.float32)] * layers
    batch = jax.ShapeDtypeStruct((rows, width), np.float32)

    def temporary(engine):
        grads_of = dpjax.per_example_grads(loss, engine=engine)
        run = fast_jit(lambda p, x: grads_of(p, x).aggregate(lambda n: (1 / (1 + n), n)))
        return run.lower(params, batch).compile().memory_analysis().temp_size_in_bytes

    gradients = 4 * rows * layers * width**2
    assert temporary("vmap") > gradients / 2
    assert temporary("ghost") < gradients / 50
    assert temporary("ghost_two_pass") < gradients / 50
