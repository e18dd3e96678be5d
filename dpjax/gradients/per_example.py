"""Per-example gradients as an opaque object: norms and weighted sums, however they are computed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.gradients.batch_stats import refuse_batch_stats
from dpjax.gradients.groups import GroupIndex, group_index
from dpjax.gradients.materialised import ChunkGrads, MaterialisedChunk
from dpjax.gradients.rows import Chunk, Rows, batch_rows, gathered_rows, leading_size
from dpjax.gradients.shards import varying, varying_zero
from dpjax.gradients.vmap import vmap_engine

__all__ = ["PerExampleGrads", "per_example_grads", "stacked_grads"]

_ENGINES = {"vmap": vmap_engine}


class PerExampleGrads:
    """The gradients of a batch, one per example, without saying how they are held.

    Made inside the jitted step by `per_example_grads`, and no pytree: a gradient transformation in
    front of `privatize` would otherwise treat private data as gradients. Everything it returns is
    private until noise is added.

    Padded rows have norm 0 and add exactly zero to every sum. A real row whose gradient is not
    finite has norm +inf and counts as a zero gradient, whatever its weight.
    """

    def __init__(self, engine: Callable[[Chunk], ChunkGrads], rows: Rows, like: Any) -> None:
        """Takes the engine's pass over one chunk, the rows, and a pytree shaped like the sum."""
        self._engine = engine
        self._rows = rows
        self._like = like
        # With one chunk, norms and sums share a single pass; with several, each call is a loop.
        self._whole = engine(rows.all()) if rows.single else None

    @property
    def like(self) -> Any:
        """The parameters' shapes and dtypes, as a pytree of `jax.ShapeDtypeStruct`."""
        return self._like

    @property
    def losses(self) -> jax.Array:
        """(B,) losses; 0 for padding."""
        return self._stack(_losses)

    @property
    def norms(self) -> jax.Array:
        """(B,) L2 norms of the whole gradients; +inf where not finite, 0 for padding."""
        return self.group_norms(None)[:, 0]

    @property
    def vectors(self) -> Any:
        """The gradients themselves, a pytree with a leading axis; only if the engine holds them."""
        return self._stack(lambda chunk: _materialised(chunk).grads)

    def group_norms(self, groups: Any) -> jax.Array:
        """Returns (B, G) L2 norms by group; a row that is not finite is +inf in all groups."""
        index = group_index(groups, self._like)
        return self._stack(lambda chunk: chunk.norms(index))

    def weighted_sum(self, weights: Any, groups: Any = None) -> Any:
        """Returns ``sum_i w_i g_i``, a pytree shaped like the parameters, in float32 or wider.

        Args:
            weights: (B,), or (B, G) with groups.
            groups: None, "per_leaf", or a params-prefix pytree of labels.
        """
        index = group_index(groups, self._like)
        weights = jnp.asarray(weights)
        expected = (self._rows.size,) if groups is None else (self._rows.size, len(index.names))
        if weights.shape != expected:
            raise ValueError(f"weights has shape {weights.shape}: expected {expected}")
        columns = weights.reshape(self._rows.size, -1)

        def body(chunk: ChunkGrads, start: Any) -> Any:
            position = jnp.minimum(start + jnp.arange(self._rows.chunk), self._rows.size - 1)
            return _kept_sum(chunk, chunk.norms(index), columns[position], index)

        return self._sum(body)

    def aggregate(
        self, fn: Callable[[jax.Array], tuple[jax.Array, Any]], groups: Any = None
    ) -> tuple[Any, Any]:
        """Returns ``(sum_i w_i g_i, sum_i s_i)`` in one pass over the chunks.

        Padded rows are masked in both sums, here and not in `fn`; a row that is not finite adds
        nothing to the first and the statistic of norm +inf to the second.

        Args:
            fn: ``fn(norms) -> (weights, statistics)`` for the rows of one chunk: norms and weights
                are (k,), or (k, G) with groups; statistics is a pytree of arrays with k rows.
            groups: None, "per_leaf", or a params-prefix pytree of labels.

        Example:
            >>> grads = per_example_grads(lambda w, x: w * x)(jnp.float32(0), jnp.array([1., 3.]))
            >>> total, count = grads.aggregate(lambda n: (1 / n, (n > 2.0).astype(jnp.float32)))
            >>> float(total), float(count)
            (2.0, 1.0)
        """
        index = group_index(groups, self._like)

        def body(chunk: ChunkGrads, start: Any) -> Any:
            norms = chunk.norms(index)
            shown = jnp.where(chunk.real[:, None], norms, 0)
            weights, statistics = fn(shown[:, 0] if groups is None else shown)
            weights = jnp.asarray(weights).reshape(norms.shape)
            total = _kept_sum(chunk, norms, weights, index)
            return total, jax.tree.map(lambda s: _real_sum(s, chunk.real), statistics)

        return self._sum(body)

    def map(self, fn: Callable[[Any], Any]) -> "PerExampleGrads":
        """Returns the gradients with `fn` applied to each; only if the engine holds them.

        `fn` takes and returns one example's gradient. Padding and rows that are not finite are
        masked after `fn`, so that they add zero whatever `fn` makes of them.
        """

        def mapped(rows: Chunk) -> ChunkGrads:
            return _materialised(self._engine(rows)).map(fn)

        return PerExampleGrads(mapped, self._rows, self._like)

    def _sum(self, body: Callable[[ChunkGrads, Any], Any]) -> Any:
        """Adds up `body` over the chunks."""
        if self._whole is not None:
            return body(self._whole, 0)

        def at(start: Any) -> Any:
            return body(self._engine(self._rows.take(start)), start)

        return self._loop(
            jax.eval_shape(at, 0),
            lambda start, total: jax.tree.map(jnp.add, total, at(start)),
        )

    def _stack(self, body: Callable[[ChunkGrads], Any]) -> Any:
        """Lays the rows of `body` over the chunks end to end; 0 for padding."""
        if self._whole is not None:
            return _zero_padding(body(self._whole), self._whole.real)
        size = -(-self._rows.size // self._rows.chunk) * self._rows.chunk

        def at(start: Any) -> Any:
            chunk = self._engine(self._rows.take(start))
            return _zero_padding(body(chunk), chunk.real)

        buffers = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((size, *s.shape[1:]), s.dtype), jax.eval_shape(at, 0)
        )

        def write(start: Any, full: Any) -> Any:
            return jax.tree.map(
                lambda f, part: jax.lax.dynamic_update_slice_in_dim(f, part, start, 0),
                full,
                at(start),
            )

        return jax.tree.map(lambda full: full[: self._rows.size], self._loop(buffers, write))

    def _loop(self, shapes: Any, body: Callable[[Any, Any], Any]) -> Any:
        """Runs ``carry = body(start, carry)`` over the chunks in use, from zeros."""
        zero = varying_zero(self._rows)
        init = jax.tree.map(lambda s: varying(jnp.zeros(s.shape, s.dtype), zero), shapes)
        step = self._rows.chunk
        return jax.lax.fori_loop(0, self._rows.chunks, lambda i, c: body(i * step, c), init)


