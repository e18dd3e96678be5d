"""From the loss of one example to the per-example gradients of a batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks
from dpjax.gradients.batch_stats import refuse_batch_stats, refuse_closed_over_batch_stats
from dpjax.gradients.ghost import auto_engine, ghost_engine, ghost_two_pass_engine
from dpjax.gradients.interface import PerExampleGrads
from dpjax.gradients.materialised import ChunkGrads, MaterialisedChunk
from dpjax.gradients.norms import settled
from dpjax.gradients.rows import Rows, batch_rows, drawn_rows, leading_size, packed_rows
from dpjax.gradients.shards import varying, varying_zero
from dpjax.gradients.vmap import vmap_engine
from dpjax.sampling import Drawn, Packed

__all__ = ["ENGINES", "as_per_example_grads", "per_example_grads"]

ENGINES: dict[str, Callable[..., ChunkGrads]] = {
    "auto": auto_engine,
    "ghost": ghost_engine,
    "ghost_two_pass": ghost_two_pass_engine,
    "vmap": vmap_engine,
}


def per_example_grads(
    loss_fn: Callable[..., jax.Array], engine: str = "vmap", chunk: int | None = None
) -> Callable[..., PerExampleGrads]:
    """Turns the loss of one example into per-example gradients of a batch.

    Args:
        loss_fn: ``loss_fn(params, example) -> scalar``, or ``loss_fn(params, example, key)`` when a
            key is given. Pure, for ONE example: a slice of the batch without its leading axis.
        engine: how gradients are obtained. "vmap" forms all of them. "ghost" computes norms and
            weighted sums without forming those that are dear, close to the cost of an ordinary
            gradient; "ghost_two_pass" in the least memory, with a second pass over the examples;
            "auto" is the one of "vmap" and "ghost" that is estimated to cost less. `dpjax.explain`
            says what would be done. All give the same gradients, to float32 rounding; where the
            parameters or the loss are in half precision, clipped gradients agree to 2 eps of the
            bound (1.6e-2 in bfloat16, 2e-3 in float16), and none exceeds its bound by more than in
            float32.
        chunk: rows per pass; None takes all at once. Memory is that of `chunk` gradients.

    Returns:
        ``grads_of(params, data, drawn, key=None)``, which gathers what ``sampling.draw`` drew
        inside the chunk loop: the number of chunks follows the batch, so that batches of any size
        (exact Poisson sampling) compile once. ``grads_of(params, rows, drawn.packed(), key=None)``
        for rows that were gathered elsewhere; ``grads_of(params, batch, mask=None, key=None)`` for
        a batch by hand, where `mask` is (B,), 1 for real rows and 0 for padding. A `key` is folded
        with each row's number in the whole data set, whatever the device or the part; in a batch by
        hand, with its position: where such a batch comes in parts, fold the key with the part.

    Example:
        >>> from dpjax.sampling import FullBatch
        >>> loss = lambda w, x: jnp.sum(w * x)
        >>> data = jnp.array([[3.0, 4.0], [0.0, 2.0], [6.0, 8.0]])
        >>> grads_of = per_example_grads(loss, chunk=2)
        >>> grads_of(jnp.zeros(2), data).norms.tolist()
        [5.0, 2.0, 10.0]
        >>> drawn = FullBatch(3).draw(jax.random.key(0), step=0)
        >>> grads_of(jnp.zeros(2), data, drawn).weighted_sum(jnp.ones(3)).tolist()
        [9.0, 14.0]
    """
    _checks.choice("engine", engine, ENGINES)
    if chunk is not None:
        chunk = _checks.integer("chunk", chunk, at_least=1)
    refuse_closed_over_batch_stats(loss_fn)

    def grads_of(
        params: Any,
        batch: Any,
        drawn: Drawn | Packed | None = None,
        key: Any = None,
        *,
        mask: Any = None,
    ) -> PerExampleGrads:
        _check_params(params)
        rows = _rows(batch, drawn, mask, chunk)
        _check_loss(loss_fn, params, rows, key)
        # Inside shard_map, gradients at parameters that all devices share would be summed over the
        # devices before clipping; each device differentiates its own copy instead.
        zero = varying_zero(rows.arrays, params)
        own = jax.tree.map(lambda leaf: varying(jnp.asarray(leaf), zero), params)
        return PerExampleGrads(
            lambda part: ENGINES[engine](loss_fn, own, part, key), rows, _shapes(params), zero
        )

    return grads_of


def _rows(batch: Any, drawn: Drawn | Packed | None, mask: Any, chunk: int | None) -> Rows:
    if drawn is None:
        return batch_rows(batch, mask, chunk)
    if mask is not None:
        raise ValueError("mask with a drawn batch: expected none, the batch knows its padding")
    if isinstance(drawn, Drawn):
        return drawn_rows(batch, drawn, chunk)
    if isinstance(drawn, Packed):
        return packed_rows(batch, drawn, chunk)
    raise TypeError(
        f"drawn = {type(drawn).__name__}: expected what sampling.draw returned, or mask= for a "
        "batch by hand"
    )


def as_per_example_grads(grads: Any, mask: Any = None, params: Any = None) -> PerExampleGrads:
    """Takes a plain pytree of per-example gradients, with a leading axis, as a PerExampleGrads.

    Args:
        grads: pytree of arrays (B, ...); a `PerExampleGrads` is returned as it is.
        mask: (B,), 1 for real rows; None when all are.
        params: the parameters, if at hand: gradients that were already averaged are then told from
            per-example ones by their shapes.

    Example:
        >>> grads = {"w": jnp.array([[3.0, 4.0], [1.0, 0.0]])}
        >>> as_per_example_grads(grads, mask=[1, 0]).norms.tolist()
        [5.0, 0.0]
    """
    if isinstance(grads, PerExampleGrads):
        if mask is not None:
            raise ValueError("mask: expected only with a plain pytree of gradients")
        return grads
    size = leading_size("grads", grads)
    like = jax.tree.map(lambda g: jax.ShapeDtypeStruct(jnp.shape(g)[1:], jnp.result_type(g)), grads)
    if params is not None and _shapes_only(like) != _shapes_only(params):
        raise ValueError(
            f"grads has {size} rows shaped {_shapes_only(like)}: expected one gradient per example "
            f"in front of each parameter, shaped {_shapes_only(params)}"
        )
    _check_params(like)
    rows = batch_rows(settled(grads), mask, None)
    return PerExampleGrads(
        lambda part: MaterialisedChunk(part.examples, None, part.real), rows, like
    )


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def _shapes_only(tree: Any) -> list[tuple[int, ...]]:
    return [tuple(jnp.shape(leaf)) for leaf in jax.tree.leaves(tree)]


def _check_params(params: Any) -> None:
    refuse_batch_stats(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        if not jnp.issubdtype(dtype, jnp.floating):
            name = jax.tree_util.keystr(path)
            raise TypeError(f"params{name} has dtype {dtype}: expected a floating-point parameter")


def _check_loss(loss_fn: Callable[..., Any], params: Any, rows: Rows, key: Any) -> None:
    example = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x)[1:], jnp.result_type(x)), rows.data
    )
    extra = () if key is None else (key,)
    loss = jax.eval_shape(loss_fn, _shapes(params), example, *extra)
    one = isinstance(loss, jax.ShapeDtypeStruct) and loss.shape == ()
    if not one or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise ValueError(
            f"loss_fn returned {loss}: expected one floating-point number for ONE example"
        )
