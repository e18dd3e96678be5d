"""Convolutional networks and normalisations against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dpjax.models import build
from dpjax.models.layers import GroupNorm
from dpjax.models.nf_resnet import NormaliserFreeBlock
from dpjax.models.resnet import BasicBlock
from dpjax.models.standardised import StandardisedConv, scaled_relu
from tests.models import reference as ref
from tests.models.helpers import fast_jit, random_like, random_params

RNG = np.random.default_rng(0)


def filled(module):
    """Returns the module with random parameters, and those as a dict."""
    graph, state = nnx.split(module)
    state = random_like(state)
    return nnx.merge(graph, state), nnx.to_pure_dict(state)


@pytest.mark.parametrize(("name", "pool"), [("small_cnn", np.max), ("lin_b3", np.mean)])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_small_networks_forward(name, pool, activation):
    """Opacus' layers, and table B3: each written out from the print."""
    act = {"relu": ref.relu, "tanh": np.tanh}[activation]
    network = build(name, (28, 28, 3), 10, activation=activation)
    params = random_params(network)
    x = RNG.normal(size=(28, 28, 3)).astype(np.float32)
    one, two = params["convs"]["0"], params["convs"]["1"]
    if name == "small_cnn":
        y = ref.pool(pool, act(ref.conv(x, one["kernel"], one["bias"], 2, 3)), 2, 1)
        y = ref.pool(pool, act(ref.conv(y, two["kernel"], two["bias"], 2, 0)), 2, 1)
    else:
        y = ref.pool(pool, act(ref.conv(x, one["kernel"], one["bias"])), 2, 2)
        y = ref.pool(pool, act(ref.conv(y, two["kernel"], two["bias"])), 2, 2)
    y = act(ref.dense(y.reshape(-1), params["dense"]["0"]))
    expected = ref.dense(y, params["dense"]["1"])
    np.testing.assert_allclose(fast_jit(network.apply)(params, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 3, 6, 32])
def test_group_norm_is_numpy_and_flax_on_a_batch(groups):
    norm, params = filled(GroupNorm(6, groups))
    groups = min(groups, 6)  # capped at one per channel
    xs = (3 + RNG.normal(size=(4, 5, 3, 6))).astype(np.float32)
    expected = np.array([ref.group_norm(x, params["scale"], params["bias"], groups) for x in xs])
    np.testing.assert_allclose(fast_jit(norm)(xs[0]), expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fast_jit(jax.vmap(norm))(xs), expected, rtol=1e-4, atol=1e-5)
    flax = nnx.GroupNorm(6, groups, epsilon=1e-5, use_fast_variance=False, rngs=nnx.Rngs(0))
    flax.scale[...], flax.bias[...] = params["scale"], params["bias"]
    np.testing.assert_allclose(fast_jit(flax)(xs), expected, rtol=1e-4, atol=1e-5)


def test_group_norm_is_stable_far_from_zero():
    """Two passes: a mean of 1e4 leaves the variance of 1 as it is, where E[x^2] - E[x]^2 fails."""
    x = (1e4 + np.random.default_rng(1).normal(size=(8, 8, 4))).astype(np.float32)
    expected = ref.group_norm(x, np.ones(4), np.zeros(4), 2)
    # One after another, 128 numbers of 1e4 have partial sums that round by 0.036 rms each: the mean
    # is off by 0.036 / sqrt(128), 3e-3, and six times that is allowed.
    np.testing.assert_allclose(fast_jit(GroupNorm(4, 2))(x), expected, atol=2e-2)
    fast = np.mean(x**2, dtype=np.float32) - np.mean(x, dtype=np.float32) ** 2
    assert abs(fast - x.astype(np.float64).var()) > 0.5  # the rejecting arm


@pytest.mark.parametrize("scale_norm", [False, True])
@pytest.mark.parametrize(("inputs", "stride"), [(4, 1), (2, 2)])
def test_residual_block_and_where_scale_norm_stands(scale_norm, inputs, stride):
    options = {"groups": 2, "scale_norm": scale_norm, "rngs": nnx.Rngs(0)}
    block, p = filled(BasicBlock(inputs, 4, stride, **options))
    x = RNG.normal(size=(6, 6, inputs)).astype(np.float32)

    def norm(y, layer):
        return ref.group_norm(y, layer["scale"], layer["bias"], 2)

    y = ref.relu(norm(ref.conv(x, p["conv1"]["kernel"], 0, stride, 1), p["norm1"]))
    y = norm(ref.conv(y, p["conv2"]["kernel"], 0, 1, 1), p["norm2"])
    if stride == 2:
        shortcut = p["shortcut"]
        y = y + norm(ref.conv(x, shortcut["conv"]["kernel"], 0, 2), shortcut["norm"])
    else:
        y = y + x
    expected = ref.relu(norm(y, p["scale_norm"]) if scale_norm else y)
    np.testing.assert_allclose(fast_jit(block)(x), expected, rtol=1e-3, atol=1e-4)


