"""The parts that all transformers here share: embeddings, attention and blocks."""

import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from dpjax import _checks

__all__ = [
    "Embeddings",
    "Memory",
    "TransformerBlock",
    "activation_of",
    "attend",
    "dense",
    "layer_norm",
]

# All the papers draw kernels and tables from a normal with this deviation; biases start at 0.
START = jax.nn.initializers.normal(0.02)

_ACTIVATIONS: dict[str, Callable[[chex.Array], chex.Array]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
}


def activation_of(name: str) -> Callable[[chex.Array], chex.Array]:
    """Returns an activation by the name that Hugging Face's config.json gives it."""
    return _ACTIVATIONS[_checks.choice("activation", name, _ACTIVATIONS)]


def dense(inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
    """Makes a dense layer with a transformer's initial values."""
    return nnx.Linear(inputs, outputs, kernel_init=START, rngs=rngs)


def layer_norm(width: int, epsilon: float, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Makes a layer normalisation."""
    # The fast variance, a difference of two means, loses precision for a nearly constant state.
    return nnx.LayerNorm(width, epsilon=epsilon, use_fast_variance=False, rngs=rngs)


class Embeddings(nnx.Module):
    """The sum of the token, position and segment embeddings, normalised if there is a norm.

    Args:
        vocabulary: the number of tokens.
        positions: the number of rows in the position table.
        width: the number of features of a token.
        segments: the number of rows in the segment table; 0 for none.
        epsilon: added to the variance in the normalisation; None for no normalisation.
        rngs: draws the initial parameters.
    """

    def __init__(
        self,
        vocabulary: int,
        positions: int,
        width: int,
        segments: int,
        epsilon: float | None,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the tables."""
        self.tokens = nnx.Param(START(rngs.params(), (vocabulary, width)))
        self.positions = nnx.Param(START(rngs.params(), (positions, width)))
        self.segments = nnx.Param(START(rngs.params(), (segments, width))) if segments else None
        self.norm = None if epsilon is None else layer_norm(width, epsilon, rngs)

    def __call__(
        self, tokens: chex.Array, positions: chex.Array, segments: chex.Array
    ) -> chex.Array:
        """Returns the states (T, width) of tokens (T,), at positions (T,), in segments (T,)."""
        states = self.tokens[...][tokens] + self.positions[...][positions]
        if self.segments is not None:
            states = states + self.segments[...][segments]
        return states if self.norm is None else self.norm(states)


class Memory(NamedTuple):
    """The keys and values of the tokens so far, each (length, heads, d)."""

    key: chex.Array
    value: chex.Array


def attend(
    query: chex.Array, memory: Memory, allowed: chex.Array, prefix: Memory | None = None
) -> chex.Array:
    """Returns ``softmax(query key^T / sqrt(d)) value`` of each head.

    Args:
        query: (Q, heads, d).
        memory: keys and values, each (K, heads, d).
        allowed: (Q, K) or (K,) of bool, the keys that a query attends to.
        prefix: further keys and values, each (P, heads, d), that every query attends to.

    Reference: Vaswani et al., Attention is all you need, 2017, https://arxiv.org/abs/1706.03762.
    """
    scale = 1 / math.sqrt(query.shape[-1])
    scores = scale * jnp.einsum("qhd,khd->hqk", query, memory.key)
    # The smallest float instead of -inf, so that a sequence of only padding gives no NaN.
    scores = jnp.where(allowed, scores, jnp.finfo(scores.dtype).min)
    if prefix is None:
        return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), memory.value)
    # Trained keys and values have separate products, for which the ghost engine has formulas.
    first = scale * jnp.einsum("qhd,phd->hqp", query, prefix.key)
    count = first.shape[-1]
    weights = jax.nn.softmax(jnp.concatenate([first, scores], axis=-1))
    return jnp.einsum("hqp,phd->qhd", weights[..., :count], prefix.value) + jnp.einsum(
        "hqk,khd->qhd", weights[..., count:], memory.value
    )


class TransformerBlock(nnx.Module):
    """Attention and two dense layers, each with a residual connection.

    With ``norm_first`` the inputs of both are normalised (GPT-2), otherwise the sums (BERT).

    Args:
        width: the number of features of a token.
        heads: the number of attention heads.
        hidden: the width between the two dense layers.
        epsilon: added to the variance in each normalisation.
        activation: the activation between the two dense layers.
        norm_first: whether inputs are normalised instead of sums.
        prefix: the number of trained keys and values before those of the tokens.
        rngs: draws the initial parameters.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        epsilon: float,
        *,
        activation: str,
        norm_first: bool,
        prefix: int = 0,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the layers."""
        self.heads, self.activation, self.norm_first = heads, activation, norm_first
        self.query = dense(width, width, rngs)
        self.key = dense(width, width, rngs)
        self.value = dense(width, width, rngs)
        self.output = dense(width, width, rngs)
        self.norm1 = layer_norm(width, epsilon, rngs)
        self.inner = dense(width, hidden, rngs)
        self.outer = dense(hidden, width, rngs)
        self.norm2 = layer_norm(width, epsilon, rngs)
        rows = (prefix, width)
        self.prefix_key = nnx.Param(START(rngs.params(), rows)) if prefix else None
        self.prefix_value = nnx.Param(START(rngs.params(), rows)) if prefix else None

    def __call__(self, x: chex.Array, allowed: chex.Array) -> chex.Array:
        """Returns new states (T, width), from states and `allowed` as in `attend`."""
        read = self._read(x)
        return self._after(x, self._attended(read, self._remembered(read), allowed))

    def step(
        self, x: chex.Array, memory: Memory, start: chex.Array, allowed: chex.Array
    ) -> tuple[chex.Array, Memory]:
        """Returns the new states of a few tokens, and the memory extended by them.

        Args:
            x: states (Q, width) of the tokens, at positions starting from `start`.
            memory: the memory of all positions.
            start: the first token's position.
            allowed: (Q, length), the positions that each token attends to.
        """
        read = self._read(x)
        memory = Memory(
            *(
                jax.lax.dynamic_update_slice_in_dim(old, new, start, 0)
                for old, new in zip(memory, self._remembered(read), strict=True)
            )
        )
        return self._after(x, self._attended(read, memory, allowed)), memory

    def _read(self, x: chex.Array) -> chex.Array:
        return self.norm1(x) if self.norm_first else x

    def _heads(self, x: chex.Array) -> chex.Array:
        return x.reshape(len(x), self.heads, -1)

    def _remembered(self, read: chex.Array) -> Memory:
        return Memory(self._heads(self.key(read)), self._heads(self.value(read)))

    def _attended(self, read: chex.Array, memory: Memory, allowed: chex.Array) -> chex.Array:
        prefix = None
        if self.prefix_key is not None and self.prefix_value is not None:
            prefix = Memory(self._heads(self.prefix_key[...]), self._heads(self.prefix_value[...]))
        return attend(self._heads(self.query(read)), memory, allowed, prefix)

    def _after(self, x: chex.Array, mixed: chex.Array) -> chex.Array:
        x = x + self.output(mixed.reshape(x.shape))
        if self.norm_first:
            return x + self._dense(self.norm2(x))
        x = self.norm1(x)
        return self.norm2(x + self._dense(x))

    def _dense(self, x: chex.Array) -> chex.Array:
        return self.outer(activation_of(self.activation)(self.inner(x)))
