"""Refusal of batch normalisation, in which the examples of a batch affect each other."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

__all__ = ["refuse_batch_stats", "refuse_closed_over_batch_stats"]


def refuse_batch_stats(model: object) -> None:
    """Raises ValueError, naming the layer, if a model or its variables keep batch statistics.

    For a single example, the mean in a batch normalisation is the example itself and the output is
    zero. Over a batch, one example changes the gradients of all others. Neither can be private.

    Args:
        model: Linen variables, an NNX module or state, or any pytree of parameters.

    Raises:
        ValueError: if it keeps batch statistics.

    Example:
        >>> refuse_batch_stats({"params": {}, "batch_stats": {"BatchNorm_0": {"mean": 0.0}}})
        Traceback (most recent call last):
        ...
        ValueError: BatchNorm_0 keeps batch statistics, which tie the examples of a batch together:
        expected a model without them, for instance with GroupNorm in its place (frozen ones, read
        with use_running_average=True, may be bound to the loss with functools.partial)
    """
    nnx = _nnx()
    if nnx is not None and isinstance(model, nnx.Module):
        model = nnx.state(model)

    def is_stat(leaf: object) -> bool:
        return nnx is not None and isinstance(leaf, nnx.BatchStat)

    for path, leaf in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_stat):
        keys = [jax.tree_util.keystr((key,), simple=True) for key in path]
        if is_stat(leaf) or "batch_stats" in keys:
            layer = [key for key in keys[:-1] if key != "batch_stats"]
            raise ValueError(
                f"{'/'.join(layer) or 'model'} keeps batch statistics, which tie the examples of "
                "a batch together: expected a model without them, for instance with GroupNorm in "
                "its place (frozen ones, read with use_running_average=True, may be bound to the "
                "loss with functools.partial)"
            )


def refuse_closed_over_batch_stats(loss_fn: Callable[..., object]) -> None:
    """Refuses a loss that closes over variables or a module with batch statistics.

    That is how they reach a loss that is passed only the parameters.
    """
    nnx = _nnx()
    for value in _closed_over(loss_fn, depth=3):
        if nnx is not None and isinstance(value, nnx.Module | nnx.State):
            refuse_batch_stats(value)
        elif isinstance(value, Mapping) and "batch_stats" in value:
            refuse_batch_stats({"batch_stats": value["batch_stats"]})


def _nnx() -> Any:
    """Returns Flax NNX if it has been imported; otherwise nothing can be an NNX module."""
    return sys.modules.get("flax.nnx")


def _closed_over(function: Callable[..., object], depth: int) -> Iterator[object]:
    function = inspect.unwrap(function)
    if depth == 0 or not inspect.isfunction(function):
        return
    scope = inspect.getclosurevars(function)
    for value in (*scope.nonlocals.values(), *scope.globals.values()):
        yield value
        if inspect.isfunction(value):
            yield from _closed_over(value, depth - 1)
