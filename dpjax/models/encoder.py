"""The encoder that BERT, RoBERTa and DistilBERT share, as a classifier of one token sequence."""

from collections.abc import Sequence

import chex
import jax.numpy as jnp
from flax import nnx

from dpjax import _checks
from dpjax.models.shapes import example_shape, token_count
from dpjax.models.transformer import Embeddings, TransformerBlock, activation_of, dense

__all__ = ["POOLINGS", "EncoderNet"]

POOLINGS = ("first", "mean", "first_direct", "mean_direct")
"""What the logits are computed from: the first token's state or the mean over the real tokens,
through the pooler (a dense layer and an activation) or directly."""


class EncoderNet(nnx.Module):
    """Embeddings, blocks, and logits from one pooled state.

    Padding follows the sequence: no token attends to it, and it has no gradient. Parameters are
    ``embeddings/tokens`` ..., ``blocks/<i>/query/kernel`` ..., ``pooler`` and ``classifier``.

    The network can be cut at a block. With ``stop = k`` it ends after the first k blocks and
    returns states (length, width), which are zero for padding. With ``start = k`` it starts there
    and takes such states. Both parts keep the whole network's parameter names.

    Args:
        shape: (length,) of one example; (length, width) with `start`.
        classes: the number of logits.
        vocabulary: the number of tokens, including padding.
        layers: the number of blocks.
        width: the number of features of a token.
        heads: the number of attention heads.
        hidden: the width between the two dense layers of a block.
        positions: the maximum length of a sequence.
        segments: the number of rows in the segment table; 0 for none.
        separator: the second segment begins after the first occurrence of this token; None for one
            segment.
        padding: the padding token.
        offset: the number of rows in the position table before the first token's row.
        epsilon: added to the variance in each normalisation.
        activation: the activation between the dense layers of a block.
        pooling: one of `POOLINGS`.
        pooler_activation: the activation after the pooler's dense layer.
        start: the first block; None to start from tokens.
        stop: the number of blocks before the states are returned; None for logits.
        rngs: draws the initial parameters.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        vocabulary: int,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        positions: int,
        segments: int,
        separator: int | None,
        padding: int,
        offset: int,
        epsilon: float,
        activation: str,
        pooling: str,
        pooler_activation: str,
        start: int | None,
        stop: int | None,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the layers."""
        vocabulary = _checks.integer("vocabulary", vocabulary, at_least=2)
        layers = _checks.integer("layers", layers, at_least=1)
        width = _checks.integer("width", width, at_least=1)
        heads = _checks.integer("heads", heads, at_least=1)
        hidden = _checks.integer("hidden", hidden, at_least=1)
        padding = _checks.integer("padding", padding, at_least=0)
        if width % heads:
            raise ValueError(f"heads = {heads}: expected a divisor of width = {width}")
        length = token_count(shape) if start is None else _state_shape(shape, width)
        if _checks.integer("positions", positions, at_least=1) < length:
            raise ValueError(f"positions = {positions}: expected at least the {length} of shape")
        if padding >= vocabulary:
            raise ValueError(f"padding = {padding}: expected less than vocabulary = {vocabulary}")
        self.separator, self.padding, self.offset = separator, padding, offset
        self.pooling = _checks.choice("pooling", pooling, POOLINGS)
        self.pooler_activation = pooler_activation
        self.ends_in_states = stop is not None
        activation_of(activation)
        activation_of(pooler_activation)
        first, last = _cut("start", start, 0, layers), _cut("stop", stop, layers, layers)
        self.embeddings = (
            Embeddings(vocabulary, positions + offset, width, segments, epsilon, rngs=rngs)
            if start is None
            else None
        )
        self.blocks = nnx.Dict(
            {
                str(depth): TransformerBlock(
                    width,
                    heads,
                    hidden,
                    epsilon,
                    activation=activation,
                    norm_first=False,
                    rngs=rngs,
                )
                for depth in range(first, last)
            }
        )
        has_pooler = not self.ends_in_states and not pooling.endswith("_direct")
        self.pooler = dense(width, width, rngs) if has_pooler else None
        self.classifier = None if self.ends_in_states else dense(width, classes, rngs)

    def __call__(self, x: chex.Array) -> chex.Array:
        """Returns the logits (or the states) of one sequence of tokens (or states)."""
        if self.embeddings is None:
            states, real = x, jnp.any(x != 0, axis=-1)
        else:
            real = x != self.padding
            states = self._embedded(x, real)
        for depth in sorted(self.blocks, key=int):
            states = self.blocks[depth](states, real)
        if self.classifier is None:
            return jnp.where(real[:, None], states, 0)
        pooled = states[0]
        if self.pooling.startswith("mean"):
            count = jnp.maximum(jnp.sum(real), 1)
            pooled = jnp.sum(jnp.where(real[:, None], states, 0), axis=0) / count
        if self.pooler is not None:
            pooled = activation_of(self.pooler_activation)(self.pooler(pooled))
        return self.classifier(pooled)

    def _embedded(self, x: chex.Array, real: chex.Array) -> chex.Array:
        assert self.embeddings is not None
        positions = jnp.arange(len(x))
        if self.offset:  # positions count real tokens; padding gets the last row of the offset
            positions = jnp.cumsum(real) * real + self.offset - 1
        segments = jnp.zeros(len(x), jnp.int32)
        if self.separator is not None:
            ends = jnp.asarray(x == self.separator, jnp.int32)
            segments = jnp.asarray(jnp.cumsum(ends) > ends, jnp.int32)
        return self.embeddings(x, positions, segments)


def _cut(name: str, block: int | None, default: int, layers: int) -> int:
    if block is None:
        return default
    if _checks.integer(name, block, at_least=0) > layers:
        raise ValueError(f"{name} = {block}: expected at most the {layers} blocks there are")
    return block


def _state_shape(shape: Sequence[int], width: int) -> int:
    sizes = example_shape(shape)
    if len(sizes) != 2 or sizes[1] != width:
        raise ValueError(f"shape = {sizes}: expected states, (length, {width})")
    return sizes[0]
