"""GPT-2: a causal language model with one table for input embeddings and output logits."""

from collections.abc import Mapping, Sequence

import chex
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from dpjax import _checks
from dpjax.models.hugging_face import Family
from dpjax.models.shapes import token_count
from dpjax.models.transformer import Embeddings, Memory, TransformerBlock, layer_norm

__all__ = ["GPT2", "NO_TOKEN", "CausalNet", "gpt2"]

NO_TOKEN = -1
"""Fills rows after a text, since GPT-2 has no padding token."""


class CausalNet(nnx.Module):
    """Embeddings, causal blocks, and logits of the next token at every position.

    The logits are ``states tokens^T`` with the embeddings' own table of tokens (tied). Parameters
    are ``embeddings/tokens``, ``embeddings/positions``, ``blocks/<i>/...`` and ``norm``.

    Args:
        shape: (length,) of one example; `NO_TOKEN` follows a shorter text.
        vocabulary: the number of tokens.
        layers: the number of blocks.
        width: the number of features of a token.
        heads: the number of attention heads.
        hidden: the width between the two dense layers of a block.
        positions: the maximum length of a text.
        epsilon: added to the variance in each normalisation.
        activation: the activation between the dense layers of a block.
        prefix: the number of trained keys and values that each block puts before the tokens'.
        rngs: draws the initial parameters.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        vocabulary: int,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        positions: int,
        epsilon: float,
        activation: str,
        prefix: int,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the layers."""
        vocabulary = _checks.integer("vocabulary", vocabulary, at_least=2)
        layers = _checks.integer("layers", layers, at_least=1)
        width = _checks.integer("width", width, at_least=1)
        if width % _checks.integer("heads", heads, at_least=1):
            raise ValueError(f"heads = {heads}: expected a divisor of width = {width}")
        length = token_count(shape)
        if _checks.integer("positions", positions, at_least=1) < length:
            raise ValueError(f"positions = {positions}: expected at least the {length} of shape")
        self.heads = heads
        self.embeddings = Embeddings(vocabulary, positions, width, 0, None, rngs=rngs)
        self.blocks = nnx.Dict(
            {
                str(depth): TransformerBlock(
                    width,
                    heads,
                    hidden,
                    epsilon,
                    activation=activation,
                    norm_first=True,
                    prefix=_checks.integer("prefix", prefix, at_least=0),
                    rngs=rngs,
                )
                for depth in range(layers)
            }
        )
        self.norm = layer_norm(width, epsilon, rngs)

    def __call__(self, x: chex.Array) -> chex.Array:
        """Returns the logits (length, vocabulary) of the token after each of x, (length,)."""
        places = jnp.arange(len(x))
        states = self.embeddings(jnp.maximum(x, 0), places, places)
        behind = places[None, :] <= places[:, None]
        for depth in self._depths():
            states = self.blocks[depth](states, behind & (x != NO_TOKEN))
        return self._logits(states)

    def loss(self, x: chex.Array, y: chex.Array) -> chex.Array:
        """Returns the mean negative log-likelihood of ONE example's target tokens.

        ``- sum_t log p(x_t | x_0 .. x_{t-1}) / count`` over the positions ``t >= y`` that hold a
        token. The mean is over the example's own targets, as in Li et al.'s program, so a long text
        has no larger gradient than a short one.

        Args:
            x: the prompt and, from position y on, the target.
            y: the number of tokens in the prompt, at least 1.
        """
        logits, following = self(x)[:-1], x[1:]
        wanted = (jnp.arange(1, len(x)) >= y) & (following != NO_TOKEN)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(following, 0))
        return jnp.sum(jnp.where(wanted, losses, 0)) / jnp.maximum(jnp.sum(wanted), 1)

    def empty_memory(self, length: int) -> dict[str, Memory]:
        """Returns an empty memory of `length` positions for every block."""
        width = self.embeddings.tokens[...].shape[1]
        none = jnp.zeros(
            (length, self.heads, width // self.heads), self.embeddings.tokens[...].dtype
        )
        return {depth: Memory(none, none) for depth in self._depths()}

    def step(
        self, tokens: chex.Array, memory: Mapping[str, Memory], start: chex.Array
    ) -> tuple[chex.Array, dict[str, Memory]]:
        """Returns the logits after each of a few tokens, and the memory extended by them.

        Args:
            tokens: (Q,), at positions starting from `start`.
            memory: the memory of the earlier positions.
            start: the first token's position.
        """
        places = start + jnp.arange(len(tokens))
        states = self.embeddings(jnp.maximum(tokens, 0), places, places)
        length = next(iter(memory.values())).key.shape[0]
        allowed = jnp.arange(length)[None, :] <= places[:, None]
        new = {}
        for depth in self._depths():
            states, new[depth] = self.blocks[depth].step(states, memory[depth], start, allowed)
        return self._logits(states), new

    def _depths(self) -> list[str]:
        return sorted(self.blocks, key=int)

    def _logits(self, states: chex.Array) -> chex.Array:
        return self.norm(states) @ self.embeddings.tokens[...].T


def gpt2(
    shape: Sequence[int],
    classes: int,
    *,
    vocabulary: int,
    rngs: nnx.Rngs,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int | None = None,
    positions: int = 1024,
    epsilon: float = 1e-5,
    activation: str = "gelu_new",
    prefix: int = 0,
) -> CausalNet:
    """GPT-2 as a language model, without dropout.

    124,439,808 parameters with its own vocabulary of 50,257. Medium has ``layers = 24``, ``width =
    1024``, ``heads = 16`` (354,823,168); large ``layers = 36``, ``width = 1280``, ``heads = 20``
    (774,030,080).

    Args:
        shape: (length,) of one example.
        classes: ignored; a language model has one logit for every token.
        vocabulary: the number of tokens.
        rngs: draws the initial parameters.
        layers: the number of blocks.
        width: the number of features of a token.
        heads: the number of attention heads.
        hidden: the width between the two dense layers of a block; None for ``4 width``.
        positions: the maximum length of a text.
        epsilon: added to the variance in each normalisation.
        activation: the activation between the dense layers of a block.
        prefix: for prefix tuning, the number of trained keys and values that each block puts before
            the tokens': ``blocks/<i>/prefix_key`` and ``prefix_value``. Li and Liang compute them
            with a small network during training; here they are parameters themselves.

    References: Radford et al., Language models are unsupervised multitask learners, 2019,
    https://openai.com/index/better-language-models; Li and Liang, Prefix-tuning, 2021,
    https://arxiv.org/abs/2101.00190; Automatic Clipping, table 4.
    """
    del classes
    return CausalNet(
        shape,
        vocabulary=vocabulary,
        layers=layers,
        width=width,
        heads=heads,
        hidden=4 * width if hidden is None else hidden,
        positions=positions,
        epsilon=epsilon,
        activation=activation,
        prefix=prefix,
        rngs=rngs,
    )


_PARTS = ("query", "key", "value")


def _unpacked(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts kernels to the other families' layout, and separates query, key and value."""
    new: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        layer, _, leaf = name.rpartition(".")
        turned = array.T if leaf == "weight" and array.ndim == 2 and ".c_" in name else array
        if layer.endswith("attn.c_attn"):
            for part, third in zip(_PARTS, np.split(turned, 3, axis=0), strict=True):
                new[f"{layer.removesuffix('c_attn')}{part}.{leaf}"] = third
        else:
            new[name] = turned
    return new


def _packed(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of `_unpacked`."""
    new: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        layer, _, leaf = name.rpartition(".")
        attention, _, part = layer.rpartition(".")
        if part == _PARTS[0]:
            thirds = [tensors[f"{attention}.{each}.{leaf}"] for each in _PARTS]
            new[f"{attention}.c_attn.{leaf}"] = np.concatenate(thirds, axis=0).T
        elif part not in _PARTS:
            turned = leaf == "weight" and array.ndim == 2 and ".c_" in name
            new[name] = array.T if turned else array
    return new


GPT2 = Family(
    name="gpt2",
    prefix="transformer.",
    classifier=None,
    options={
        "vocabulary": "vocab_size",
        "layers": "n_layer",
        "width": "n_embd",
        "heads": "n_head",
        "hidden": "n_inner",
        "positions": "n_positions",
        "epsilon": "layer_norm_epsilon",
        "activation": "activation_function",
    },
    fixed={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "tie_word_embeddings": True,
    },
    layers={"embeddings/tokens": "wte", "embeddings/positions": "wpe", "norm": "ln_f"},
    block="h.{}.",
    block_layers={
        "norm1": "ln_1",
        "query": "attn.query",
        "key": "attn.key",
        "value": "attn.value",
        "output": "attn.c_proj",
        "norm2": "ln_2",
        "inner": "mlp.c_fc",
        "outer": "mlp.c_proj",
    },
    head={},
    language_model="GPT2LMHeadModel",
    unpacked=_unpacked,
    packed=_packed,
)
"""GPT-2's names in Hugging Face's files."""
