"""NFNet: the published files by our names, and the forward pass of a block."""

import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from dpjax.models import build
from dpjax.models.nfnet import NFNetBlock
from dpjax.models.nfnet_weights import nfnet_from_haiku, nfnet_from_timm, read_nfnet
from tests.models import reference as ref
from tests.models.helpers import random_like

WIDTHS, GROUP, DEPTHS = [16, 32, 48, 48], 8, (1, 2, 6, 3)
LAYERS = ("conv1", "conv2", "conv2b", "conv3")
RNG = np.random.default_rng(0)


def network():
    return build("nfnet_f0", (32, 32, 3), 5, widths=WIDTHS, group=GROUP)


def sizes():
    """Yields (stage, place, inputs, outputs) of every block."""
    inputs = WIDTHS[0] // 2
    for stage, (depth, outputs) in enumerate(zip(DEPTHS, WIDTHS, strict=True)):
        for place in range(depth):
            yield stage, place, inputs, outputs
            inputs = outputs


def convolution(inputs, outputs, window, groups=1):
    return (outputs, inputs // groups, window, window)


def layer_shapes(inputs, outputs):
    inner, groups = outputs // 2, outputs // 2 // GROUP
    kernels = [convolution(inputs, inner, 1), *[convolution(inner, inner, 3, groups)] * 2]
    return dict(zip(LAYERS, [*kernels, convolution(inner, outputs, 1)], strict=True))


def timm_tensors():
    """Tensors of the names and shapes of timm's dm_nfnet_f0, with our widths."""
    shapes = {}

    def add(name, shape):
        shapes[f"{name}.weight"] = shape
        shapes[f"{name}.gain"] = (shape[0], 1, 1, 1)
        shapes[f"{name}.bias"] = (shape[0],)

    stem = [3, WIDTHS[0] // 16, WIDTHS[0] // 8, WIDTHS[0] // 4, WIDTHS[0] // 2]
    for i in range(4):
        add(f"stem.conv{i + 1}", convolution(stem[i], stem[i + 1], 3))
    for stage, place, inputs, outputs in sizes():
        block = f"stages.{stage}.{place}"
        for name, shape in layer_shapes(inputs, outputs).items():
            add(f"{block}.{name}", shape)
        if place == 0:
            add(f"{block}.downsample.conv", convolution(inputs, outputs, 1))
        shapes[f"{block}.skipinit_gain"] = ()
        for name, a, b in (("fc1", outputs // 2, outputs), ("fc2", outputs, outputs // 2)):
            shapes[f"{block}.attn_last.{name}.weight"] = (a, b, 1, 1)  # 1x1 convolutions in timm
            shapes[f"{block}.attn_last.{name}.bias"] = (a,)
    add("final_conv", convolution(WIDTHS[-1], 2 * WIDTHS[-1], 1))
    shapes["head.fc.weight"], shapes["head.fc.bias"] = (5, 2 * WIDTHS[-1]), (5,)
    return {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def flat(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}


def test_every_tensor_of_timm_has_its_place():
    ours = flat(jax.eval_shape(network().init, jax.random.key(0)))
    tensors = timm_tensors()
    found = nfnet_from_timm(tensors, head=True)
    assert {name: x.shape for name, x in found.items()} == {n: x.shape for n, x in ours.items()}
    weight = tensors["stages.2.4.conv2.weight"]  # block 1 + 2 + 4
    np.testing.assert_array_equal(found["blocks/7/conv2/kernel"][1, 2, 3, 4], weight[4, 3, 1, 2])
    assert not any(name.startswith("dense") for name in nfnet_from_timm(tensors))
    with pytest.raises(ValueError, match=r"stages\.0\.0\.bn1\.weight: expected a tensor of timm"):
        nfnet_from_timm({"stages.0.0.bn1.weight": np.zeros(3)})


def haiku_params(ours):
    """Parameters of the names and shapes of DeepMind's NFNet-F0, with our widths."""
    names = {"kernel": "w", "gain": "gain", "bias": "bias"}
    layers = dict(zip(LAYERS, ("conv0", "conv1", "conv1b", "conv2"), strict=True))
    layers |= {"shortcut": "conv_shortcut"}
    excite = {"reduce": "squeeze_excite/~/linear", "expand": "squeeze_excite/~/linear_1"}
    params = {}
    for path, leaf in ours.items():
        part, *rest = path.split("/")
        if part == "stem":
            module, name = f"NFNet/~/stem_conv{rest[0]}", names[rest[1]]
        elif part in ("final", "dense"):
            module = "NFNet/~/" + ("final_conv" if part == "final" else "linear")
            name = names[rest[0]] if part == "final" else {"kernel": "w", "bias": "b"}[rest[0]]
        else:
            module = "NFNet/~/nf_block" + (f"_{rest[0]}" if rest[0] != "0" else "")
            if rest[1:] == ["gain"]:
                name = "skip_gain"
            elif rest[1] == "excite":
                module += f"/~/{excite[rest[2]]}"
                name = {"kernel": "w", "bias": "b"}[rest[3]]
            else:
                module, name = f"{module}/~/{layers[rest[1]]}", names[rest[2]]
        params.setdefault(module, {})[name] = RNG.normal(size=leaf.shape).astype(np.float32)
    return params


def test_every_module_of_haiku_has_its_place():
    """Haiku numbers blocks through all stages, and has (height, width, inputs, outputs)."""
    ours = flat(jax.eval_shape(network().init, jax.random.key(0)))
    found = nfnet_from_haiku(haiku_params(ours), head=True)
    assert {name: x.shape for name, x in found.items()} == {n: x.shape for n, x in ours.items()}
    with pytest.raises(ValueError, match=r"NFNet/~/batch_norm: expected a module"):
        nfnet_from_haiku({"NFNet/~/batch_norm": {}})


def test_files_are_read_by_what_they_are(tmp_path):
    tensors = timm_tensors()
    save_file(tensors, tmp_path / "model.safetensors")
    found = read_nfnet(tmp_path / "model.safetensors")
    expected = nfnet_from_timm(tensors)
    assert found.keys() == expected.keys()
    np.testing.assert_array_equal(found["final/kernel"], expected["final/kernel"])
    params = haiku_params(flat(jax.eval_shape(network().init, jax.random.key(0))))
    (tmp_path / "F0_haiku.npz").write_bytes(pickle.dumps(params))  # published under this name
    found = read_nfnet(tmp_path / "F0_haiku.npz", head=True)
    assert found.keys() == nfnet_from_haiku(params, head=True).keys()
    np.testing.assert_array_equal(found["dense/kernel"], params["NFNet/~/linear"]["w"])


class Hostile:
    """A pickle that makes a directory when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.mkdir, (self.path,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a pickle of arrays"),
        (b"PK\x03\x04", "expected a pickle of arrays"),
        (pickle.dumps([1, 2]), "expected a dictionary of arrays for each Haiku module"),
        (pickle.dumps({"NFNet/~/linear": 3}), "expected a dictionary of arrays"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "F0_haiku.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_nfnet(path)


def test_a_pickle_that_runs_code_is_refused_before_it_runs(tmp_path):
    path, made = tmp_path / "F0_haiku.npz", tmp_path / "made"
    path.write_bytes(pickle.dumps({"NFNet/~/linear": Hostile(made)}))
    with pytest.raises(ValueError, match="is not an array or dictionary"):
        read_nfnet(path)
    assert not made.exists()
    pickle.loads(path.read_bytes())  # it would have run
    assert made.exists()


def test_damaged_safetensors_are_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\x10" * 30)
    with pytest.raises(ValueError, match=r"model.safetensors: expected safetensors"):
        read_nfnet(tmp_path / "model.safetensors")


def test_a_block_against_numpy():
    """Stride 2: the shortcut averages squares; SAME padding puts the odd pixel at the end."""
    graph, state = nnx.split(NFNetBlock(8, 16, 2, beta=0.9, group=4, rngs=nnx.Rngs(0)))
    state = random_like(state)
    p = nnx.to_pure_dict(state)
    x = RNG.normal(size=(6, 6, 8)).astype(np.float32)

    def act(y):
        return 1.7015043497085571 * np.asarray(jax.nn.gelu(jnp.asarray(y)), np.float64)

    def conv(y, layer, stride=1, groups=1):
        kernel = np.asarray(layer["kernel"], np.float64)
        centred = kernel - kernel.mean(axis=(0, 1, 2))
        kernel = layer["gain"] * centred / np.sqrt((centred**2).sum(axis=(0, 1, 2)))
        if kernel.shape[0] == 3:
            pad = (0, 1) if stride == 2 else (1, 1)
            y = np.pad(y, (pad, pad, (0, 0)))
        inputs, outputs = y.shape[2] // groups, kernel.shape[3] // groups
        parts = [
            ref.conv(
                y[..., i * inputs : (i + 1) * inputs],
                kernel[..., i * outputs : (i + 1) * outputs],
                0,
                stride,
                0,
            )
            for i in range(groups)
        ]
        return np.concatenate(parts, axis=-1) + np.asarray(layer["bias"])

    active = act(x) * 0.9
    shortcut = conv(ref.pool(np.mean, active, 2, 2), p["shortcut"])
    y = conv(act(conv(active, p["conv1"])), p["conv2"], 2, 2)
    y = conv(act(conv(act(y), p["conv2b"], 1, 2)), p["conv3"])
    hidden = ref.relu(ref.dense(y.mean(axis=(0, 1)), p["excite"]["reduce"]))
    weights = 1 / (1 + np.exp(-ref.dense(hidden, p["excite"]["expand"])))
    expected = shortcut + 0.2 * float(p["gain"]) * 2 * weights * y
    got = nnx.merge(graph, state)(jnp.asarray(x))
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)