def test_resnet9_forward_with_scale_norm():
    network = build("resnet9", (16, 16, 2), 3, width=2, groups=2, scale_norm=True)
    params = random_params(network)
    x = RNG.normal(size=(16, 16, 2)).astype(np.float32)

    def norm(y, layer):
        return ref.group_norm(y, layer["scale"], layer["bias"], 2)

    def block(y, p):
        y = norm(ref.conv(y, p["conv"]["kernel"], 0, 1, 1), p["norm"])
        return y * np.tanh(np.log1p(np.exp(y)))

    def half(y):
        return ref.pool(np.max, y, 2, 2)

    y = half(block(block(x, params["conv1"]), params["conv2"]))
    for residual, scale in (("residual1", "scale_norm1"), ("residual2", "scale_norm2")):
        branch = block(block(y, params[residual]["0"]), params[residual]["1"])
        y = norm(branch + y, params[scale])
        if residual == "residual1":
            y = half(block(half(block(y, params["conv3"])), params["conv4"]))
    expected = ref.dense(y.reshape(-1), params["dense"])  # 2x2 cells of a 2x2 image
    np.testing.assert_allclose(fast_jit(network.apply)(params, x), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_resnet18_forward(stem):
    """The whole of ResNet-18."""
    network = build("resnet18", (24, 24, 1), 3, width=4, groups=2, stem=stem)
    params = random_params(network)
    x = RNG.normal(size=(24, 24, 1)).astype(np.float32)
    p = params
    stride, padding = (2, 3) if stem == "imagenet" else (1, 1)
    y = ref.conv(x, p["conv1"]["kernel"], 0, stride, padding)
    y = ref.relu(ref.group_norm(y, p["norm1"]["scale"], p["norm1"]["bias"], 2))
    if stem == "imagenet":
        y = ref.pool(np.max, y, 3, 2, 1)
    for index in range(8):
        y = _numpy_block(y, p["blocks"][str(index)], stride=2 if index in (2, 4, 6) else 1)
    expected = ref.dense(y.mean(axis=(0, 1)), p["dense"])
    np.testing.assert_allclose(fast_jit(network.apply)(params, x), expected, rtol=2e-3, atol=2e-3)


def _numpy_block(x, p, stride):
    def norm(y, layer):
        return ref.group_norm(y, layer["scale"], layer["bias"], 2)

    y = ref.relu(norm(ref.conv(x, p["conv1"]["kernel"], 0, stride, 1), p["norm1"]))
    y = norm(ref.conv(y, p["conv2"]["kernel"], 0, 1, 1), p["norm2"])
    if "shortcut" in p:
        x = norm(ref.conv(x, p["shortcut"]["conv"]["kernel"], 0, stride), p["shortcut"]["norm"])
    return ref.relu(x + y)


def test_weight_standardisation():
    graph, state = nnx.split(StandardisedConv(3, 5, 3, stride=2, padding=1, rngs=nnx.Rngs(0)))
    state = random_like(state)
    x = RNG.normal(size=(7, 7, 3)).astype(np.float32)

    @fast_jit
    def run(kernel):
        own = jax.tree.map(lambda leaf: leaf, state)  # NNX changes nothing from outside the jit
        nnx.replace_by_pure_dict(own, {"kernel": kernel})
        conv = nnx.merge(graph, own)
        return conv.standardised(), conv(x)

    params = nnx.to_pure_dict(state)
    weights = ref.standardised(params["kernel"], params["gain"])
    used, output = run(params["kernel"])
    np.testing.assert_allclose(used, weights, rtol=1e-4, atol=1e-6)
    expected = ref.conv(x, weights, params["bias"], 2, 1)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    # It forgets the kernel's scale and mean, and survives a kernel without variance.
    np.testing.assert_allclose(run(3 * params["kernel"] + 7)[0], weights, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(run(jnp.ones_like(params["kernel"]))[0], np.zeros_like(weights))


@pytest.mark.parametrize(("inputs", "stride"), [(4, 1), (2, 2)])
def test_normaliser_free_block(inputs, stride):
    make = NormaliserFreeBlock(inputs, 4, stride, alpha=0.3, beta=0.8, rngs=nnx.Rngs(0))
    block, p = filled(make)
    x = RNG.normal(size=(6, 6, inputs)).astype(np.float32)
    gamma = 1 / np.sqrt(0.5 - 0.5 / np.pi)  # one over the deviation of a rectified normal

    def conv(y, layer, stride, padding):
        kernel = ref.standardised(layer["kernel"], layer["gain"])
        return ref.conv(y, kernel, layer["bias"], stride, padding)

    active = gamma * ref.relu(x) * 0.8
    y = conv(gamma * ref.relu(conv(active, p["conv1"], stride, 1)), p["conv2"], 1, 1)
    shortcut = conv(active, p["shortcut"], 2, 0) if stride == 2 else x
    np.testing.assert_allclose(fast_jit(block)(x), shortcut + 0.3 * y, rtol=1e-3, atol=1e-4)


def test_scaled_relu_keeps_the_variance_of_a_normal():
    """By quadrature, not by sampling."""
    z = np.linspace(-10, 10, 200_001)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    y = np.asarray(scaled_relu(jnp.asarray(z, jnp.float32)), np.float64)
    assert (density * y**2).sum() - (density * y).sum() ** 2 == pytest.approx(1, abs=1e-4)


def test_normaliser_free_variances_are_as_foreseen():
    """Each block adds alpha^2, and 1 + alpha^2 is where a change of shape leaves it."""
    network = build("nf_resnet18", (16, 16, 3), 3, width=4, stem="cifar", alpha=0.5)
    betas = [block.beta for block in nnx.merge(network._graph, network._abstract).blocks]
    variances = [1, 1.25, 1.5, 1.25, 1.5, 1.25, 1.5, 1.25]
    np.testing.assert_allclose(betas, 1 / np.sqrt(variances), rtol=1e-12)
