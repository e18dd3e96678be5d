"""Per-example gradients as an opaque object that offers norms and weighted sums."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from dpjax.devices import (
    Limits,
    as_automatic,
    as_explicit,
    automatic_axes,
    grid_sum,
    limb_sum,
    off_grid,
    one_limb,
    varying,
)
from dpjax.gradients.groups import GroupIndex, Groups, group_index
from dpjax.gradients.placement import refuse_flattening
from dpjax.gradients.rows import BatchRows, Chunk
from dpjax.gradients.vmap import ChunkGrads, MaterialisedChunk
from dpjax.sampling import Sampling
from dpjax.twofloat import TwoFloat, added, pair_sum, row_sum

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # its location in jax 0.8
    from jax.core import get_opaque_trace_state

__all__ = ["BatchSums", "DeferredPass", "PerExampleGrads"]

# Sending gradients between devices in 4 bytes per number costs extra noise. If it costs more than
# this fraction, they are sent in 8 bytes.
MOST_REROUNDED = 2.0**-5


class BatchSums(NamedTuple):
    """Sums over the rows of a batch; private.

    Attributes:
        gradient: ``sum_i w_i g_i``, a pytree shaped like the parameters.
        statistic: ``sum_i s_i``.
        positions: the number of rows including padding.
        rerounding: how far one more row can move the gradient's sum by changing how the others are
            rounded, in units of the longest ``w_i g_i``; 0 if that is below 1e-9.
    """

    gradient: TwoFloat
    statistic: TwoFloat
    positions: int
    rerounding: float

    @property
    def rounded(self) -> tuple[chex.ArrayTree, chex.ArrayTree]:
        """(gradient, statistic), each rounded to its dtype."""
        return self.gradient.hi, self.statistic.hi


# The pass over one chunk, which calls the engine.
Pass = Callable[[Chunk], ChunkGrads]
# ``(params, example[, key]) -> (loss, report)`` for one example; the report is kept for the user.
Loss = Callable[..., tuple[jax.Array, chex.ArrayTree]]


@dataclass(frozen=True)
class DeferredPass:
    """A loss whose gradients have not been computed yet.

    Args:
        loss: the loss of one example, which returns ``(loss, report)``.
        engine: the engine's name, as the user gave it.
        engines: all engines by name: ``engine(loss, params, chunk, key)``.
        params: the point at which gradients are taken.
        key: None, or the key that is folded with each row's number.
    """

    loss: Loss
    engine: str
    engines: Mapping[str, Callable[..., ChunkGrads]]
    params: chex.ArrayTree
    key: jax.Array | None

    def __call__(self, chunk: Chunk) -> ChunkGrads:
        """Runs the engine over a chunk."""
        return self.engines[self.engine](self.loss, self.params, chunk, self.key)


class PerExampleGrads:
    """The gradients of a batch, one per example; how they are stored is internal.

    `per_example_grads` makes this object inside the jitted step. Gradients are computed when it is
    used: by `privatize`, which may change the loss first, or by the properties below. For JAX it is
    a pytree that cannot be flattened: code that would map over it as if it were gradients raises an
    error that says to put `privatize` first.

    Padded rows have norm 0 and add exactly zero to every sum. A real row whose gradient is not
    finite has norm +inf and counts as a zero gradient, whatever its weight.

    Args:
        run: the pass over one chunk.
        rows: the rows of the batch.
        like: a pytree shaped like the sum.
        zero: inside `shard_map`, a zero that varies over the same devices as the engine's results.
        sampling: the sampling that drew the batch; None if unknown.
        mesh: a mesh with explicit axes, which the arrays given here see as automatic; None if there
            is no such mesh.

    Privacy:
        Everything it returns is private until noise is added: norms, losses, aux and sums.

    Example:
        >>> from dpjax.gradients import per_example_grads
        >>> grads = per_example_grads(lambda w, x: w @ x)(jnp.zeros(2), jnp.array([[3.0, 4.0]]))
        >>> round(float(grads.norms[0]), 3), grads.weighted_sum(jnp.array([0.5])).tolist()
        (5.0, [1.5, 2.0])
    """

    def __init__(
        self,
        run: Pass,
        rows: BatchRows,
        like: chex.ArrayTree,
        zero: jax.Array | None = None,
        sampling: Sampling | None = None,
        mesh: AbstractMesh | None = None,
    ) -> None:
        """Stores the arguments."""
        self._run = run
        self._rows = rows
        self._like = like
        self._zero = zero
        self._sampling = sampling
        self._mesh = mesh
        self._known: dict[str, tuple[object, chex.ArrayTree]] = {}
        self._reported = self._known

    @property
    def like(self) -> chex.ArrayTree:
        """The parameters' shapes and dtypes, as a pytree of `jax.ShapeDtypeStruct`."""
        return self._like

    @property
    def mesh(self) -> AbstractMesh | None:
        """The mesh with explicit axes, which `aggregate` treats as automatic; None if none."""
        return self._mesh

    @property
    def sampling(self) -> Sampling | None:
        """The sampling that drew the batch; None for a hand-fed batch."""
        return self._sampling

    @property
    def real(self) -> jax.Array:
        """(B,) bool, False for padding."""
        return self._evaluated(self._rows.real_rows)

    @property
    def losses(self) -> jax.Array:
        """(B,) losses; 0 for padding. After `tx.update` they cost nothing more."""
        return self._evaluated(self._report)[0]

    @property
    def aux(self) -> chex.ArrayTree:
        """The loss's auxiliary outputs, with a leading batch axis; see `has_aux`."""
        return self._evaluated(self._report)[1]

    @property
    def norms(self) -> jax.Array:
        """(B,) L2 norms of the whole gradients; +inf where not finite, 0 for padding."""
        return self.group_norms(None)[:, 0]

    @property
    def vectors(self) -> chex.ArrayTree:
        """The gradients as a pytree with a leading batch axis; only if the engine forms them."""
        return self._evaluated(lambda: self._stack(lambda chunk: _materialised(chunk).grads))

    @property
    def traced(self) -> bool:
        """Whether JAX is tracing the program that this belongs to."""
        program = self._run.params if isinstance(self._run, DeferredPass) else None
        leaves = jax.tree.leaves((self._rows.arrays, program))
        return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)

    def with_loss(self, change: Callable[[Loss], Loss]) -> "PerExampleGrads":
        """Returns the gradients of another loss on the same examples; losses and aux stay.

        Args:
            change: takes the loss of one example, ``(params, example[, key]) -> (loss, report)``,
                and returns one of the same signature.

        Raises:
            TypeError: if these are a plain pytree of gradients, which have no loss.
        """
        if not isinstance(self._run, DeferredPass):
            raise TypeError(
                "grads is a plain pytree: expected what dpjax.per_example_grads returned, since "
                "inner momentum takes gradients of a loss of its own"
            )
        return self._changed(replace(self._run, loss=change(self._run.loss)))

    def as_vectors(self, why: str) -> "PerExampleGrads":
        """Returns the same gradients, computed by the vmap engine.

        Args:
            why: who needs them, for the error message.

        Raises:
            ValueError: if the user asked for a ghost engine by name.
        """
        run = self._run
        if not isinstance(run, DeferredPass) or run.engine == "vmap":
            return self
        if run.engine != "auto":
            raise ValueError(
                f"engine = {run.engine!r} with {why}: expected 'vmap' or 'auto', since it needs "
                "the per-example gradients themselves"
            )
        return self._changed(replace(run, engine="vmap"))

    def group_norms(self, groups: Groups) -> jax.Array:
        """Returns (B, G) L2 norms by group; a row that is not finite is +inf in all groups.

        Args:
            groups: None, "per_leaf", or a params-prefix pytree of labels.
        """
        index = group_index(groups, self._like)
        return self._evaluated(lambda: self._stack(lambda chunk: chunk.norms(index)))

    def weighted_sum(self, weights: chex.Array, groups: Groups = None) -> chex.ArrayTree:
        """Returns ``sum_i w_i g_i``, a pytree shaped like the parameters, in float32 or wider.

        Args:
            weights: (B,), or (B, G) with groups.
            groups: None, "per_leaf", or a params-prefix pytree of labels.
        """
        index = group_index(groups, self._like)
        shape = (self._rows.size, len(index.names))
        weights = _checked_weights(weights, shape[:1] if groups is None else shape)
        weights = as_automatic(weights, self._mesh)
        with automatic_axes(self._mesh):
            columns = weights.reshape(shape)

        def body(chunk: ChunkGrads, start: chex.Numeric) -> tuple[TwoFloat, chex.ArrayTree]:
            inside = jnp.minimum(start + jnp.arange(self._rows.step), self._rows.length - 1)
            own = self._rows.of_shards(columns, inside)
            return _kept_sum(chunk, chunk.norms(index), own, index), ()

        def total() -> chex.ArrayTree:
            sums = self._sum(body)[0]
            return sums.hi if self._rows.shards.count == 1 else pair_sum(sums).hi

        return self._evaluated(total, self._like)

    def aggregate(
        self,
        fn: Callable[[jax.Array], tuple[jax.Array, chex.ArrayTree]],
        groups: Groups = None,
        limits: Limits | None = None,
    ) -> BatchSums:
        """Returns ``sum_i w_i g_i`` and ``sum_i s_i`` in one pass over the chunks.

        Padded rows are masked in both sums, so `fn` need not mask them. A row that is not finite
        adds nothing to the first sum, and the statistic of norm +inf to the second.

        Args:
            fn: ``fn(norms) -> (weights, statistics)`` for the rows of one chunk: norms and weights
                are (k,), or (k, G) with groups; statistics is a pytree of arrays with k rows. The
                norms are never below the true ones, so a bound on ``w_i n_i`` also bounds
                ``|w_i g_i|``.
            groups: None, "per_leaf", or a params-prefix pytree of labels.
            limits: public bounds on what one row adds to a coordinate of either sum. If the rows
                lie on several devices, the limits define a grid to which each device's sum is
                rounded, and the sums are added as integers. Without limits they are added in two
                floats, which moves more bytes.

        Example:
            >>> import dpjax
            >>> grads_of = dpjax.per_example_grads(lambda w, x: w * x)
            >>> grads = grads_of(jnp.float32(0), jnp.array([1.0, 3.0]))
            >>> sums = grads.aggregate(lambda n: (1 / n, (n > 2.0).astype(jnp.float32)))
            >>> total, count = sums.rounded
            >>> round(float(total), 4), float(count)
            (2.0, 1.0)
        """
        index = group_index(groups, self._like)
        figures: list[float] = []  # known when the engine has traced the loss

        def body(chunk: ChunkGrads, start: chex.Numeric) -> tuple[TwoFloat, chex.ArrayTree]:
            norms = chunk.norms(index)
            shown = jnp.where(chunk.real[:, None], norms, 0)
            shown = _never_too_short(shown[:, 0] if groups is None else shown)
            weights, statistics = fn(shown)
            weights = _checked_weights(weights, shown.shape).reshape(norms.shape)
            total = _kept_sum(chunk, norms, weights, index)
            leaves, treedef = jax.tree.flatten(statistics)
            sums_of = self._rows.shards.each(row_sum)
            sums = [sums_of(_zero_padding(leaf, chunk.real)) for leaf in leaves]
            halves = zip(*sums, strict=True) if sums else ((), ())
            figures.append(chunk.rerounding(self._rows.likely_batch))
            both = TwoFloat(
                *((g, jax.tree.unflatten(treedef, s)) for g, s in zip(total, halves, strict=True))
            )
            return both, _zero_padding(chunk.aux, chunk.real)

        with automatic_axes(self._mesh):
            sums, report = self._sum(body)
            if report:
                self._remember(self._reported, "report", report)
            total, off = self._over_shards(sums, limits)
        (gradient, statistic), (gradient_low, statistic_low) = total
        return BatchSums(
            TwoFloat(gradient, gradient_low),
            TwoFloat(statistic, statistic_low),
            self._rows.size,
            max(figures) + off,
        )

    def _over_shards(self, sums: TwoFloat, limits: Limits | None) -> tuple[TwoFloat, float]:
        """Returns the sums over all shards, and how much this adds to `rerounding`.

        Each device has summed its own rows over all chunks. Only here do devices exchange whole
        gradients.
        """
        rows, shards = self._rows, self._rows.shards.count
        if shards == 1:
            return sums, 0.0
        if limits is None:
            return pair_sum(sums), 0.0
        (gradient, statistic), (gradient_low, statistic_low) = sums
        coordinates = sum(leaf.size for leaf in jax.tree.leaves(gradient)) // shards
        # One more example shifts the rows behind it, so every device's sum may change, and in every
        # part of the batch.
        off = rows.parts * shards * one_limb(coordinates, rows.likely)
        of_gradient = TwoFloat(gradient, gradient_low)
        if off <= MOST_REROUNDED:
            total = grid_sum(of_gradient, rows.likely * limits.gradient, shards)
        else:
            most = jax.tree.map(lambda _: rows.size * limits.gradient, gradient)
            total = limb_sum(of_gradient, most, shards)
            off = rows.parts * rows.size * off_grid(coordinates, shards)
        most = jax.tree.map(lambda _: rows.size * limits.statistic, statistic)
        counted = limb_sum(TwoFloat(statistic, statistic_low), most, shards)
        both = zip(total, counted, strict=True)
        return TwoFloat(*both), off

    def __contains__(self, name: object) -> bool:
        """Returns False; Flax's TrainState checks gradients for a special key before it updates."""
        return False

    def map(self, fn: Callable[[chex.ArrayTree], chex.ArrayTree]) -> "PerExampleGrads":
        """Returns the gradients with `fn` applied to each; only if the engine forms them.

        `fn` takes and returns one example's gradient. Padding and rows that are not finite are
        masked after `fn`, so they add zero whatever `fn` returns for them.

        Args:
            fn: ``fn(gradient)`` of one example, a pytree shaped like the parameters.

        Raises:
            TypeError: when the result is used, if the engine does not form the gradients.
        """

        def mapped(rows: Chunk) -> ChunkGrads:
            return _materialised(self._run(rows)).map(fn)

        return self._changed(mapped)

    def _changed(self, run: Pass) -> "PerExampleGrads":
        """Returns gradients computed by another pass; losses and aux still reach this object."""
        made = PerExampleGrads(run, self._rows, self._like, self._zero, self._sampling, self._mesh)
        made._reported = self._reported
        return made

    def _evaluated(
        self, evaluate: Callable[[], chex.ArrayTree], like: chex.ArrayTree = None
    ) -> chex.ArrayTree:
        """Evaluates with automatic axes; results are sharded like `like`, or like the rows."""
        with automatic_axes(self._mesh):
            found = evaluate()
        if self._mesh is not None and like is None:
            rows = self._rows.shards.sharding
            like = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=rows), found
            )
        return as_explicit(found, self._mesh, like)

    def _remember(
        self, known: dict[str, tuple[object, chex.ArrayTree]], name: str, value: chex.ArrayTree
    ) -> None:
        known[name] = (get_opaque_trace_state(), value)

    def _recalled(
        self, known: dict[str, tuple[object, chex.ArrayTree]], name: str
    ) -> chex.ArrayTree:
        """Returns what was computed earlier in this trace; None if nothing was."""
        trace, value = known.get(name, (None, None))
        return value if trace == get_opaque_trace_state() else None

    def _whole(self) -> ChunkGrads | None:
        """Returns the only chunk, computed once for norms and sums; None if there are several."""
        if not self._rows.single:
            return None
        whole = self._recalled(self._known, "whole")
        if whole is None:
            whole = self._run(self._rows.all())
            self._remember(self._known, "whole", whole)
        return whole

    def _report(self) -> chex.ArrayTree:
        report = self._recalled(self._reported, "report")
        if report is None:
            report = self._stack(_report_of)
            self._remember(self._reported, "report", report)
        return report

    def _sum(
        self, body: Callable[[ChunkGrads, chex.Numeric], tuple[TwoFloat, chex.ArrayTree]]
    ) -> tuple[TwoFloat, chex.ArrayTree]:
        """Sums the first output of `body` over the chunks, and concatenates the second's rows."""
        if (whole := self._whole()) is not None:
            return body(whole, 0)

        def at(start: chex.Numeric) -> tuple[TwoFloat, chex.ArrayTree]:
            return body(self._run(self._rows.take(start)), start)

        sums, rows = jax.eval_shape(at, 0)

        def step(
            start: chex.Numeric, carry: tuple[TwoFloat, chex.ArrayTree]
        ) -> tuple[TwoFloat, chex.ArrayTree]:
            total, more = at(start)
            return added(carry[0], total), self._written(carry[1], more, start)

        total, laid_out = self._loop((sums, self._buffers(rows)), step)
        return total, self._in_order(laid_out)

    def _stack(self, body: Callable[[ChunkGrads], chex.ArrayTree]) -> chex.ArrayTree:
        """Concatenates the rows that `body` returns for each chunk; 0 for padding."""
        if (whole := self._whole()) is not None:
            return _zero_padding(body(whole), whole.real)

        def at(start: chex.Numeric) -> chex.ArrayTree:
            chunk = self._run(self._rows.take(start))
            return _zero_padding(body(chunk), chunk.real)

        buffers = self._buffers(jax.eval_shape(at, 0))
        laid_out = self._loop(buffers, lambda start, full: self._written(full, at(start), start))
        return self._in_order(laid_out)

    def _buffers(self, rows: chex.ArrayTree) -> chex.ArrayTree:
        shards, step = self._rows.shards.count, self._rows.step
        size = -(-self._rows.length // step) * step
        return jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((shards, size, *s.shape[1:]), s.dtype), rows
        )

    def _written(
        self, full: chex.ArrayTree, part: chex.ArrayTree, start: chex.Numeric
    ) -> chex.ArrayTree:
        """Returns the buffers with a chunk's rows written at `start` of each shard."""
        shape = (self._rows.shards.count, self._rows.step)
        return jax.tree.map(
            lambda f, p: jax.lax.dynamic_update_slice_in_dim(
                f, p.reshape(*shape, *p.shape[1:]), start, 1
            ),
            full,
            part,
        )

    def _in_order(self, buffers: chex.ArrayTree) -> chex.ArrayTree:
        length = self._rows.length
        return jax.tree.map(lambda full: full[:, :length].reshape(-1, *full.shape[2:]), buffers)

    def _loop(
        self, shapes: chex.ArrayTree, body: Callable[[chex.Numeric, chex.ArrayTree], chex.ArrayTree]
    ) -> chex.ArrayTree:
        """Runs ``carry = body(start, carry)`` over the chunks in use, starting from zeros."""
        init = jax.tree.map(lambda s: varying(jnp.zeros(s.shape, s.dtype), self._zero), shapes)
        step = self._rows.step
        return jax.lax.fori_loop(0, self._rows.chunks, lambda i, c: body(i * step, c), init)


