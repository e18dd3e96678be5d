"""The engine that is estimated to cost less."""

from collections.abc import Callable
from typing import Any

import jax

from dpjax.gradients.ghost.blocks import blocks_of
from dpjax.gradients.ghost.engine import ghost_engine
from dpjax.gradients.ghost.explanation import cheaper_engine
from dpjax.gradients.ghost.work import program_of
from dpjax.gradients.materialised import ChunkGrads
from dpjax.gradients.rows import Chunk, loss_arguments
from dpjax.gradients.vmap import vmap_engine

__all__ = ["auto_engine"]


def auto_engine(
    loss_fn: Callable[..., jax.Array], params: Any, chunk: Chunk, key: Any
) -> ChunkGrads:
    """Returns what the ghost engine gives, or the vmap engine; `explain` says which, and why.

    Args:
        loss_fn: the loss of one example, ``loss_fn(params, example)`` or with a key.
        params: where the gradients are taken.
        chunk: the examples.
        key: None, or the key that is folded with each row's index.
    """
    data = loss_arguments(chunk, key)
    ghost = cheaper_engine(blocks_of(program_of(loss_fn, params, data))) == "ghost"
    return (ghost_engine if ghost else vmap_engine)(loss_fn, params, chunk, key)