def per_example_grads(
    loss_fn: Callable[..., jax.Array], engine: str = "vmap", chunk: int | None = None
) -> Callable[..., PerExampleGrads]:
    """Turns the loss of one example into per-example gradients of a batch.

    Args:
        loss_fn: ``loss_fn(params, example) -> scalar``, or ``loss_fn(params, example, key)`` when a
            key is given. Pure, for ONE example: a slice of the batch without its leading axis.
        engine: "vmap".
        chunk: rows per pass; None takes all at once. Memory is that of `chunk` gradients.

    Returns:
        ``grads_of(params, batch, mask=None, key=None)``, where `mask` is (B,), 1 for real rows and
        0 for padding; or ``grads_of(params, data, indices=idx, count=n)``, which gathers the rows
        ``idx[:n]`` inside the chunk loop: n may be traced, and the number of chunks follows it, so
        that batches of any size (exact Poisson sampling) compile once. An index outside the data
        is padding; one that appears twice counts twice, which no accounting covers. A `key` is
        folded with each row's index in `batch` or `data`.

    Example:
        >>> loss = lambda w, x: jnp.sum(w * x)
        >>> data = jnp.array([[3.0, 4.0], [0.0, 2.0], [6.0, 8.0]])
        >>> per_example_grads(loss)(jnp.zeros(2), data).norms.tolist()
        [5.0, 2.0, 10.0]
        >>> drawn = per_example_grads(loss, chunk=2)(
        ...     jnp.zeros(2), data, indices=jnp.array([2, 0, 0]), count=1)
        >>> drawn.weighted_sum(jnp.ones(3)).tolist()
        [6.0, 8.0]
    """
    if engine not in _ENGINES:
        raise ValueError(f"engine = {engine!r}: {_checks.nearest(str(engine), _ENGINES)}")
    if chunk is not None:
        chunk = _checks.integer("chunk", chunk, at_least=1)

    def grads_of(
        params: Any,
        batch: Any,
        mask: Any = None,
        key: Any = None,
        *,
        indices: Any = None,
        count: Any = None,
    ) -> PerExampleGrads:
        _check_params(params)
        if indices is None:
            if count is not None:
                raise ValueError("count without indices: expected both, or mask= for a batch")
            rows = batch_rows(batch, mask, chunk)
        else:
            if mask is not None:
                raise ValueError("mask with indices: expected count= to say how many are real")
            rows = gathered_rows(batch, indices, count, chunk)
        _check_loss(loss_fn, params, rows, key)
        # Inside shard_map, gradients at parameters that all devices share would be summed over the
        # devices before clipping; each device differentiates its own copy instead.
        zero = varying_zero(rows)
        own = jax.tree.map(lambda leaf: varying(jnp.asarray(leaf), zero), params)
        return PerExampleGrads(
            lambda part: _ENGINES[engine](loss_fn, own, part, key), rows, _shapes(params)
        )

    return grads_of


