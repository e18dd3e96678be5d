"""Refusal of batch normalisation, whose examples see each other."""

from typing import Any

import jax
from flax import nnx

__all__ = ["refuse_batch_stats"]


def refuse_batch_stats(model: Any) -> None:
    """Refuses a model, or its variables, that keeps batch statistics, and names the layer.

    Under a single example, a batch normalisation's mean is the example itself and its output is
    zero; over a batch, one example changes the gradients of all others. Neither can be private.

    Args:
        model: Linen variables, an NNX module or state, or any pytree of parameters.

    Example:
        >>> refuse_batch_stats({"params": {}, "batch_stats": {"BatchNorm_0": {"mean": 0.0}}})
        Traceback (most recent call last):
        ...
        ValueError: BatchNorm_0 keeps batch statistics, which tie the examples of a batch together:
        expected a model without them, for instance with GroupNorm in its place
    """
    if isinstance(model, nnx.Module):
        model = nnx.state(model)
    is_stat = lambda leaf: isinstance(leaf, nnx.BatchStat)  # noqa: E731
    for path, leaf in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_stat):
        keys = [jax.tree_util.keystr((key,), simple=True) for key in path]
        if is_stat(leaf) or "batch_stats" in keys:
            layer = [key for key in keys[:-1] if key != "batch_stats"]
            raise ValueError(
                f"{'/'.join(layer) or 'model'} keeps batch statistics, which tie the examples of "
                "a batch together: expected a model without them, for instance with GroupNorm in "
                "its place"
            )
