"""From the loss of one example to the per-example gradients of a batch."""

import inspect
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from dpjax import _checks
from dpjax.devices import (
    as_automatic,
    automatic_axes,
    explicit_mesh,
    leading_axis,
    varying,
    varying_zero,
)
from dpjax.gradients.ghost import auto_engine, ghost_engine, ghost_two_pass_engine
from dpjax.gradients.interface import DeferredPass, PerExampleGrads
from dpjax.gradients.model_state import (
    refuse_batch_stats,
    refuse_closed_over_batch_stats,
    refuse_random_streams,
    refusing_updates_of_batch_stats,
)
from dpjax.gradients.norms import settled
from dpjax.gradients.rows import BatchRows, batch_rows, drawn_rows, leading_size, packed_rows
from dpjax.gradients.vmap import ChunkGrads, MaterialisedChunk, vmap_engine
from dpjax.sampling import Drawn, Packed

__all__ = [
    "ENGINES",
    "as_per_example_grads",
    "check_arguments",
    "check_signature",
    "merged",
    "per_example_grads",
    "trainable",
]

ENGINES: dict[str, Callable[..., ChunkGrads]] = {
    "auto": auto_engine,
    "ghost": ghost_engine,
    "ghost_two_pass": ghost_two_pass_engine,
    "vmap": vmap_engine,
}