def stacked_grads(grads: Any, mask: Any = None, params: Any = None) -> PerExampleGrads:
    """Takes a plain pytree of per-example gradients, with a leading axis, as a PerExampleGrads.

    Args:
        grads: pytree of arrays (B, ...).
        mask: (B,), 1 for real rows; None when all are.
        params: the parameters, if at hand: gradients that were already averaged are then told from
            per-example ones by their shapes.

    Example:
        >>> stacked_grads({"w": jnp.array([[3.0, 4.0], [1.0, 0.0]])}, mask=[1, 0]).norms.tolist()
        [5.0, 0.0]
    """
    size = leading_size("grads", grads)
    like = jax.tree.map(lambda g: jax.ShapeDtypeStruct(jnp.shape(g)[1:], jnp.result_type(g)), grads)
    if params is not None and _shapes_only(like) != _shapes_only(params):
        raise ValueError(
            f"grads has {size} rows shaped {_shapes_only(like)}: expected one gradient per example "
            f"in front of each parameter, shaped {_shapes_only(params)}"
        )
    _check_params(like)
    rows = batch_rows(grads, mask, None)
    return PerExampleGrads(
        lambda part: MaterialisedChunk(part.examples, None, part.real), rows, like
    )


def _kept_sum(chunk: ChunkGrads, norms: jax.Array, weights: jax.Array, index: GroupIndex) -> Any:
    finite = jnp.where(jnp.isfinite(weights), weights, 0)
    return chunk.weighted_sum(finite, norms, index)


def _real_sum(statistic: jax.Array, real: jax.Array) -> jax.Array:
    return jnp.sum(_zero_padding(statistic, real), axis=0)


def _zero_padding(tree: Any, real: jax.Array) -> Any:
    def masked(leaf: jax.Array) -> jax.Array:
        return jnp.where(real.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, 0)

    return jax.tree.map(masked, tree)


def _losses(chunk: ChunkGrads) -> jax.Array:
    if chunk.losses is None:
        raise TypeError("losses: a plain pytree of gradients has none; use per_example_grads")
    return chunk.losses


def _materialised(chunk: ChunkGrads) -> MaterialisedChunk:
    if not isinstance(chunk, MaterialisedChunk):
        raise TypeError(
            "this needs the per-example gradients themselves: expected engine='vmap' (or a plain "
            f"pytree of gradients), got {type(chunk).__name__}"
        )
    return chunk


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def _shapes_only(tree: Any) -> list[tuple[int, ...]]:
    return [tuple(jnp.shape(leaf)) for leaf in jax.tree.leaves(tree)]


def _check_params(params: Any) -> None:
    refuse_batch_stats(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            name = jax.tree_util.keystr(path)
            raise TypeError(f"params{name} has dtype {dtype}: expected a floating-point parameter")


def _check_loss(loss_fn: Callable[..., Any], params: Any, rows: Rows, key: Any) -> None:
    example = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x)[1:], jnp.result_type(x)), rows.data
    )
    extra = () if key is None else (key,)
    loss = jax.eval_shape(loss_fn, _shapes(params), example, *extra)
    if jnp.shape(loss) != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise ValueError(
            f"loss_fn returned {loss}: expected one floating-point number for ONE example"
        )
