"""Recurrent networks on token sequences: an LSTM for NAMES, and a bidirectional one for AG News."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from dpjax import _checks
from dpjax.models.layers import dense, uniform
from dpjax.models.shapes import token_count

__all__ = ["LSTMLayer", "RecurrentNet", "bilstm", "lstm"]


class LSTMLayer(nnx.Module):
    """One LSTM layer over one sequence; padded steps do not change the state.

    ``i, f, g, o = x W + b + h U + b'``, then ``c <- sigmoid(f) c + sigmoid(i) tanh(g)`` and
    ``h <- sigmoid(o) tanh(c)``. There are two biases, as in PyTorch: the second does not change the
    function, but it does change the gradient's norm.

    Args:
        inputs: the number of features of a step.
        hidden: the state's width H.
        rngs: draws the initial parameters, all uniform in ``+- 1 / sqrt(H)``.

    Reference: Hochreiter and Schmidhuber, Long short-term memory, 1997.
    """

    def __init__(self, inputs: int, hidden: int, *, rngs: nnx.Rngs) -> None:
        """Makes kernels and biases."""
        self.hidden = hidden
        init = uniform(hidden)
        self.input_kernel = nnx.Param(init(rngs.params(), (inputs, 4 * hidden)))
        self.recurrent_kernel = nnx.Param(init(rngs.params(), (hidden, 4 * hidden)))
        self.input_bias = nnx.Param(init(rngs.params(), (4 * hidden,)))
        self.recurrent_bias = nnx.Param(init(rngs.params(), (4 * hidden,)))

    def __call__(
        self, x: jax.Array, real: jax.Array, reverse: bool = False
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the last state (H,) and all states (T, H), from (T, inputs) and (T,) of bool.

        With `reverse` the sequence is read from its end; the states keep the sequence's order.
        """
        recurrent_kernel, recurrent_bias = self.recurrent_kernel[...], self.recurrent_bias[...]

        def step(
            state: tuple[jax.Array, jax.Array], given: tuple[jax.Array, jax.Array]
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            (h, c), (projected, is_real) = state, given
            i, f, g, o = jnp.split(projected + (h @ recurrent_kernel + recurrent_bias), 4)
            cell = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            output = jax.nn.sigmoid(o) * jnp.tanh(cell)
            h, c = jnp.where(is_real, output, h), jnp.where(is_real, cell, c)
            return (h, c), h

        # The input's contribution needs no loop: it is one product for all steps.
        projected = x @ self.input_kernel[...] + self.input_bias[...]
        zero = jnp.zeros_like(projected, shape=(self.hidden,))
        (last, _), states = jax.lax.scan(step, (zero, zero), (projected, real), reverse=reverse)
        return last, states


class RecurrentNet(nnx.Module):
    """An embedding, LSTM layers in one or both directions, and logits from the last states.

    Token 0 is padding, before or after the sequence. Unless `padding` is "read", it changes no
    state, and its embedding has no gradient. Parameters are ``embedding``,
    ``forward/<i>/input_kernel`` ..., ``backward/<i>/...`` if bidirectional, and ``dense``.

    Args:
        shape: (length,) of one example.
        classes: the number of logits.
        vocabulary: the number of tokens, including padding.
        embedding: the number of features of a token.
        hidden: the width of each direction's state.
        layers: the number of stacked layers.
        bidirectional: whether a second set of layers reads the sequence from its end.
        padding: "skip", or "read" to treat padding as an ordinary token.
        rngs: draws the initial parameters.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        vocabulary: int,
        embedding: int,
        hidden: int,
        layers: int,
        bidirectional: bool,
        padding: str = "skip",
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the layers."""
        token_count(shape)
        self.reads_padding = _checks.choice("padding", padding, ("skip", "read")) == "read"
        vocabulary = _checks.integer("vocabulary", vocabulary, at_least=2)
        embedding = _checks.integer("embedding", embedding, at_least=1)
        hidden = _checks.integer("hidden", hidden, at_least=1)
        layers = _checks.integer("layers", layers, at_least=1)
        directions = 2 if bidirectional else 1
        widths = [embedding] + [directions * hidden] * (layers - 1)

        def stack() -> nnx.List[LSTMLayer]:
            return nnx.List([LSTMLayer(width, hidden, rngs=rngs) for width in widths])

        self.embedding = nnx.Param(jax.random.normal(rngs.params(), (vocabulary, embedding)))
        self.forward = stack()
        self.backward = stack() if bidirectional else None
        self.dense = dense(directions * hidden, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits of one sequence of tokens."""
        real = jnp.ones_like(x, bool) if self.reads_padding else x != 0
        states = self.embedding[...][x]
        for depth, layer in enumerate(self.forward):
            last, ahead = layer(states, real)
            if self.backward is None:
                states = ahead
            else:
                first, behind = self.backward[depth](states, real, reverse=True)
                last = jnp.concatenate([last, first])
                states = jnp.concatenate([ahead, behind], axis=-1)
        return self.dense(last)


def lstm(
    shape: Sequence[int],
    classes: int,
    *,
    vocabulary: int,
    rngs: nnx.Rngs,
    embedding: int = 64,
    hidden: int = 128,
    layers: int = 2,
    padding: str = "skip",
) -> RecurrentNet:
    """DC-SGD's network for NAMES, "a model with two LSTM layers"; the paper says no more.

    The widths are from Opacus' example for the same task: 237,458 parameters for 18 languages and
    57 letters including padding.

    Args:
        shape: (length,) of one example.
        classes: the number of logits.
        vocabulary: the number of tokens, including padding (0).
        rngs: draws the initial parameters.
        embedding: the number of features of a token.
        hidden: the width of the state.
        layers: the number of LSTM layers.
        padding: "skip", or "read" to treat padding as an ordinary token, as Opacus' example does;
            the logits then come from the state after the padding.

    Reference: DC-SGD, supplemental material, comparison with AutoClip.
    """
    return RecurrentNet(
        shape,
        classes,
        vocabulary=vocabulary,
        embedding=embedding,
        hidden=hidden,
        layers=layers,
        bidirectional=False,
        padding=padding,
        rngs=rngs,
    )


def bilstm(
    shape: Sequence[int],
    classes: int,
    *,
    vocabulary: int,
    rngs: nnx.Rngs,
    embedding: int = 100,
    hidden: int = 128,
    layers: int = 1,
) -> RecurrentNet:
    """Auto DP-SGD's "BiLSTM" for AG News; the paper gives only its name.

    One layer, a state of 128 in each direction and a trained embedding of 100 are usual for the
    task. The logits come from the last states of both directions.

    Args:
        shape: (length,) of one example.
        classes: the number of logits.
        vocabulary: the number of tokens, including padding (0).
        rngs: draws the initial parameters.
        embedding: the number of features of a token.
        hidden: the width of each direction's state.
        layers: the number of bidirectional layers.

    Reference: Chilukoti et al., Auto DP-SGD, section 5.
    """
    return RecurrentNet(
        shape,
        classes,
        vocabulary=vocabulary,
        embedding=embedding,
        hidden=hidden,
        layers=layers,
        bidirectional=True,
        rngs=rngs,
    )
