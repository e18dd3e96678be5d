"""An attention encoder in plain JAX: pre-normalised blocks, classification from the mean state."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.workloads import EncoderSize

__all__ = ["init", "logits"]

Params = dict[str, Any]


def init(
    key: jax.Array, size: EncoderSize, length: int, vocabulary: int, classes: int
) -> tuple[Params, Params]:
    """Returns the trained parameters and the frozen ones."""
    keys = iter(jax.random.split(key, 3 + 6 * size.blocks))
    embeddings = {
        "tokens": 0.02 * jax.random.normal(next(keys), (vocabulary, size.width)),
        "positions": 0.02 * jax.random.normal(next(keys), (length, size.width)),
    }
    blocks = [_init_block(keys, size) for _ in range(size.blocks)]
    head = {"norm": _init_norm(size.width), "dense": _init_dense(next(keys), size.width, classes)}
    if not size.frozen:
        return {**embeddings, "blocks": blocks, **head}, {"blocks": []}
    frozen = {**embeddings, "blocks": blocks[: size.frozen]}
    return {"blocks": blocks[size.frozen :], **head}, frozen


def logits(params: Params, frozen: Params, tokens: jax.Array, heads: int) -> jax.Array:
    """Returns the logits of ONE sequence."""
    embeddings = params if "tokens" in params else frozen
    x = embeddings["tokens"][tokens] + embeddings["positions"]
    for block in [*frozen["blocks"], *params["blocks"]]:
        x = x + _attention(block, _norm(block["norm1"], x), heads)
        hidden = jax.nn.gelu(_dense(block["inner"], _norm(block["norm2"], x)), approximate=True)
        x = x + _dense(block["outer"], hidden)
    return _dense(params["dense"], jnp.mean(_norm(params["norm"], x), axis=0))


def _attention(block: Params, x: jax.Array, heads: int) -> jax.Array:
    query, key, value = (
        _dense(block[name], x).reshape(len(x), heads, -1) for name in ("query", "key", "value")
    )
    scores = jnp.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
    mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), value)
    return _dense(block["output"], mixed.reshape(len(x), -1))


def _norm(norm: Params, x: jax.Array) -> jax.Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * norm["scale"] + norm["bias"]


def _dense(dense: Params, x: jax.Array) -> jax.Array:
    return x @ dense["kernel"] + dense["bias"]


def _init_block(keys: Any, size: EncoderSize) -> Params:
    names = ("query", "key", "value", "output")
    return {
        "norm1": _init_norm(size.width),
        "norm2": _init_norm(size.width),
        **{name: _init_dense(next(keys), size.width, size.width) for name in names},
        "inner": _init_dense(next(keys), size.width, size.mlp),
        "outer": _init_dense(next(keys), size.mlp, size.width),
    }


def _init_norm(width: int) -> Params:
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def _init_dense(key: jax.Array, inputs: int, outputs: int) -> Params:
    kernel = jax.random.normal(key, (inputs, outputs)) / math.sqrt(inputs)
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}
