"""Refusal of model state that examples would share: batch statistics and random streams."""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax

__all__ = [
    "refuse_batch_stats",
    "refuse_closed_over_batch_stats",
    "refuse_random_streams",
    "refusing_updates_of_batch_stats",
]


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
            raise _keeps_statistics([key for key in keys[:-1] if key != "batch_stats"])


def refuse_closed_over_batch_stats(loss_fn: Callable[..., object]) -> None:
    """Refuses a loss that closes over an NNX module or state with batch statistics.

    That is how they reach a loss that is passed only the parameters.
    """
    nnx = _nnx()
    if nnx is None:
        return
    for value in _closed_over(loss_fn, depth=3):
        if isinstance(value, nnx.Module | nnx.State):
            refuse_batch_stats(value)


def refusing_updates_of_batch_stats() -> AbstractContextManager[None]:
    """Returns a context in which a Linen layer may not update batch statistics.

    However a loss holds its variables, it updates them in the methods of its layers. Frozen
    statistics are only read, and pass.
    """
    linen = sys.modules.get("flax.linen")
    return nullcontext() if linen is None else linen.intercept_methods(_without_updates)


def refuse_random_streams(params: object) -> None:
    """Refuses parameters that hold the random streams of an NNX model, such as those of Dropout.

    Only `dpjax.nnx.per_example_grads` reseeds them for each example.
    """
    nnx = _nnx()
    if nnx is None:
        return
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, nnx.RngState))
    if any(isinstance(leaf, nnx.RngState) for leaf in leaves):
        raise ValueError(
            "params holds random streams (nnx.Rngs), which every example would share: expected "
            "dpjax.nnx.per_example_grads with a key, or a model without random streams"
        )


def _keeps_statistics(layer: Sequence[str]) -> ValueError:
    return ValueError(
        f"{'/'.join(layer) or 'model'} keeps batch statistics, which tie the examples of a batch "
        "together: expected a model without them, for instance with GroupNorm in its place "
        "(frozen ones, read with use_running_average=True, may be bound to the loss with "
        "functools.partial)"
    )


def _without_updates(
    method: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
) -> object:
    """Calls a Linen method; raises if it creates or replaces batch statistics."""
    module = context.module
    if module.scope is None or not module.is_mutable_collection("batch_stats"):
        return method(*args, **kwargs)
    before = dict(_batch_stats(module))
    found = method(*args, **kwargs)
    for path, leaf in _batch_stats(module):
        if before.get(path) is not leaf:
            raise _keeps_statistics([*module.path, *path[:-1]])
    return found


def _batch_stats(module: Any) -> Iterator[tuple[tuple[str, ...], object]]:
    stats = module.variables.get("batch_stats", {})
    for path, leaf in jax.tree_util.tree_leaves_with_path(stats):
        yield tuple(jax.tree_util.keystr((key,), simple=True) for key in path), leaf


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
