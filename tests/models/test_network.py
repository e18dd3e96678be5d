"""Every model of the table: shapes, one example against a batch, gradients; and what is refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import dpjax
from dpjax import models
from dpjax.models import MODELS, build
from dpjax.models.layers import conv, dense
from dpjax.models.resnet import BasicBlock, ResNet
from tests.marks import some
from tests.models.helpers import fast_jit, random_params

SMALL = {"width": 4, "groups": 2, "scale_norm": True, "stem": "cifar"}
ENCODER = {"layers": 2, "width": 4, "heads": 2, "hidden": 6, "positions": 8}
NFNET = {"widths": [16, 16, 16, 16], "group": 4}
# Shape, options; as small as the layers allow.
TINY = {
    "alexnet": ((63, 63, 1), {"hidden": 4}),
    "alexnet_small": ((29, 29, 1), {}),
    "bert": ((6,), {"vocabulary": 7, **ENCODER}),
    "bilstm": ((6,), {"vocabulary": 7, "embedding": 3, "hidden": 4, "layers": 2}),
    "cnn4": ((8, 8, 1), {}),
    "distilbert": ((6,), {"vocabulary": 7, **ENCODER}),
    "gpt2": ((6,), {"vocabulary": 7, **ENCODER}),
    "lin_b1": ((8, 8, 1), {}),
    "lin_b2": ((8, 8, 1), {"activation": "tanh"}),
    "lin_b3": ((16, 16, 1), {"activation": "tempered_sigmoid"}),
    "lin_b4": ((12, 12, 1), {}),
    "linear": ((5,), {}),
    "lstm": ((6,), {"vocabulary": 7, "embedding": 3, "hidden": 4}),
    "mlp": ((4, 4, 1), {"hidden": 8}),
    "nf_resnet18": ((16, 16, 1), {"width": 4, "stem": "cifar"}),
    "nf_resnet50": ((32, 32, 1), {"width": 8}),
    "nfnet_f0": ((32, 32, 1), NFNET),
    "nfnet_f1": ((32, 32, 1), NFNET),
    "resnet18": ((16, 16, 1), SMALL),
    "resnet34": ((16, 16, 1), SMALL),
    "resnet9": ((16, 16, 1), {"width": 4, "groups": 2, "scale_norm": True}),
    "roberta": ((6,), {"vocabulary": 7, **ENCODER}),
    "small_cnn": ((16, 16, 1), {}),
    "wide_resnet": ((8, 8, 1), {"depth": 10, "width": 1, "groups": 4}),
}
# Those that compile fast and have every kind of layer but the residual ones.
FAST = ("bilstm", "cnn4", "lin_b3", "linear", "mlp", "small_cnn")
# It adds one number to all scores of a query, which the softmax takes away: its gradient is 0.
UNFELT = "key/bias"
CASES = some(sorted(MODELS), FAST)


def tiny(name):
    shape, options = TINY[name]
    return build(name, shape, 3, **options)


def examples(network, rows=3):
    rng = np.random.default_rng(0)
    if "vocabulary" in TINY.get(network.name, ((), {}))[1]:
        tokens = rng.integers(1, 7, (rows, *network.shape))
        tokens[1, 4:] = -1 if network.name == "gpt2" else 0  # one sequence ends early
        return jnp.asarray(tokens, jnp.int32)
    return jnp.asarray(rng.normal(size=(rows, *network.shape)), jnp.float32)


def loss_of(network):
    return lambda params, example: network.loss(params, *example)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_shapes_of_parameters_and_logits(name):
    network = tiny(name)
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == network.param_count
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        assert all(isinstance(step.key, str) for step in path)
    one = jax.eval_shape(network.apply, params, examples(network)[0])
    expected = (6, 7) if name == "gpt2" else (3,)  # a language model has logits at every position
    assert (one.shape, one.dtype) == (expected, jnp.float32)
    many = jax.eval_shape(jax.vmap(network.apply, (None, 0)), params, examples(network))
    assert many.shape == (3, *expected)


@pytest.mark.parametrize("name", CASES)
def test_batch_is_its_examples_and_gradients_reach_every_leaf(name):
    check_one_against_many(tiny(name))


def test_residual_network_of_two_blocks(monkeypatch):
    """The same for ResNets, in little: both shortcuts, ScaleNorm and the pooling stem."""

    def two_blocks(shape, classes, *, rngs):
        options = {"width": 4, "groups": 2, "scale_norm": True, "stem": "imagenet"}
        return ResNet(shape, classes, blocks=[1, 1], **options, rngs=rngs)

    monkeypatch.setitem(MODELS, "two_blocks", two_blocks)
    check_one_against_many(build("two_blocks", (16, 16, 1), 3))


def check_one_against_many(network):
    params = random_params(network)
    xs, labels = examples(network), jnp.array([0, 1, 2])
    loss, weights = loss_of(network), jnp.array([0.0, 1.0, 0.0])

    def many(params):
        grads = dpjax.per_example_grads(loss, chunk=2)(params, (xs, labels))
        return jax.vmap(network.apply, (None, 0))(params, xs), grads.weighted_sum(weights)

    def one(params):
        return network.apply(params, xs[1]), jax.grad(loss)(params, (xs[1], labels[1]))

    (batched, chosen), (single, direct) = fast_jit(many)(params), fast_jit(one)(params)
    np.testing.assert_allclose(batched[1], single, rtol=1e-4, atol=1e-5)
    assert not np.allclose(batched[0], single, atol=1e-4)  # examples are told apart
    rounding = 1e-6 * max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(direct))
    pairs = zip(jax.tree_util.tree_leaves_with_path(chosen), jax.tree.leaves(direct), strict=True)
    for (path, from_chunks), alone in pairs:
        assert np.all(np.isfinite(alone)), path
        largest = float(jnp.abs(alone).max())
        if UNFELT in jax.tree_util.keystr(path, simple=True, separator="/"):
            assert largest <= rounding, path
        else:
            assert largest > 0, path
        limit = 1e-3 * largest + rounding
        np.testing.assert_allclose(from_chunks, alone, rtol=0, atol=limit, err_msg=str(path))


def test_init_is_pure_and_vmaps_over_keys():
    network = build("mlp", (4,), 2, hidden=3)
    keys = jax.random.split(jax.random.key(0), 2)
    stacked = jax.vmap(network.init)(keys)
    for row in range(2):
        one = network.init(keys[row])
        again = jax.jit(network.init)(keys[row])
        for several, *same in zip(*map(jax.tree.leaves, (stacked, one, again)), strict=True):
            for leaf in same:
                np.testing.assert_array_equal(several[row], leaf)
    first, second = (stacked["dense"]["0"]["kernel"][row] for row in range(2))
    assert not np.any(first == second)


def test_parameters_start_as_in_pytorch():
    """Uniform in 1 / sqrt(fan_in): the variance of a kernel is a third of one over fan_in."""
    kernel = np.asarray(conv(64, 128, 3, rngs=nnx.Rngs(0)).kernel[...])
    assert np.abs(kernel).max() <= 1 / np.sqrt(9 * 64)
    assert kernel.var() == pytest.approx(1 / (3 * 9 * 64), rel=0.02)
    layer = dense(400, 300, rngs=nnx.Rngs(0))
    for leaf in (layer.kernel[...], layer.bias[...]):
        assert 0.95 / 20 < np.abs(leaf).max() <= 1 / 20
        assert np.var(leaf) == pytest.approx(1 / 1200, rel=0.2)


def test_plain_networks_start_as_in_flax_or_pytorch():
    """Flax: normal of variance 1 / fan_in, cut off at two deviations, and no bias."""
    lecun = build("mlp", (400,), 3, hidden=300).init(jax.random.key(0))["dense"]["0"]
    assert np.var(lecun["kernel"]) == pytest.approx(1 / 400, rel=0.02)
    assert np.abs(lecun["kernel"]).max() > 2 / 20
    assert not np.any(lecun["bias"])
    torch = build("mlp", (400,), 3, hidden=300, start="pytorch").init(jax.random.key(0))
    assert np.var(torch["dense"]["0"]["kernel"]) == pytest.approx(1 / 1200, rel=0.02)
    assert np.all(torch["dense"]["0"]["bias"] != 0)


def test_residual_networks_start_as_in_torchvision():
    block = BasicBlock(64, 64, 1, groups=2, scale_norm=False, rngs=nnx.Rngs(0))
    kernel = np.asarray(block.conv2.kernel[...])
    assert kernel.var() == pytest.approx(2 / (9 * 64), rel=0.03)  # 2 / fan_out
    assert np.abs(kernel).max() > 3.5 * kernel.std()  # normal, neither uniform nor cut off
    assert block.conv2.bias is None
    assert (block.norm2.scale[...] == 1).all()


def test_options_that_are_tables_and_lists_of_plain_data():
    spec = {"name": "tempered_sigmoid", "scale": 1.58, "inverse_temperature": 3.0, "offset": 0.71}
    network = build("small_cnn", [28, 28, 1], 10, activation=spec)
    assert (network.name, network.shape, network.param_count) == ("small_cnn", (28, 28, 1), 26_010)


class WithBatchNorm(nnx.Module):
    def __init__(self, shape, classes, *, rngs):
        self.norm = nnx.BatchNorm(shape[0], rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


def test_batch_statistics_are_refused(monkeypatch):
    monkeypatch.setitem(models.MODELS, "normed", WithBatchNorm)
    with pytest.raises(ValueError, match="norm keeps batch statistics"):
        build("normed", (4,), 4)


IMAGE = (28, 28, 1)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("smallcnn", IMAGE, 10), {}, "model = 'smallcnn': did you mean 'small_cnn'"),
        (("mlp", IMAGE, 10), {"hiden": 3}, "mlp has no option 'hiden': did you mean 'hidden'"),
        (("mlp", IMAGE, 10), {"rngs": 3}, "mlp has no option 'rngs'"),
        (("mlp", IMAGE, 10), {"hidden": 0}, "hidden = 0: expected"),
        (("mlp", IMAGE, 0), {}, "classes = 0: expected"),
        (("mlp", IMAGE, 10), {"start": "torch"}, "start = 'torch': did you mean 'pytorch'"),
        (("mlp", (0,), 10), {}, r"shape\[0\] = 0: expected"),
        (("small_cnn", (28, 28), 10), {}, r"shape = \(28, 28\): expected an image"),
        (("small_cnn", (8, 8, 1), 10), {}, "shape: a side of 3 is too small for a window of 4"),
        (("alexnet", (62, 62, 3), 10), {}, "shape: a side of 2 is too small for a window of 3"),
        (("resnet9", (7, 32, 3), 10), {}, "shape: a side of 7 is too small"),
        (("resnet9", (32, 32, 3), 10), {"groups": 3}, "groups = 3: expected a divisor of 64"),
        (("resnet18", (32, 32, 3), 10), {"stem": "cifar10"}, "stem = 'cifar10': did you mean 'ci"),
        (("nf_resnet18", (32, 32, 3), 10), {"alpha": float("nan")}, "alpha = nan: expected"),
        (("lstm", (20,), 18), {}, "vocabulary = None: expected how many tokens"),
        (("lstm", IMAGE, 18, 58), {}, "expected a sequence of tokens"),
        (("lstm", (20,), 18, 1), {}, "vocabulary = 1: expected an integer >= 2"),
        (("mlp", IMAGE, 10, 58), {}, "vocabulary = 58: expected None, mlp reads no tokens"),
    ],
)
def test_bad_values(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        build(*arguments, **options)


def test_bad_types():
    with pytest.raises(TypeError, match="shape = 28: expected one example's shape"):
        build("mlp", 28, 10)
    with pytest.raises(TypeError, match=r"classes = 2\.5: expected an integer"):
        build("mlp", (4,), 2.5)
    with pytest.raises(TypeError, match="scale_norm = 'false': expected true or false"):
        build("resnet9", (32, 32, 3), 10, scale_norm="false")


def test_apply_refuses_a_batch_and_foreign_parameters():
    network = build("mlp", (4,), 2)
    params = random_params(network)
    with pytest.raises(ValueError, match=re.escape("x has shape (3, 4): expected ONE example")):
        network.apply(params, jnp.zeros((3, 4)))
    del params["dense"]["1"]["bias"]
    with pytest.raises(ValueError, match="params and mlp differ in dense/1/bias"):
        network.apply(params, jnp.zeros(4))


def test_loss_is_inspected_for_batch_statistics_and_accepted():
    """`per_example_grads` reads a loss' surroundings: a network there is not refused."""
    network = build("mlp", (4,), 2)
    apply = network.apply
    dpjax.per_example_grads(lambda params, x: apply(params, x)[0])
    dpjax.per_example_grads(loss_of(network))
