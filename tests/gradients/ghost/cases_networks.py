"""Networks: every model of the package, Linen, NNX and Equinox, and an encoder by hand."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.gradients.ghost.contract import ROWS
from tests.gradients.ghost.registry import case, kernel, named, rows
from tests.models.helpers import random_like, random_params
from tests.models.test_network import MODELS, examples, loss_of, tiny

# By default only those that compile fast, with every kind of layer among them.
QUICK = ("linear", "lstm", "small_cnn")
SLOW = (*(f"model_{name}" for name in MODELS if name not in QUICK), "nnx_network")


def float64(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def model(name):
    def build(rng):
        network = tiny(name)
        batch = np.asarray(examples(network, ROWS)), np.arange(ROWS) % 3
        return loss_of(network), float64(random_params(network)), batch

    return build


for name in MODELS:
    named(f"model_{name}", model(name))


class LinenNet(nn.Module):
    """Every common layer of Linen, on an image and on tokens."""

    @nn.compact
    def __call__(self, image, ids):
        x = nn.relu(nn.GroupNorm(num_groups=2)(nn.Conv(4, (3, 3))(image)))
        x = nn.Conv(4, (2, 2), strides=2, feature_group_count=2)(x)
        x = nn.avg_pool(x[None], (2, 2))[0].reshape(-1)
        tokens = nn.LayerNorm()(nn.Embed(5, 4)(ids))
        tokens = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=4)(tokens)
        return nn.Dense(3)(jnp.concatenate([x, tokens.mean(axis=0)]))


@case
def linen_network(rng):
    net = LinenNet()
    image, ids = rows(rng, 6, 6, 1), rng.integers(0, 5, (ROWS, 4))

    def loss(params, example):
        return jax.nn.logsumexp(net.apply({"params": params}, *example))

    shapes = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((6, 6, 1)), ids[0])
    return loss, float64(random_like(shapes["params"])), (image, ids)


class LinenLayer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return x + nn.Dense(3)(nn.tanh(nn.LayerNorm()(x))), None


class LinenStack(nn.Module):
    """Layers of one kind as one scan over their parameters, and an LSTM."""

    @nn.compact
    def __call__(self, x):
        stack = nn.scan(
            nn.remat(LinenLayer),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=2,
        )
        x, _ = stack()(x, None)
        return nn.RNN(nn.LSTMCell(3, param_dtype=x.dtype))(x)


@case
def linen_scanned_layers(rng):
    net = LinenStack()

    def loss(params, x):
        return jnp.sum(jnp.sin(net.apply({"params": params}, x)))

    shapes = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((4, 3)))
    return loss, float64(random_like(shapes["params"])), rows(rng, 4, 3)


class NNXNet(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(6, 4, rngs=rngs)
        self.conv = nnx.Conv(4, 4, 3, rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.out = nnx.LinearGeneral((4, 4), 3, axis=(-2, -1), rngs=rngs)

    def __call__(self, ids):
        x = self.embed(ids)
        x = x + self.attention(self.norm(nnx.gelu(self.conv(x))))
        return self.out(x)


def nnx_network(rng):
    """Flax's attention takes its softmax in float32, whatever it is given."""
    graph, state = nnx.split(nnx.eval_shape(lambda: NNXNet(nnx.Rngs(0))), nnx.Param, ...)[:2]
    rest = nnx.split(NNXNet(nnx.Rngs(0)), nnx.Param, ...)[2]

    def loss(params, example):
        ids, y = example
        return -jax.nn.log_softmax(nnx.merge(graph, params, rest)(ids))[y]

    params = float64(random_like(state))
    return loss, params, (rng.integers(0, 6, (ROWS, 4)), np.arange(ROWS) % 3)


named("nnx_network", nnx_network, rounded=jnp.float32)


class EquinoxNet(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.GroupNorm
    attention: eqx.nn.MultiheadAttention
    layer_norm: eqx.nn.LayerNorm
    cell: eqx.nn.GRUCell
    out: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.conv = eqx.nn.Conv2d(1, 4, 3, key=keys[0])
        self.norm = eqx.nn.GroupNorm(2, 4)
        self.attention = eqx.nn.MultiheadAttention(2, 4, key=keys[1])
        self.layer_norm = eqx.nn.LayerNorm(4)
        self.cell = eqx.nn.GRUCell(4, 3, key=keys[2])
        self.out = eqx.nn.Linear(3, 3, key=keys[3])

    def __call__(self, x):
        x = jax.nn.relu(self.norm(self.conv(x))).reshape(4, -1).T
        x = jax.vmap(self.layer_norm)(x + self.attention(x, x, x))
        zero = jnp.zeros_like(x, shape=(3,))
        last, _ = jax.lax.scan(lambda h, row: (self.cell(row, h), None), zero, x)
        return self.out(last)


@case
def equinox_network(rng):
    net = eqx.filter_eval_shape(EquinoxNet, jax.random.key(0))
    arrays, static = eqx.partition(net, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def loss(params, example):
        x, y = example
        return -jax.nn.log_softmax(eqx.combine(params, static)(x))[y]

    params = float64(random_like(arrays))
    return loss, params, (rows(rng, 1, 5, 4), np.arange(ROWS) % 3)


def normalised(x, scale, offset):
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5) * scale + offset


def attended(own, x):
    """Self-attention with a kernel for each head, fused over query, key and value."""
    q, k, v = jnp.einsum("td,shdk->shtk", x, own["qkv"]) + own["qkv_bias"][:, :, None]
    scores = jax.nn.softmax(jnp.einsum("htk,hsk->hts", q, k) / np.sqrt(q.shape[-1]))
    return jnp.einsum("hts,hsk,hkd->td", scores, v, own["out"])


@case
def encoder_with_tied_embeddings(rng):
    """Tokens and positions, two blocks, and the table again for the logits of hidden tokens."""

    def loss(params, example):
        ids, labels = example
        x = params["table"][ids] + params["positions"]
        for own in params["blocks"]:
            x = x + attended(own, normalised(x, *own["norm1"]))
            h = jax.nn.gelu(normalised(x, *own["norm2"]) @ own["up"] + own["up_bias"])
            x = x + h @ own["down"]
        scores = jax.nn.log_softmax(x @ params["table"].T + params["bias"])
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))

    def block():
        shapes = {"qkv_bias": (3, 2, 2), "up_bias": (6,)}
        own = {name: 0.2 * rng.standard_normal(shape) for name, shape in shapes.items()}
        own |= {"qkv": kernel(rng, 3, 2, 4, 2) * 3, "out": kernel(rng, 2, 2, 4)}
        own |= {"up": kernel(rng, 4, 6), "down": kernel(rng, 6, 4)}
        return own | {f"norm{i}": [1 + kernel(rng, 4), kernel(rng, 4)] for i in (1, 2)}

    params = {"table": kernel(rng, 7, 4), "positions": kernel(rng, 5, 4), "bias": kernel(rng, 7)}
    ids = rng.integers(0, 7, (2, ROWS, 5))
    return loss, params | {"blocks": [block(), block()]}, (ids[0], ids[1])
