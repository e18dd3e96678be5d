"""The papers' networks, as pure functions of plain parameters and ONE example."""

from dpjax.models.activations import activation, tempered_sigmoid
from dpjax.models.frozen_prefix import CachedStates, Halves, cache_states, cut, first_trained_block
from dpjax.models.generation import generate
from dpjax.models.gpt2 import NO_TOKEN
from dpjax.models.lora import LoRA, add_lora, merge_lora
from dpjax.models.network import MODELS, Network, build
from dpjax.models.parameters import Parameters, split
from dpjax.models.pretrained import (
    FAMILIES,
    Pretrained,
    from_pretrained,
    pretrained_hash,
    pretrained_network,
    pretrained_tokenizer,
    pretrained_weights,
    save_pretrained,
)
from dpjax.models.tokenizer import Tokenizer

__all__ = [
    "FAMILIES",
    "MODELS",
    "NO_TOKEN",
    "CachedStates",
    "Halves",
    "LoRA",
    "Network",
    "Parameters",
    "Pretrained",
    "Tokenizer",
    "activation",
    "add_lora",
    "build",
    "cache_states",
    "cut",
    "first_trained_block",
    "from_pretrained",
    "generate",
    "merge_lora",
    "pretrained_hash",
    "pretrained_network",
    "pretrained_tokenizer",
    "pretrained_weights",
    "save_pretrained",
    "split",
    "tempered_sigmoid",
]
