"""How our layers and options map to the names in Hugging Face's files, in both directions."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpjax._toml import Table

__all__ = ["ENCODER_BLOCK", "ENCODER_EMBEDDINGS", "ENCODER_OPTIONS", "SEGMENTS", "Family"]

ENCODER_OPTIONS = {
    "vocabulary": "vocab_size",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "positions": "max_position_embeddings",
    "epsilon": "layer_norm_eps",
    "activation": "hidden_act",
    "padding": "pad_token_id",
}
"""Arguments of `bert` and `roberta`, with their names in config.json."""

ENCODER_EMBEDDINGS = {
    "embeddings/tokens": "embeddings.word_embeddings",
    "embeddings/positions": "embeddings.position_embeddings",
    "embeddings/norm": "embeddings.LayerNorm",
}
"""The embeddings of BERT, RoBERTa and DistilBERT."""

SEGMENTS = {"embeddings/segments": "embeddings.token_type_embeddings"}
"""The segment table of BERT and RoBERTa."""

ENCODER_BLOCK = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "inner": "intermediate.dense",
    "outer": "output.dense",
    "norm2": "output.LayerNorm",
}
"""The layers of a block of BERT and RoBERTa."""

Tensors = Mapping[str, np.ndarray]

_BLOCK = re.compile(r"blocks/(\d+)/(\w+)")
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}
# Entries that config.json may leave out.
_DEFAULTS = {
    "pad_token_id": 0,
    "n_inner": None,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
}


@dataclass(frozen=True)
class Family:
    """The names of a family's layers and sizes in Hugging Face's files.

    Args:
        name: its name in `dpjax.models.MODELS`, and `model_type` in config.json.
        prefix: the prefix of every layer's name except the head's, in files that have a head.
        classifier: the class with a classification head; None if the family has none here.
        options: maps the constructor's arguments to names in config.json.
        fixed: entries of config.json with their only supported value, which is also the default.
        layers: maps our paths to names, for layers outside blocks.
        block: the prefix of the names of a block's layers, with {} for its number.
        block_layers: maps our names to names, for the layers of a block.
        head: maps our paths to names, for the layers of the head.
        language_model: the class with a head for the next token; None if there is none.
        positions_after_padding: whether the first ``padding + 1`` rows of the position table are
            not used for tokens.
        unpacked: converts the file's tensors to one (outputs, inputs) kernel per layer.
        packed: its inverse.
    """

    name: str
    prefix: str
    classifier: str | None
    options: Mapping[str, str]
    fixed: Table
    layers: Mapping[str, str]
    block: str
    block_layers: Mapping[str, str]
    head: Mapping[str, str]
    language_model: str | None = None
    positions_after_padding: bool = False
    unpacked: Callable[[Tensors], Tensors] = field(default=lambda tensors: tensors)
    packed: Callable[[Tensors], Tensors] = field(default=lambda tensors: tensors)

    def constructor_options(self, config: Table, source: object) -> dict[str, Any]:
        """Returns the constructor's arguments that a config.json asks for.

        Args:
            config: its content.
            source: the file, for error messages.
        """
        for key, only in self.fixed.items():
            if config.get(key, only) != only:
                raise ValueError(f"{source}: {key} = {config[key]!r}: expected {only!r}")
        options = {}
        for ours, theirs in self.options.items():
            if theirs not in config and theirs not in _DEFAULTS:
                raise ValueError(f"{source}: {theirs}: missing; expected it of a {self.name}")
            options[ours] = config.get(theirs, _DEFAULTS.get(theirs))
        if self.positions_after_padding:
            options["positions"] -= options["padding"] + 1
        return options

    def config(self, options: Table) -> dict[str, Any]:
        """Returns the config.json for constructor arguments; inverts `constructor_options`."""
        config = {theirs: options[ours] for ours, theirs in self.options.items() if ours in options}
        if self.positions_after_padding:
            config[self.options["positions"]] += options["padding"] + 1
        return {"model_type": self.name, **config, **self.fixed}

    def tensor_name(self, path: str) -> str:
        """Returns the name of a parameter's tensor, without the prefix.

        >>> from dpjax.models.bert import BERT
        >>> BERT.tensor_name("blocks/3/query/kernel")
        'encoder.layer.3.attention.self.query.weight'
        >>> BERT.tensor_name("embeddings/tokens")
        'embeddings.word_embeddings.weight'
        """
        if path in self.layers:  # a table
            return f"{self.layers[path]}.weight"
        layer, _, leaf = path.rpartition("/")
        found = _BLOCK.fullmatch(layer)
        if found:
            theirs = self.block.format(found[1]) + self.block_layers[found[2]]
        else:
            theirs = self.layers.get(layer) or self.head[layer]
        return f"{theirs}.{_LEAVES[leaf]}"

    def in_head(self, path: str) -> bool:
        """Returns whether a parameter belongs to the head."""
        return path.rpartition("/")[0] in self.head
