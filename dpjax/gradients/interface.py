"""Per-example gradients as an opaque object: norms and weighted sums, however they are computed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.gradients.groups import GroupIndex, group_index
from dpjax.gradients.materialised import ChunkGrads, MaterialisedChunk
from dpjax.gradients.rows import Chunk, Rows
from dpjax.gradients.shards import varying
from dpjax.gradients.twofloat import TwoFloat, added, row_sum

__all__ = ["BatchSums", "PerExampleGrads"]


class BatchSums(NamedTuple):
    """Sums over the rows of a batch; private.

    Attributes:
        gradient: ``sum_i w_i g_i``, a pytree shaped like the parameters.
        statistic: ``sum_i s_i``.
        positions: the number of rows there was room for, padding included.
        rerounding: how far one more row can move the gradient's sum by rounding the others anew,
            in units of the longest ``w_i g_i``; 0 where that is below 1e-9.
    """

    gradient: TwoFloat
    statistic: TwoFloat
    positions: int
    rerounding: float

    @property
    def rounded(self) -> tuple[Any, Any]:
        """(gradient, statistic), each rounded to its dtype."""
        return self.gradient.hi, self.statistic.hi


class PerExampleGrads:
    """The gradients of a batch, one per example, without saying how they are held.

    Made inside the jitted step by `per_example_grads`, and no pytree: a gradient transformation in
    front of `privatize` would otherwise treat private data as gradients. Everything it returns is
    private until noise is added.

    Padded rows have norm 0 and add exactly zero to every sum. A real row whose gradient is not
    finite has norm +inf and counts as a zero gradient, whatever its weight.
    """

    def __init__(
        self,
        engine: Callable[[Chunk], ChunkGrads],
        rows: Rows,
        like: Any,
        zero: jax.Array | None = None,
    ) -> None:
        """Takes the engine's pass over one chunk, the rows, and a pytree shaped like the sum.

        `zero` differs by device as the engine's results do, inside `shard_map`.
        """
        self._engine = engine
        self._rows = rows
        self._like = like
        self._zero = zero
        # With one chunk, norms and sums share a single pass; with several, each call is a loop.
        self._whole = engine(rows.all()) if rows.single else None

    @property
    def like(self) -> Any:
        """The parameters' shapes and dtypes, as a pytree of `jax.ShapeDtypeStruct`."""
        return self._like

    @property
    def real(self) -> jax.Array:
        """(B,) bool, False for padding."""
        return self._rows.real_at(jnp.arange(self._rows.size))

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
        shape = (self._rows.size, len(index.names))
        weights = _checked_weights(weights, shape[:1] if groups is None else shape)
        columns = weights.reshape(shape)

        def body(chunk: ChunkGrads, start: Any) -> Any:
            position = jnp.minimum(start + jnp.arange(self._rows.chunk), self._rows.size - 1)
            return _kept_sum(chunk, chunk.norms(index), columns[position], index)

        return self._sum(body).hi

    def aggregate(
        self, fn: Callable[[jax.Array], tuple[jax.Array, Any]], groups: Any = None
    ) -> BatchSums:
        """Returns ``sum_i w_i g_i`` and ``sum_i s_i`` in one pass over the chunks.

        Padded rows are masked in both sums, here and not in `fn`; a row that is not finite adds
        nothing to the first and the statistic of norm +inf to the second.

        Args:
            fn: ``fn(norms) -> (weights, statistics)`` for the rows of one chunk: norms and weights
                are (k,), or (k, G) with groups; statistics is a pytree of arrays with k rows.
            groups: None, "per_leaf", or a params-prefix pytree of labels.

        Example:
            >>> import dpjax
            >>> grads_of = dpjax.per_example_grads(lambda w, x: w * x)
            >>> grads = grads_of(jnp.float32(0), jnp.array([1.0, 3.0]))
            >>> sums = grads.aggregate(lambda n: (1 / n, (n > 2.0).astype(jnp.float32)))
            >>> total, count = sums.rounded
            >>> float(total), float(count)
            (2.0, 1.0)
        """
        index = group_index(groups, self._like)
        figures: list[float] = []  # known when the engine has traced the loss

        def body(chunk: ChunkGrads, start: Any) -> Any:
            norms = chunk.norms(index)
            shown = jnp.where(chunk.real[:, None], norms, 0)
            shown = shown[:, 0] if groups is None else shown
            weights, statistics = fn(shown)
            weights = _checked_weights(weights, shown.shape).reshape(norms.shape)
            total = _kept_sum(chunk, norms, weights, index)
            leaves, treedef = jax.tree.flatten(statistics)
            sums = [row_sum(_zero_padding(leaf, chunk.real)) for leaf in leaves]
            halves = zip(*sums, strict=True) if sums else ((), ())
            figures.append(chunk.rerounding(self._rows.likely or self._rows.size))
            return TwoFloat(
                *((g, jax.tree.unflatten(treedef, s)) for g, s in zip(total, halves, strict=True))
            )

        (gradient, statistic), (gradient_low, statistic_low) = self._sum(body)
        return BatchSums(
            TwoFloat(gradient, gradient_low),
            TwoFloat(statistic, statistic_low),
            self._rows.size,
            max(figures),
        )

    def __contains__(self, name: object) -> bool:
        """Is False: Flax's TrainState asks gradients for a key of its own before it updates."""
        return False

    def map(self, fn: Callable[[Any], Any]) -> "PerExampleGrads":
        """Returns the gradients with `fn` applied to each; only if the engine holds them.

        `fn` takes and returns one example's gradient. Padding and rows that are not finite are
        masked after `fn`, so that they add zero whatever `fn` makes of them.
        """

        def mapped(rows: Chunk) -> ChunkGrads:
            chunk = self._engine(rows) if self._whole is None else self._whole
            return _materialised(chunk).map(fn)

        return PerExampleGrads(mapped, self._rows, self._like, self._zero)

    def _sum(self, body: Callable[[ChunkGrads, Any], TwoFloat]) -> TwoFloat:
        """Adds up `body` over the chunks."""
        if self._whole is not None:
            return body(self._whole, 0)

        def at(start: Any) -> TwoFloat:
            return body(self._engine(self._rows.take(start)), start)

        return self._loop(jax.eval_shape(at, 0), lambda start, total: added(total, at(start)))

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
        init = jax.tree.map(lambda s: varying(jnp.zeros(s.shape, s.dtype), self._zero), shapes)
        step = self._rows.chunk
        return jax.lax.fori_loop(0, self._rows.chunks, lambda i, c: body(i * step, c), init)


def _checked_weights(weights: Any, shape: tuple[int, ...]) -> jax.Array:
    weights = jnp.asarray(weights)
    if weights.shape != shape:
        raise ValueError(f"weights has shape {weights.shape}: expected {shape}")
    return weights


def _kept_sum(
    chunk: ChunkGrads, norms: jax.Array, weights: jax.Array, index: GroupIndex
) -> TwoFloat:
    finite = jnp.where(jnp.isfinite(weights), weights, 0)
    return chunk.weighted_sum(finite, norms, index)


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
