"""The ghost engines: norms and weighted sums of a chunk without its per-example gradients.

`ghost_engine` computes both from one backward pass, and keeps in memory what the sum needs.
`ghost_two_pass_engine` keeps only the norms, and passes over the examples again for the sum.
`auto_engine` compares the estimated cost with that of forming every gradient.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from dpjax.devices import Shards, mesh_of, varying_zero
from dpjax.gradients.ghost.backward import Pass, backward_pass, by_leaf, former
from dpjax.gradients.ghost.contractions import Given, Site, weighted_site_sum
from dpjax.gradients.ghost.norms import (
    Gram,
    Square,
    gram,
    gram_squares,
    is_large,
    lookup_norm,
    power_below,
    rounding,
    scaled_norms,
    scaled_site_norms,
)
from dpjax.gradients.ghost.planner import Block, blocks_of, cheaper_engine
from dpjax.gradients.ghost.trace import TracedLoss, analysed
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.jaxprs import aval_of, is_float, needed_inside, needed_values
from dpjax.gradients.norms import combined_norm, row_squares
from dpjax.gradients.platforms import Platform, by_platform
from dpjax.gradients.rows import Chunk, loss_arguments
from dpjax.gradients.vmap import ChunkGrads, LossFn, vmap_engine
from dpjax.twofloat import TwoFloat, accumulation_dtype

__all__ = [
    "GhostChunk",
    "Work",
    "auto_engine",
    "book_kept",
    "ghost_engine",
    "ghost_two_pass_engine",
]

# Maps the rows' weights and norms by group, and which rows to keep, to the sum for each leaf.
_Weighted = Callable[[jax.Array, jax.Array, jax.Array, GroupIndex], list[jax.Array]]
# Takes a function from an all-zero (k, leaves) mask to (k,) rows; returns those rows and their
# norms by leaf.
_Careful = Callable[[Callable[[jax.Array], jax.Array]], tuple[jax.Array, jax.Array]]

# Below this, squares of single entries may have underflowed.
_LEAST = 1e-20
# How much of a squared norm may be in doubt before it is computed again.
_MOST_DOUBTED = 2e-2
# How many rows are computed again together, on platforms where that is not one.
_AT_ONCE = 8
# Up to this many numbers, gradients of one size are copied together, to compile one program.
_SMALL = 4096


@dataclass(frozen=True)
class GhostChunk:
    """The examples of a chunk: the norm of every leaf, and how to compute the weighted sum.

    Attributes:
        aux: the auxiliary outputs, with a leading axis.
        real: (k,) bool, False for padding.
        squares: (k, leaves), the squared norms, and how much of them is in doubt.
        cancelling: whether the weighted sum adds an example's terms one by one, which may be longer
            than their sum; otherwise it adds whole gradients.
        shards: how the examples are split over devices.
    """

    aux: chex.ArrayTree
    real: jax.Array
    squares: Square
    cancelling: bool
    shards: Shards
    _careful: _Careful = field(repr=False)
    _weighted: _Weighted = field(repr=False)
    _treedef: chex.PyTreeDef = field(repr=False)

    def norms(self, groups: GroupIndex) -> jax.Array:
        """Returns (k, G) norms; a row that is not finite is +inf in all groups.

        If more than 2% of a group's squared norm is in doubt, or numbers may have overflowed or
        underflowed, the row's gradients are formed and its norms computed again from scaled
        numbers. The choice is made per row: if another row could change it, one example could move
        the contributions of all. The branch is for speed.
        """
        value, doubt = (_group_sums(part, groups) for part in self.squares)
        fast = jnp.sqrt(value)
        if len(self.real) == 0:
            return fast
        sure = (doubt <= _MOST_DOUBTED * value) & jnp.isfinite(value) & (value >= _LEAST)

        def needed(zero: jax.Array) -> jax.Array:
            """Returns the rows to compute again; `zero` marks the leaves known to be zero."""
            nothing = _group_sums((~zero).astype(value.dtype), groups) == 0
            return self.real & ~jnp.all(sure | nothing, axis=1)

        def careful() -> jax.Array:
            rows, lengths = self._careful(needed)
            again = _group_norms(lengths, groups).astype(fast.dtype)
            return jnp.where(rows[:, None], again, fast)

        norms = jax.lax.cond(jnp.all(sure | ~self.real[:, None]), lambda: fast, careful)
        return jnp.where(jnp.all(jnp.isfinite(norms), axis=1, keepdims=True), norms, jnp.inf)

    def weighted_sum(self, weights: jax.Array, norms: jax.Array, groups: GroupIndex) -> TwoFloat:
        """Returns ``sum_i weights[i, group] * g_i`` over the real rows whose norm is finite.

        If the chunk has several shards, returns one sum per shard, along a leading axis.
        """
        keep = self.real & jnp.isfinite(norms[:, 0])
        sums = self._weighted(jnp.where(keep[:, None], weights, 0), norms, keep, groups)
        total = jax.tree.unflatten(self._treedef, sums)
        return TwoFloat(total, jax.tree.map(jnp.zeros_like, total))

    def rerounding(self, rows: int) -> float:
        """Returns ``sqrt(rows) (2^-23 k + 2^-14 [cancelling])``: a measured figure, not a proof.

        A float32 product over the k rows of a shard, each of length 1, is off by about
        ``0.3 k^1.5 2^-24``, and errors of different chunks are independent; the first term is four
        times that. The second term is more than a search over rows that cancel within themselves
        found; their norms include an allowance for rounding, which keeps it small.
        """
        each = 2.0**-23 * (len(self.real) // self.shards.count) + (
            2.0**-14 if self.cancelling else 0.0
        )
        return math.sqrt(rows) * each


def ghost_engine(
    loss_fn: LossFn, params: chex.ArrayTree, chunk: Chunk, key: chex.PRNGKey | None
) -> GhostChunk:
    """Returns the chunk's norms and weighted sums without forming all its gradients.

    Args:
        loss_fn: ``loss_fn(params, example[, key]) -> (loss, aux)`` for one example.
        params: the point at which gradients are taken.
        chunk: the examples.
        key: None, or the key that is folded with each row's number.
    """
    return book_kept(Work.begun(loss_fn, params, chunk, key))


def ghost_two_pass_engine(
    loss_fn: LossFn, params: chex.ArrayTree, chunk: Chunk, key: chex.PRNGKey | None
) -> GhostChunk:
    """Returns the chunk's norms and weighted sums, keeping only the norms in between.

    This needs the least memory, but a second pass over the examples for the weighted sum.

    Args:
        loss_fn: ``loss_fn(params, example[, key]) -> (loss, aux)`` for one example.
        params: the point at which gradients are taken.
        chunk: the examples.
        key: None, or the key that is folded with each row's number.
    """
    return _unkept(Work.begun(loss_fn, params, chunk, key))


def auto_engine(
    loss_fn: LossFn, params: chex.ArrayTree, chunk: Chunk, key: chex.PRNGKey | None
) -> ChunkGrads:
    """Runs the ghost engine or the vmap engine, whichever is estimated to cost less.

    `explain` shows which one, and why.

    Args:
        loss_fn: ``loss_fn(params, example[, key]) -> (loss, aux)`` for one example.
        params: the point at which gradients are taken.
        chunk: the examples.
        key: None, or the key that is folded with each row's number.
    """
    data = loss_arguments(chunk, key)
    ghost = cheaper_engine(blocks_of(_program_of(loss_fn, params, data))) == "ghost"
    return (ghost_engine if ghost else vmap_engine)(loss_fn, params, chunk, key)


@dataclass(frozen=True)
class Work:
    """One pass over the examples of a chunk, and the blocks of the plan."""

    program: TracedLoss
    blocks: list[Block]
    leaves: list[jax.Array]
    treedef: chex.PyTreeDef
    data: tuple[chex.ArrayTree, ...]
    real: jax.Array
    shards: Shards
    passed: Pass

    @classmethod
    def begun(
        cls, loss_fn: LossFn, params: chex.ArrayTree, chunk: Chunk, key: chex.PRNGKey | None
    ) -> "Work":
        """Traces the loss and passes over the examples."""
        data = loss_arguments(chunk, key)
        program = _program_of(loss_fn, params, data)
        leaves, treedef = jax.tree.flatten(params)
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        passed = chunk.shards.pinned(
            backward_pass(program, leaves, data, varying_zero(data, leaves))
        )
        blocks = blocks_of(program)
        return cls(program, blocks, leaves, treedef, data, chunk.real, chunk.shards, passed)

    def again(self, data: tuple[chex.ArrayTree, ...]) -> "Work":
        """Passes over other examples."""
        passed = self.shards.pinned(
            backward_pass(self.program, self.leaves, data, varying_zero(data, self.leaves))
        )
        return replace(self, data=data, passed=passed)

    def given(self, block: Block) -> list[Given]:
        """Returns what the pass returned at each site of a block."""
        numbers = [site.meeting.number for site in block.sites]
        return [Given(self.passed.kept[i], self.passed.cotangents[i]) for i in numbers]

    def chunk_of(
        self,
        squares: Square,
        careful: _Careful,
        weighted: _Weighted,
        unformed: Sequence[Block],
    ) -> GhostChunk:
        """Returns the chunk.

        Args:
            squares: the squared norms of all leaves.
            careful: computes the norms of chosen rows again.
            weighted: computes the weighted sum.
            unformed: the blocks summed without forming gradients.
        """
        cancelling = any(map(_several_terms, unformed))
        return GhostChunk(
            self.passed.aux,
            self.real,
            squares,
            cancelling,
            self.shards,
            careful,
            weighted,
            self.treedef,
        )

    def columns(self, leaves: Sequence[int], parts: Sequence[jax.Array]) -> jax.Array:
        """Returns (k, leaves) for all leaves, from arrays (k, n) of some; zero for the others.

        Args:
            leaves: the leaf of each column of the arrays, one array after another.
            parts: the arrays.
        """
        losses = self.passed.losses
        zero = jnp.zeros_like(losses, accumulation_dtype(losses), shape=(len(losses), 1))
        places = {leaf: i for i, leaf in enumerate(leaves, 1)}
        order = np.array([places.get(i, 0) for i in range(len(self.leaves))], np.int32)
        return jnp.concatenate([zero, *parts], axis=1)[:, order]

    def every_leaf(self, sums: dict[int, jax.Array]) -> list[jax.Array]:
        """Returns the sums of all leaves; zero for one that meets no data."""
        parts = () if self.shards.count == 1 else (self.shards.count,)
        return [
            sums[i]
            if i in sums
            else jnp.zeros_like(leaf, accumulation_dtype(leaf), shape=(*parts, *leaf.shape))
            for i, leaf in enumerate(self.leaves)
        ]


def book_kept(work: Work) -> GhostChunk:
    """Returns the chunk of one pass: norms, and what weighted sums need."""
    squares, kept = by_platform(partial(_measured, work, True))
    unformed = [block for block in work.blocks if block.method != "form"]
    return work.chunk_of(
        squares, partial(_careful_norms, work, kept), _kept_sums(work, kept), unformed
    )


def _measured(work: Work, keep: bool, platform: Platform) -> tuple[Square, dict[int, jax.Array]]:
    """Returns the squared norms of all leaves, and the gradients that are kept.

    On a CPU, large products are computed one example at a time, all blocks in one loop: what blocks
    have in common is computed once, and there is only one loop to compile.

    Args:
        work: the pass.
        keep: whether gradients that were formed are returned.
        platform: where it runs.
    """
    large = [block for block in work.blocks if any(map(is_large, block.sites))]
    large = large if platform.serial else []
    small = [block for block in work.blocks if block not in large]
    squares: list[Square] = []
    leaves: list[int] = []
    kept: dict[int, jax.Array] = {}
    for blocks, over in ((small, jax.vmap), (large, lambda fn: partial(work.shards.mapped, fn))):
        if not blocks:
            continue
        given = [work.given(block) for block in blocks]
        if platform.serial:
            # Otherwise the compiler multiplies the pass's results in whatever layout they have,
            # some of them as plain nested loops.
            given = jax.lax.optimization_barrier(given)
        found, formed = over(partial(_measured_row, platform, work, blocks, keep))(given)
        kept.update(formed)
        squares += found
        leaves += [i for b in blocks if b.method == "gram" for i in b.leaves]
        leaves += [i for b in blocks if b.method != "gram" for i in b.leaves if i not in formed]
    if kept:
        square = _by_array(_squares, list(kept.values()))
        squares.append(Square(square, jnp.zeros_like(square)))
        leaves += kept
    parts = [list(part) for part in zip(*squares, strict=True)] or [[], []]
    value, doubt = (work.columns(leaves, part) for part in parts)
    return Square(value, doubt), kept


def _by_array(fn: Callable[[jax.Array], jax.Array], arrays: Sequence[jax.Array]) -> jax.Array:
    """Returns (k, n), a number for each row of n arrays.

    Args:
        fn: maps (k, m, ...) to (k, m); small arrays of one size are stacked into one call.
        arrays: each with a leading axis of rows.
    """
    alike: dict[Hashable, list[int]] = {}
    for i, x in enumerate(arrays):
        size = math.prod(x.shape[1:])
        alone = mesh_of(x) is not None or size > _SMALL
        alike.setdefault(i if alone else (size, x.dtype), []).append(i)
    columns = []
    for mine in alike.values():
        x = arrays[mine[0]][:, None]
        if mesh_of(x) is None:  # on a mesh, its axes may be split over devices
            flat = (len(x), math.prod(x.shape[1:]))
            x = jnp.stack([arrays[i].reshape(flat) for i in mine], axis=1)
        columns.append(fn(x))
    order = np.argsort([i for mine in alike.values() for i in mine])
    return jnp.concatenate(columns, axis=1)[:, order]


def _squares(x: jax.Array) -> jax.Array:
    return jnp.sum(x * x, axis=tuple(range(2, x.ndim)))


def _largest(x: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(x), axis=tuple(range(2, x.ndim)), initial=0.0)


def _scaled_lengths(x: jax.Array) -> jax.Array:
    power = power_below(_largest(x))
    norms = jnp.sqrt(_squares(x / power.reshape(power.shape + (1,) * (x.ndim - 2)))) * power
    return jnp.where(jnp.isnan(norms), jnp.inf, norms)


def _measured_row(
    platform: Platform,
    work: Work,
    blocks: Sequence[Block],
    keep: bool,
    given: Sequence[Sequence[Given]],
) -> tuple[list[Square], dict[int, jax.Array]]:
    """Returns one example's squares, those from inner products first, and its kept gradients."""
    inner: list[tuple[Block, Gram]] = []
    norms: list[jax.Array] = []
    kept: dict[int, jax.Array] = {}
    for block, own in zip(blocks, given, strict=True):
        if block.method == "gram":
            inner.append((block, gram(platform, block.sites[0], own[0])))
        elif block.method == "rows":
            norms.append(lookup_norm(block.sites[0], own[0]))
        elif keep:
            formed = former(platform, block, work.leaves)(own)
            kept.update(zip(block.leaves, formed, strict=True))
        else:
            off = _off(platform, block, own)
            formed = former(platform, block, work.leaves)(_as_summed(platform, block, own))
            norms += [jnp.sqrt(row_squares(x[None])[0]) + off for x in formed]
    squares = []
    if inner:
        sites = [block.sites[0] for block, _ in inner]
        squares.append(gram_squares(platform, sites, [found for _, found in inner]))
    if norms:
        square = jnp.square(jnp.stack(norms))
        squares.append(Square(square, jnp.zeros_like(square)))
    return squares, kept