def per_example_grads(
    loss_fn: Callable[..., chex.ArrayTree],
    engine: str = "auto",
    chunk: int | None = None,
    has_aux: bool = False,
    sharding: NamedSharding | None = None,
) -> Callable[..., PerExampleGrads]:
    """Turns the loss of one example into per-example gradients of a batch.

    Nothing is computed until the gradients are used. Pass them to `dpjax.privatize` as they are.

    Args:
        loss_fn: ``loss_fn(params, example) -> scalar``, or ``loss_fn(params, example, key)`` when a
            key is given. Pure, for ONE example: a slice of the batch without its leading axis.
            `params` is any pytree: arrays of floating-point numbers are differentiated, and all
            other leaves are left as they are.
        engine: how gradients are computed. "vmap" forms all of them. "ghost" computes norms and
            weighted sums without forming the expensive gradients, at close to the cost of an
            ordinary gradient; "ghost_two_pass" needs the least memory, but a second pass over the
            examples; "auto" picks "vmap" or "ghost", whichever is estimated to cost less.
            `dpjax.explain` shows what an engine would do. All engines give the same gradients up to
            float32 rounding. If the parameters or the loss are in half precision, clipped gradients
            agree to 2 eps of the bound (1.6e-2 in bfloat16, 2e-3 in float16), and none exceeds its
            bound by more than in float32.
        chunk: rows per pass; memory holds `chunk` gradients at a time. With None, a hand-fed batch
            takes one pass, and the chunks of drawn batches are sized so that nearly all batches fit
            in one.
        has_aux: whether the loss returns ``(loss, aux)``; `aux`, a pytree of arrays, is then
            stacked in ``grads.aux``. Losses and aux are private.
        sharding: how the rows of a batch are split over a mesh with automatic axes, for instance
            ``NamedSharding(mesh, PartitionSpec("data"))``. Results do not depend on it, but it
            keeps rows on their devices where the compiler might move them. Not needed with explicit
            axes.

    Returns:
        A function with three forms. ``grads_of(params, data, drawn, key=None)`` gathers the rows
        that ``sampling.draw`` drew inside the chunk loop; the number of chunks depends on the
        batch, so batches of any size (exact Poisson sampling) compile once.
        ``grads_of(params, rows, drawn.packed(), key=None)`` is for rows gathered elsewhere, and
        ``grads_of(params, batch, mask=None, key=None)`` for a hand-fed batch, where `mask` is (B,),
        1 for real rows and 0 for padding. A `key` is folded with each row's number in the whole
        data set, whatever the device or the part. In a hand-fed batch it is folded with the row's
        position: if such a batch comes in parts, fold the key with the part yourself.

    Raises:
        TypeError: if `loss_fn` is not callable or takes other arguments, `chunk` is not an integer,
            or a parameter is complex.
        ValueError: if `engine` is unknown, the loss is not one floating-point number, the model
            keeps batch statistics, `params` holds no floats or holds the random streams of an NNX
            model, or the batch is ragged.

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
    check_arguments(loss_fn, engine, chunk)
    chunk = None if chunk is None else int(chunk)
    refuse_closed_over_batch_stats(loss_fn)

    def reporting(
        params: chex.ArrayTree, *example: chex.ArrayTree
    ) -> tuple[jax.Array, chex.ArrayTree]:
        found = loss_fn(params, *example)
        loss, aux = found if has_aux else (found, ())
        return loss, (loss, aux)

    def grads_of(
        params: chex.ArrayTree,
        batch: chex.ArrayTree,
        drawn: Drawn | Packed | None = None,
        key: chex.PRNGKey | None = None,
        *,
        mask: chex.Array | None = None,
    ) -> PerExampleGrads:
        like = _shapes(trainable(params))
        refuse_random_streams(params)
        _check_key(key)
        told = leading_axis(batch) or sharding
        mesh = explicit_mesh(like, batch)
        given = as_automatic((params, batch, drawn, key, mask), mesh)
        with automatic_axes(mesh):
            program, rows, zero = prepared(*given, told)
        sampling = None if drawn is None else drawn.sampling
        return PerExampleGrads(program, rows, like, zero, sampling, mesh)

    def prepared(
        params: chex.ArrayTree,
        batch: chex.ArrayTree,
        drawn: Drawn | Packed | None,
        key: chex.PRNGKey | None,
        mask: chex.Array | None,
        told: NamedSharding | None,
    ) -> tuple[DeferredPass, BatchRows, jax.Array | None]:
        own = trainable(params)
        rows = _rows(batch, drawn, mask, chunk, told)
        # The same function object wherever possible, since JAX caches traces by it.
        held = len(jax.tree.leaves(own)) < len(jax.tree.leaves(params))
        loss = _of_trainable(reporting, params) if held else reporting
        _check_loss(loss_fn, params, rows, key, has_aux)
        # Inside shard_map, gradients of parameters that all devices share would be summed over the
        # devices before clipping, so each device differentiates its own copy.
        zero = varying_zero(rows.arrays, own)
        copies = jax.tree.map(lambda leaf: varying(jnp.asarray(leaf), zero), own)
        return DeferredPass(loss, engine, ENGINES, copies, key), rows, zero

    return grads_of


def check_arguments(loss_fn: object, engine: str, chunk: int | None) -> None:
    """Raises unless these are arguments that `per_example_grads` takes."""
    _checks.choice("engine", engine, ENGINES)
    if not callable(loss_fn):
        raise TypeError(f"loss_fn = {loss_fn!r}: expected a function loss_fn(params, example)")
    if chunk is not None:
        _checks.integer("chunk", chunk, at_least=1)


def trainable(params: chex.ArrayTree) -> chex.ArrayTree:
    """Returns the leaves that are differentiated (arrays of floats), with None for all others.

    Equal to ``equinox.filter(params, equinox.is_inexact_array)``.

    Args:
        params: any pytree.

    Returns:
        A pytree of the same structure.

    Raises:
        ValueError: if there is no such leaf, or the model keeps batch statistics.
        TypeError: if a leaf is complex.

    Example:
        >>> trainable({"w": jnp.ones(2), "steps": jnp.arange(3), "act": jax.nn.relu})
        {'act': None, 'steps': None, 'w': Array([1., 1.], dtype=float32)}
    """
    refuse_batch_stats(params)
    leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
    kept = [leaf if _is_inexact(path, leaf) else None for path, leaf in leaves]
    if all(leaf is None for leaf in kept):
        raise ValueError(
            "params has no array of floating-point numbers: expected at least one parameter"
        )
    return jax.tree.unflatten(treedef, kept)


def merged(own: chex.ArrayTree, params: chex.ArrayTree) -> chex.ArrayTree:
    """Returns `params` with the trainable leaves replaced by those of `own`; see `trainable`.

    Args:
        own: the new leaves; None where the leaf of `params` stays.
        params: any pytree.

    Returns:
        A pytree with the structure of `params`.

    Example:
        >>> merged({"w": 2.0, "act": None}, {"w": 1.0, "act": "tanh"})
        {'act': 'tanh', 'w': 2.0}
    """
    return jax.tree.map(
        lambda new, old: old if new is None else new, own, params, is_leaf=lambda x: x is None
    )


def _is_inexact(path: tuple[object, ...], leaf: object) -> bool:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        return False
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        name = jax.tree_util.keystr(path)
        raise TypeError(f"params{name} has dtype {leaf.dtype}: expected a real parameter")
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _of_trainable(
    loss: Callable[..., tuple[jax.Array, chex.ArrayTree]], params: chex.ArrayTree
) -> Callable[..., tuple[jax.Array, chex.ArrayTree]]:
    """Returns the loss as a function of the trainable leaves; the others are fixed."""

    def of_own(own: chex.ArrayTree, *example: chex.ArrayTree) -> tuple[jax.Array, chex.ArrayTree]:
        return loss(merged(own, params), *example)

    return of_own


def _rows(
    batch: chex.ArrayTree,
    drawn: Drawn | Packed | None,
    mask: chex.Array | None,
    chunk: int | None,
    sharding: NamedSharding | None,
) -> BatchRows:
    if drawn is None:
        return batch_rows(batch, mask, chunk, sharding)
    if mask is not None:
        raise ValueError("mask with a drawn batch: expected none, the batch knows its padding")
    if isinstance(drawn, Drawn):
        return drawn_rows(batch, drawn, chunk, sharding)
    if isinstance(drawn, Packed):
        return packed_rows(batch, drawn, chunk, sharding)
    raise TypeError(
        f"drawn = {type(drawn).__name__}: expected what sampling.draw returned, or mask= for a "
        "hand-fed batch"
    )


def as_per_example_grads(
    grads: PerExampleGrads | chex.ArrayTree,
    mask: chex.Array | None = None,
    params: chex.ArrayTree | None = None,
) -> PerExampleGrads:
    """Wraps a plain pytree of per-example gradients, with a leading axis, in a PerExampleGrads.

    Args:
        grads: pytree of arrays (B, ...); a `PerExampleGrads` is returned as it is.
        mask: (B,), 1 for real rows and 0 for padding; None if all rows are real.
        params: the parameters, if at hand; their shapes then reveal gradients that were already
            averaged.

    Returns:
        The gradients, as `privatize` takes them.

    Raises:
        ValueError: if the leaves differ in length, or do not match `params`.
        TypeError: if a leaf is not an array of floating-point numbers.

    Example:
        >>> grads = {"w": jnp.array([[3.0, 4.0], [1.0, 0.0]])}
        >>> as_per_example_grads(grads, mask=[1, 0]).norms.tolist()
        [5.0, 0.0]
    """
    if isinstance(grads, PerExampleGrads):
        if mask is not None:
            raise ValueError("mask: expected only with a plain pytree of gradients")
        if params is not None:
            _check_tree(grads.like, params)
        return grads
    if params is not None and _shapes_only(grads) == _shapes_only(trainable(params)):
        raise ValueError(
            "grads has the shapes of params: expected one gradient per example, with a leading "
            "batch axis; a gradient that is already averaged cannot be clipped"
        )
    size = leading_size("grads", grads)
    like = jax.tree.map(lambda g: jax.ShapeDtypeStruct(jnp.shape(g)[1:], jnp.result_type(g)), grads)
    if params is not None:
        own = trainable(params)
        if _shapes_only(like) != _shapes_only(own):
            raise ValueError(
                f"grads has {size} rows shaped {_shapes_only(like)}: expected one gradient per "
                f"example in front of each parameter, shaped {_shapes_only(own)}"
            )
        _check_tree(like, params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(like):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            name = jax.tree_util.keystr(path)
            raise TypeError(f"grads{name} has dtype {leaf.dtype}: expected floating-point numbers")
    mesh = explicit_mesh(grads)
    told = leading_axis(grads)
    grads, mask = as_automatic((grads, mask), mesh)
    with automatic_axes(mesh):
        rows = batch_rows(settled(grads), mask, None, told)
    return PerExampleGrads(
        lambda part: MaterialisedChunk(part.examples, part.real, shards=part.shards),
        rows,
        like,
        mesh=mesh,
    )


def _shapes(tree: chex.ArrayTree) -> chex.ArrayTree:
    """Returns shapes, dtypes, and shardings over explicit mesh axes."""

    def one(leaf: chex.Array) -> jax.ShapeDtypeStruct:
        explicit = explicit_mesh(leaf) is not None
        sharding = jax.typeof(leaf).sharding if explicit else None
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf), sharding=sharding)

    return jax.tree.map(one, tree)


def _shapes_only(tree: chex.ArrayTree) -> list[tuple[int, ...]]:
    return [tuple(jnp.shape(leaf)) for leaf in jax.tree.leaves(tree)]


def _check_tree(like: chex.ArrayTree, params: chex.ArrayTree) -> None:
    """Raises ValueError if gradients and parameters differ in structure."""
    found: object = jax.tree.structure(like)
    expected: object = jax.tree.structure(trainable(params))
    if found != expected:
        raise ValueError(f"grads is the pytree {found}: expected that of params, {expected}")


def _check_loss(
    loss_fn: Callable[..., chex.ArrayTree],
    params: chex.ArrayTree,
    rows: BatchRows,
    key: chex.PRNGKey | None,
    has_aux: bool,
) -> None:
    example = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x)[1:], jnp.result_type(x)), rows.data
    )
    extra = () if key is None else (key,)
    check_signature(loss_fn, "params", "example", *(() if key is None else ("key",)))
    try:
        with refusing_updates_of_batch_stats():
            found = jax.eval_shape(
                lambda example, *extra: loss_fn(params, example, *extra), example, *extra
            )
    except Exception as error:
        error.add_note(
            "dpjax called loss_fn with ONE example, without the axis of the batch, of the shapes "
            f"{example}"
        )
        raise
    loss = found
    if has_aux:
        if not (isinstance(found, tuple) and len(found) == 2):
            raise ValueError(f"loss_fn returned {found}: expected (loss, aux), as has_aux says")
        loss = found[0]
    one = isinstance(loss, jax.ShapeDtypeStruct) and loss.shape == ()
    if not one or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        hint = "; a pair (loss, aux) needs has_aux=True" if isinstance(loss, tuple) else ""
        raise ValueError(
            f"loss_fn returned {loss}: expected one floating-point number for ONE example{hint}"
        )


def _check_key(key: chex.PRNGKey | None) -> None:
    if key is None:
        return
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ():
        return
    # A legacy key has as many words as JAX's default generator takes.
    if dtype == jnp.uint32 and shape == jax.eval_shape(jax.random.PRNGKey, 0).shape:
        return
    shown = repr(key) if dtype is None else f"an array of {dtype} with shape {shape}"
    raise TypeError(f"key = {shown}: expected one JAX random key, as jax.random.key(0), or None")


def check_signature(loss_fn: Callable[..., chex.ArrayTree], *arguments: str) -> None:
    """Raises TypeError unless the loss can be called with arguments like these."""
    try:
        signature = inspect.signature(loss_fn)
    except (TypeError, ValueError):  # some callables have none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(
            f"loss_fn{signature}: {error}; expected loss_fn({', '.join(arguments)}), with all "
            "arrays of an example in one pytree, such as (x, y)"
        ) from error
