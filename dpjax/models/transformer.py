"""Encoders with attention: BERT and RoBERTa as classifiers of one sequence of tokens."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from dpjax import _checks
from dpjax.models.shapes import token_count

__all__ = ["Embeddings", "EncoderBlock", "EncoderNet", "bert", "roberta"]

# How kernels and tables start in both papers: normal of this deviation, without biases.
_START = jax.nn.initializers.normal(0.02)


def _dense(inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(inputs, outputs, kernel_init=_START, rngs=rngs)


def _norm(width: int, epsilon: float, rngs: nnx.Rngs) -> nnx.LayerNorm:
    # The fast variance, a difference of two means, loses the digits of a nearly constant state.
    return nnx.LayerNorm(width, epsilon=epsilon, use_fast_variance=False, rngs=rngs)


class Embeddings(nnx.Module):
    """The normalised sum of a token's row, its position's and, with a separator, its segment's.

    Args:
        vocabulary: how many tokens there are.
        positions: how long a sequence may be.
        width: features of a token.
        separator: the token after whose first occurrence the second segment begins; None for a
            network without segments.
        epsilon: added to the variance before its root is taken.
        rngs: where the initial parameters come from.
    """

    def __init__(
        self,
        vocabulary: int,
        positions: int,
        width: int,
        separator: int | None,
        epsilon: float,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the tables."""
        self.separator = separator
        self.tokens = nnx.Param(_START(rngs.params(), (vocabulary, width)))
        self.positions = nnx.Param(_START(rngs.params(), (positions, width)))
        two_segments = separator is not None
        self.segments = nnx.Param(_START(rngs.params(), (2, width))) if two_segments else None
        self.norm = _norm(width, epsilon, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the states (T, width) of tokens (T,)."""
        states = self.tokens[...][x] + self.positions[...][: len(x)]
        if self.segments is not None:
            ends = jnp.asarray(x == self.separator, jnp.int32)
            ended_before = jnp.asarray(jnp.cumsum(ends) > ends, jnp.int32)
            states = states + self.segments[...][ended_before]
        return self.norm(states)


class EncoderBlock(nnx.Module):
    """Attention over the real tokens, then two dense layers; each is added, then normalised.

    With query, key and value of each head, ``softmax(q k^T / sqrt(width / heads)) v``.

    Args:
        width: features of a token.
        heads: how many attentions there are side by side.
        hidden: width between the two dense layers.
        epsilon: added to the variance before its root is taken.
        rngs: where the initial parameters come from.

    Reference: Vaswani et al., Attention is all you need, 2017.
    """

    def __init__(
        self, width: int, heads: int, hidden: int, epsilon: float, *, rngs: nnx.Rngs
    ) -> None:
        """Makes the layers."""
        self.heads = heads
        self.query = _dense(width, width, rngs)
        self.key = _dense(width, width, rngs)
        self.value = _dense(width, width, rngs)
        self.output = _dense(width, width, rngs)
        self.norm1 = _norm(width, epsilon, rngs)
        self.inner = _dense(width, hidden, rngs)
        self.outer = _dense(hidden, width, rngs)
        self.norm2 = _norm(width, epsilon, rngs)

    def __call__(self, x: jax.Array, real: jax.Array) -> jax.Array:
        """Returns new states (T, width), from states and (T,) of bool."""
        x = self.norm1(x + self.output(self._attended(x, real)))
        hidden = jax.nn.gelu(self.inner(x), approximate=False)
        return self.norm2(x + self.outer(hidden))

    def _attended(self, x: jax.Array, real: jax.Array) -> jax.Array:
        query, key, value = (
            layer(x).reshape(len(x), self.heads, -1) for layer in (self.query, self.key, self.value)
        )
        scores = jnp.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
        # The least number and not -inf: a sequence of padding alone has no NaN.
        scores = jnp.where(real, scores, jnp.finfo(scores.dtype).min)
        mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), value)
        return mixed.reshape(x.shape)


class EncoderNet(nnx.Module):
    """Embeddings, blocks, and logits from the first token's state through a layer with tanh.

    Token 0 is padding, after the sequence: no token attends to it, and its embedding has no
    gradient. Parameters are ``embeddings/tokens`` ..., ``blocks/<i>/query/kernel`` ..., ``pooler``
    and ``classifier``.

    Args:
        shape: (length,) of one example.
        classes: how many logits.
        vocabulary: how many tokens there are, padding among them.
        layers: how many blocks.
        width: features of a token.
        heads: of each attention.
        hidden: width between the two dense layers of a block.
        positions: how long a sequence may be.
        separator: as in `Embeddings`.
        epsilon: of the normalisations.
        rngs: where the initial parameters come from.
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
        separator: int | None,
        epsilon: float,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the layers."""
        vocabulary = _checks.integer("vocabulary", vocabulary, at_least=2)
        layers = _checks.integer("layers", layers, at_least=1)
        width = _checks.integer("width", width, at_least=1)
        heads = _checks.integer("heads", heads, at_least=1)
        hidden = _checks.integer("hidden", hidden, at_least=1)
        if width % heads:
            raise ValueError(f"heads = {heads}: expected a divisor of width = {width}")
        length = token_count(shape)
        if _checks.integer("positions", positions, at_least=1) < length:
            raise ValueError(f"positions = {positions}: expected at least the {length} of shape")
        self.embeddings = Embeddings(vocabulary, positions, width, separator, epsilon, rngs=rngs)
        self.blocks = nnx.List(
            [EncoderBlock(width, heads, hidden, epsilon, rngs=rngs) for _ in range(layers)]
        )
        self.pooler = _dense(width, width, rngs)
        self.classifier = _dense(width, classes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits of one sequence of tokens."""
        real = x != 0
        states = self.embeddings(x)
        for block in self.blocks:
            states = block(states, real)
        return self.classifier(jnp.tanh(self.pooler(states[0])))


def bert(
    shape: Sequence[int],
    classes: int,
    *,
    vocabulary: int,
    rngs: nnx.Rngs,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    positions: int = 512,
    separator: int = 1,
) -> EncoderNet:
    """BERT-base as a classifier, without dropout.

    109,482,240 parameters and the classifier's with BERT's own vocabulary of 30,522. DC-SGD trains
    "the last encoder, the Bert pooler, and the classifier": ``model.trainable = ["blocks/11",
    "pooler", "classifier"]``, 7,680,002 for two classes.

    Args:
        shape: (length,) of one example.
        classes: how many logits.
        vocabulary: how many tokens there are, padding (0) among them.
        rngs: where the initial parameters come from.
        layers: how many blocks.
        width: features of a token.
        heads: of each attention.
        hidden: width between the two dense layers of a block.
        positions: how long a sequence may be.
        separator: the token between two texts: 1 in this package's data sets, 102 in BERT's own
            vocabulary. What follows it is of the second segment.

    References: Devlin et al., BERT, 2018; DC-SGD, section VI.
    """
    return EncoderNet(
        shape,
        classes,
        vocabulary=vocabulary,
        layers=layers,
        width=width,
        heads=heads,
        hidden=hidden,
        positions=positions,
        separator=_checks.integer("separator", separator, at_least=1),
        epsilon=1e-12,
        rngs=rngs,
    )


def roberta(
    shape: Sequence[int],
    classes: int,
    *,
    vocabulary: int,
    rngs: nnx.Rngs,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    positions: int = 512,
) -> EncoderNet:
    """RoBERTa-base as a classifier, without dropout: BERT's layers, and no segments.

    RoBERTa-large has ``layers = 24``, ``width = 1024``, ``heads = 16`` and ``hidden = 4096``. The
    head, a dense layer with tanh and the logits, is called ``pooler`` and ``classifier`` here too.
    Two rows of the published table of positions are never read; they are left out.

    Args:
        shape: (length,) of one example.
        classes: how many logits.
        vocabulary: how many tokens there are, padding (0) among them; RoBERTa's own has 50,265.
        rngs: where the initial parameters come from.
        layers: how many blocks.
        width: features of a token.
        heads: of each attention.
        hidden: width between the two dense layers of a block.
        positions: how long a sequence may be.

    References: Liu et al., RoBERTa, 2019; Automatic Clipping, tables 2 and 3.
    """
    return EncoderNet(
        shape,
        classes,
        vocabulary=vocabulary,
        layers=layers,
        width=width,
        heads=heads,
        hidden=hidden,
        positions=positions,
        separator=None,
        epsilon=1e-5,
        rngs=rngs,
    )