def _as_summed(platform: Platform, block: Block, given: Sequence[Given]) -> Sequence[Given]:
    """Returns the operands as the weighted sum rounds them, if it is computed at the site."""
    if not _summed_at_site(block) or block.method == "rows":
        return given
    return [block.sites[0].rounded(platform, given[0])]


def _careful_norms(
    work: Work, kept: dict[int, jax.Array], needed: Callable[[jax.Array], jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns which rows were computed again, and their norms by leaf from scaled numbers.

    For gradients that were kept, the norms of all rows are computed. For the others, a few rows of
    every shard at a time are gathered, until none are left.

    Args:
        work: the pass.
        kept: the gradients that it kept.
        needed: maps the (k, leaves) mask of zero leaves to the rows that are needed.
    """
    blocks = [block for block in work.blocks if block.leaves[0] not in kept]
    givens = [work.given(block) for block in blocks]
    met = {leaf for block in work.blocks for leaf in block.leaves}
    unmet = [leaf for leaf in range(len(work.leaves)) if leaf not in met]
    # A zero factor makes the gradient zero, unless the other factor is not finite: then the squared
    # norm is not finite either.
    factors = {
        block.leaves[0]: given[0].cotangents[0]
        for block, given in zip(blocks, givens, strict=True)
        if block.direct and block.sites[0].has_formula
    }
    ones = jnp.ones_like(work.real, shape=(len(work.real), len(unmet)))
    zeros = [_by_array(_largest, list(part.values())) == 0 for part in (kept, factors) if part]
    rows = needed(work.columns([*kept, *factors, *unmet], [*zeros, ones]) > 0)
    lengths = [_by_array(_scaled_lengths, list(kept.values()))] if kept else []
    if not blocks:
        return rows, work.columns(list(kept), lengths)
    leaves = [leaf for block in blocks for leaf in block.leaves]

    def looked_at(platform: Platform) -> jax.Array:
        shards = work.shards
        at_once = 1 if platform.serial else min(_AT_ONCE, len(rows) // shards.count)
        one = partial(_careful_row, platform, work, blocks)

        def first(left: jax.Array) -> jax.Array:
            places = left.astype(jnp.int32)
            return jnp.argmax(places)[None] if at_once == 1 else jax.lax.top_k(places, at_once)[1]

        def taken(tree: chex.ArrayTree, places: jax.Array) -> chex.ArrayTree:
            if at_once > 1:
                return jax.tree.map(lambda x: x.at[places].get(mode="promise_in_bounds"), tree)
            return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, places[0], 1), tree)

        def more(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            left, lengths = state
            chosen = shards.of_rows(first, left)
            own = shards.of_rows(taken, givens, chosen)
            if len(chosen) == 1:
                found = one(jax.tree.map(lambda x: x[0], own))[None]
            else:
                found = jax.vmap(one)(own)
            written = lambda x, places, new: x.at[places].set(new)  # noqa: E731
            seen = jnp.zeros_like(left, shape=chosen.shape)
            return (
                shards.of_rows(written, left, chosen, seen),
                shards.of_rows(written, lengths, chosen, found.astype(lengths.dtype)),
            )

        losses = work.passed.losses
        none = jnp.zeros_like(losses, accumulation_dtype(losses), shape=(len(rows), len(leaves)))
        return jax.lax.while_loop(lambda state: jnp.any(state[0]), more, (rows, none))[1]

    return rows, work.columns([*kept, *leaves], [*lengths, by_platform(looked_at)])


def _careful_row(
    platform: Platform, work: Work, blocks: Sequence[Block], given: Sequence[Sequence[Given]]
) -> jax.Array:
    """Returns one example's norms of the blocks' leaves, one after another."""
    gradients: dict[int, jax.Array] = {}
    lookups: dict[int, jax.Array] = {}
    sites: dict[int, tuple[Site, Given]] = {}
    for block, own in zip(blocks, given, strict=True):
        if block.method == "rows":
            lookups[block.leaves[0]] = lookup_norm(block.sites[0], own[0])
        elif _summed_at_site(block):
            sites[block.leaves[0]] = (block.sites[0], own[0])
        else:
            formed = former(platform, block, work.leaves)(own)
            gradients.update(zip(block.leaves, formed, strict=True))
    parts = []
    if gradients:
        parts.append(scaled_norms(list(gradients.values())))
    if lookups:
        parts.append(jnp.stack(list(lookups.values())))
    if sites:
        parts.append(scaled_site_norms(platform, *zip(*sites.values(), strict=True)))
    places = {leaf: i for i, leaf in enumerate([*gradients, *lookups, *sites])}
    order = np.array([places[leaf] for block in blocks for leaf in block.leaves])
    return jnp.concatenate(parts)[order]


def _kept_sums(work: Work, kept: dict[int, jax.Array]) -> _Weighted:
    """Returns the weighted sums, from kept gradients or from factors."""
    direct = {block.leaves[0]: block.sites[0].node for block in work.blocks if block.direct}
    unformed = {block.leaves[0]: block for block in work.blocks if block.method != "form"}
    factors = {i: work.given(block)[0] for i, block in unformed.items()}

    def weighted(
        weights: jax.Array, norms: jax.Array, keep: jax.Array, groups: GroupIndex
    ) -> list[jax.Array]:
        def summed(platform: Platform) -> dict[int, jax.Array]:
            def of_shard(
                weights: jax.Array, rows: tuple[dict[int, jax.Array], dict[int, Given]]
            ) -> dict[int, jax.Array]:
                formed, given = rows
                found = {
                    i: _weighted_rows(platform, weights[:, groups.of_leaf[i]], x)
                    for i, x in formed.items()
                }
                for i, block in unformed.items():
                    column = weights[:, groups.of_leaf[i]]
                    found[i] = weighted_site_sum(platform, block.sites[0], given[i], column)
                for i, node in direct.items():
                    found[i] = by_leaf(node, found[i], work.leaves[i])
                return found

            sums = partial(work.shards.each(of_shard), weights)
            return _over_clean_rows(platform, sums, (kept, factors), keep, norms)

        return work.every_leaf(by_platform(summed))

    return weighted


def _over_clean_rows(
    platform: Platform,
    fn: Callable[[chex.ArrayTree], chex.ArrayTree],
    rows: chex.ArrayTree,
    keep: jax.Array,
    norms: jax.Array,
) -> chex.ArrayTree:
    """Returns ``fn(rows)`` with rows that are not finite replaced by zeros.

    On a CPU a masked copy of all rows is expensive, so it is made only if some row is not finite.
    Elsewhere the mask is fused into reading the rows, and a branch costs more.

    Args:
        platform: where it runs.
        fn: a sum over rows in which rows that are not kept have weight 0.
        rows: pytree of arrays with a leading axis.
        keep: (k,) bool, the rows that are real and finite.
        norms: the norms of all rows, padding included.
    """

    def masked(leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.where(keep.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, 0)

    if not platform.serial:
        return fn(jax.tree.map(masked, rows))

    # A loop of at most one turn, not a branch: a branch would copy the rows, or compile `fn` twice.
    def mask(state: tuple[jax.Array, chex.ArrayTree]) -> tuple[jax.Array, chex.ArrayTree]:
        dirty, rows = state
        return ~dirty, jax.tree.map(masked, rows)

    dirty = ~jnp.all(jnp.isfinite(norms))
    _, clean = jax.lax.while_loop(lambda state: state[0], mask, (dirty, rows))
    return fn(clean)


def _unkept(work: Work) -> GhostChunk:
    """Returns the chunk of one pass that keeps only the norms."""
    squares, _ = by_platform(partial(_measured, work, False))
    unformed = [block for block in work.blocks if _summed_at_site(block)]
    return work.chunk_of(squares, partial(_careful_norms, work, {}), _second_pass(work), unformed)


def _off(platform: Platform, block: Block, given: Sequence[Given]) -> jax.Array:
    """Returns the rounding of a weighted sum that is not taken over formed gradients."""
    if not _summed_at_site(block):
        return jnp.zeros(())
    return rounding(platform, block.sites[0], given[0])


def _summed_at_site(block: Block) -> bool:
    return block.method == "rows" or (block.direct and block.sites[0].product is not None)


def _second_pass(work: Work) -> _Weighted:
    def weighted(
        weights: jax.Array, norms: jax.Array, keep: jax.Array, groups: GroupIndex
    ) -> list[jax.Array]:
        # A row that is not kept may hold values that turn its zero weight into NaN, so a kept row
        # takes its place. If none is kept, the sum is zero by definition. The barrier keeps the
        # compiler from noticing that both passes compute the same, and storing it.
        if len(keep) == 0:
            return work.every_leaf({})
        data, _ = jax.lax.optimization_barrier((work.data, norms))
        again = work.again(work.shards.of_rows(_replaced, data, keep))
        if _rounds_to_half(work.program.level.jaxpr, work.program.level.needed):
            # The compiler may round this pass in other places than the first, and a number rounded
            # the other way is off by 2^-8; but no row may be longer than its norm says.
            second = _unkept(again).norms(groups)
            weights = weights * jnp.where(second > norms, norms / second, 1)

        def summed(platform: Platform) -> dict[int, jax.Array]:
            found: dict[int, jax.Array] = {}
            for block in again.blocks:
                columns = [weights[:, groups.of_leaf[i]] for i in block.leaves]
                sums = _sums(platform, again, block, columns, keep)
                found.update(zip(block.leaves, sums, strict=True))
            return found

        return work.every_leaf(by_platform(summed))

    return weighted


def _rounds_to_half(jaxpr: core.Jaxpr, needed: Sequence[bool]) -> bool:
    """Returns whether needed results of a program depend on values in half precision."""

    def half(var: core.Var) -> bool:
        return is_float(var.aval) and jnp.finfo(aval_of(var).dtype).bits < 32

    values = needed_values(jaxpr, needed)
    if any(map(half, values - set(jaxpr.constvars))):
        return True
    uses = [(eqn, [var in values for var in eqn.outvars]) for eqn in jaxpr.eqns]
    inner = [each for eqn, used in uses if any(used) for each in needed_inside(eqn, used)]
    return any(_rounds_to_half(*each) for each in inner)


def _sums(
    platform: Platform, work: Work, block: Block, weights: list[jax.Array], keep: jax.Array
) -> list[jax.Array]:
    given = work.given(block)
    site, node = block.sites[0], block.sites[0].node
    rows: Any = given[0]  # of a site, or the formed gradients of each leaf
    if not _summed_at_site(block):
        form = former(platform, block, work.leaves)
        serial = platform.serial and any(map(is_large, block.sites))
        rows = work.shards.mapped(form, given) if serial else jax.vmap(form)(given)

    def of_shard(weights: list[jax.Array], rows: Any, keep: jax.Array) -> list[jax.Array]:
        if _summed_at_site(block):
            sums = [weighted_site_sum(platform, site, rows, weights[0])]
        else:
            sums = [
                _weighted_rows(platform, column, own)
                for column, own in zip(weights, rows, strict=True)
            ]
        if block.direct or _summed_at_site(block):
            sums = [by_leaf(node, sums[0], work.leaves[block.leaves[0]])]
        return [jnp.where(jnp.any(keep), total, 0) for total in sums]

    return work.shards.each(of_shard)(weights, rows, keep)


def _replaced(data: chex.ArrayTree, keep: jax.Array) -> chex.ArrayTree:
    """Returns the rows of a shard, with a kept row in place of each row that is not kept."""
    good = jnp.argmax(keep)

    def one(leaf: jax.Array) -> jax.Array:
        return jnp.where(keep.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, leaf[good])

    return jax.tree.map(one, data)


def _several_terms(block: Block) -> bool:
    site = block.sites[0]
    return site.product is None or site.sizes[1] > 1


def _group_norms(leaf_norms: jax.Array, groups: GroupIndex) -> jax.Array:
    """Returns (k, G) norms from (k, leaves); a row that is not finite is +inf in all groups."""
    members = [
        [i for i, group in enumerate(groups.of_leaf) if group == j]
        for j in range(len(groups.names))
    ]
    columns = [combined_norm(leaf_norms[:, jnp.array(mine)]) for mine in members]
    norms = jnp.stack(columns, axis=-1)
    return jnp.where(jnp.all(jnp.isfinite(norms), axis=1, keepdims=True), norms, jnp.inf)


def _group_sums(values: jax.Array, groups: GroupIndex) -> jax.Array:
    """Returns (k, G) sums over the leaves of each group, from (k, leaves)."""
    member = np.zeros((values.shape[1], len(groups.names)), bool)
    member[np.arange(values.shape[1]), list(groups.of_leaf)] = True
    # Not a matrix product: zero times a leaf that is not finite would be NaN in other groups.
    return jnp.sum(jnp.where(member, values[:, :, None], 0), axis=1)


def _weighted_rows(platform: Platform, weights: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns ``sum_i weights[i] rows[i]`` in float32 or wider."""
    wide = accumulation_dtype(rows)
    weights, rows = weights.astype(wide), rows.astype(wide)
    if platform.serial:
        return jnp.tensordot(weights, rows, axes=1)
    # A matrix product would round its factors.
    return jnp.sum(weights.reshape((-1,) + (1,) * (rows.ndim - 1)) * rows, axis=0)


def _program_of(
    loss_fn: LossFn, params: chex.ArrayTree, data: tuple[chex.ArrayTree, ...]
) -> TracedLoss:
    """Returns the program of a loss, from data with a leading axis of examples."""

    def first(leaf: chex.Array) -> jax.Array:
        # From a real example, since its type may say over which devices it varies.
        leaf = jnp.asarray(leaf)
        return leaf[0] if len(leaf) else jnp.zeros(leaf.shape[1:], leaf.dtype)

    return analysed(loss_fn, params, *jax.tree.map(first, data))
