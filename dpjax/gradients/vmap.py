"""The vmap engine: per-example gradients, materialised."""

from collections.abc import Callable
from typing import Any

import jax

from dpjax.gradients.convolutions import channels_last_convolutions
from dpjax.gradients.materialised import MaterialisedChunk
from dpjax.gradients.norms import settled
from dpjax.gradients.rows import Chunk, loss_arguments

__all__ = ["vmap_engine"]


def vmap_engine(
    loss_fn: Callable[..., jax.Array], params: Any, chunk: Chunk, key: Any
) -> MaterialisedChunk:
    """Returns ``vmap(value_and_grad(loss_fn))`` over the examples of a chunk.

    Args:
        loss_fn: the loss of one example, ``loss_fn(params, example)`` or with a key.
        params: where the gradients are taken.
        chunk: the examples.
        key: None, or the key that is folded with each row's index.
    """
    grad_fn = jax.value_and_grad(loss_fn)
    data = loss_arguments(chunk, key)
    grads_of = jax.vmap(grad_fn, in_axes=(None, *(0 for _ in data)))
    if jax.default_backend() == "cpu":
        grads_of = channels_last_convolutions(grads_of)
    losses, grads = grads_of(params, *data)
    return MaterialisedChunk(settled(grads), losses, chunk.real)