def _checked_weights(weights: chex.ArrayTree, shape: tuple[int, ...]) -> jax.Array:
    weights = jnp.asarray(weights)
    if weights.shape != shape:
        raise ValueError(f"weights has shape {weights.shape}: expected {shape}")
    return weights


def _kept_sum(
    chunk: ChunkGrads, norms: jax.Array, weights: jax.Array, index: GroupIndex
) -> TwoFloat:
    finite = jnp.where(jnp.isfinite(weights), weights, 0)
    return chunk.weighted_sum(finite, norms, index)


def _zero_padding(tree: chex.ArrayTree, real: jax.Array) -> chex.ArrayTree:
    def masked(leaf: jax.Array) -> jax.Array:
        shape = (-1,) + (1,) * (leaf.ndim - 1)
        return jnp.where(real.reshape(shape), leaf, jnp.zeros_like(leaf))

    return jax.tree.map(masked, tree)


def _never_too_short(norms: jax.Array) -> jax.Array:
    """Returns norms that are at least the true ones.

    Where one large entry absorbs many small ones, a float32 norm can come out too small by a
    relative 1.8e-6, or 15 eps (the worst row that a search found). The clipped contribution would
    then be too long.
    """
    longer = norms * (1.0 + 32 * float(jnp.finfo(norms.dtype).eps))
    return jnp.where(jnp.isinf(longer), norms, longer)  # a finite norm stays finite


def _report_of(chunk: ChunkGrads) -> chex.ArrayTree:
    if isinstance(chunk.aux, tuple) and not chunk.aux:
        raise TypeError("a plain pytree of gradients has no losses: expected per_example_grads")
    return chunk.aux


def _materialised(chunk: ChunkGrads) -> MaterialisedChunk:
    if not isinstance(chunk, MaterialisedChunk):
        raise TypeError(
            "this needs the per-example gradients themselves: expected engine='vmap' (or a plain "
            f"pytree of gradients), got {type(chunk).__name__}"
        )
    return chunk


jax.tree_util.register_pytree_node(
    PerExampleGrads, refuse_flattening, lambda aux, children: refuse_flattening(aux)
)
