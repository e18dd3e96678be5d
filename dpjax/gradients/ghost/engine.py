"""The ghost engines: norms and weighted sums of a chunk without its per-example gradients.

`ghost_engine` takes both from one backward pass, and keeps what the sum is made of in between.
`ghost_two_pass_engine` keeps the norms alone, and passes over the examples again for the sum.
`auto_engine` compares the estimated cost with that of forming every gradient.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from dpjax.devices import varying_zero
from dpjax.gradients.ghost.backward import Pass, backward_pass, by_leaf, former
from dpjax.gradients.ghost.contractions import Given, weighted_site_sum
from dpjax.gradients.ghost.norms import (
    Square,
    gram_square,
    is_large,
    lookup_norm,
    rounding,
    scaled,
    scaled_norm,
    unscaled,
)
from dpjax.gradients.ghost.planner import Block, blocks_of, cheaper_engine
from dpjax.gradients.ghost.trace import Program, analysed
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.jaxprs import is_differentiable, is_float, needed_inside, needed_values
from dpjax.gradients.norms import combined_norm, row_squares
from dpjax.gradients.platforms import Platform, by_platform
from dpjax.gradients.rows import Chunk, loss_arguments
from dpjax.gradients.vmap import ChunkGrads, LossFn, over_clean_rows, vmap_engine
from dpjax.spmd import Shards
from dpjax.twofloat import TwoFloat, accumulation_dtype

__all__ = [
    "GhostChunk",
    "Work",
    "auto_engine",
    "book_kept",
    "ghost_engine",
    "ghost_two_pass_engine",
]

# From the weights and norms of rows by group, and which rows to keep, to the sum for each leaf.
_Weighted = Callable[[jax.Array, jax.Array, jax.Array, GroupIndex], list[jax.Array]]
# From (k, leaves) that are zero to (k,) rows; to those rows, and their norms by leaf.
_Careful = Callable[[Callable[[jax.Array], jax.Array]], tuple[jax.Array, jax.Array]]

# Below this, squares of single entries may have vanished.
_LEAST = 1e-20
# How much of a squared norm may be in doubt before it is looked at again.
_MOST_DOUBTED = 2e-2
# How many rows are looked at again together.
_AT_ONCE = 8


@dataclass(frozen=True)
class GhostChunk:
    """The examples of a chunk: the norm of every leaf, and how to compute the weighted sum.

    Attributes:
        aux: the auxiliary outputs, with a leading axis.
        real: (k,) bool, False for padding.
        squares: (k, leaves), the squared norms, and how much of them is in doubt.
        cancelling: whether terms of one example, longer than their sum, are added in the weighted
            sum; otherwise it adds whole gradients.
        shards: how the examples lie on devices.
    """

    aux: Any
    real: jax.Array
    squares: Square
    cancelling: bool
    shards: Shards
    _careful: _Careful = field(repr=False)
    _weighted: _Weighted = field(repr=False)
    _treedef: Any = field(repr=False)

    def norms(self, groups: GroupIndex) -> jax.Array:
        """Returns (k, G) norms; a row that is not finite is +inf in all groups.

        Where the doubt is more than 2% of a group's squared norm, or numbers may have overflowed or
        vanished, the row's norms are computed again from scaled numbers, by forming its gradients.
        The choice is made per row: if another row could change it, one example would move the
        contributions of all. The branch is for speed.
        """
        value, doubt = (_group_sums(part, groups) for part in self.squares)
        fast = jnp.sqrt(value)
        if len(self.real) == 0:
            return fast
        sure = (doubt <= _MOST_DOUBTED * value) & jnp.isfinite(value) & (value >= _LEAST)

        def needed(zero: jax.Array) -> jax.Array:
            """Returns the rows to look at again, from (k, leaves) that are known to be zero."""
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

        If the rows of the chunk lie in several shards, the sum over each, along a leading axis.
        """
        keep = self.real & jnp.isfinite(norms[:, 0])
        sums = self._weighted(jnp.where(keep[:, None], weights, 0), norms, keep, groups)
        total = jax.tree.unflatten(self._treedef, sums)
        return TwoFloat(total, jax.tree.map(jnp.zeros_like, total))

    def rerounding(self, rows: int) -> float:
        """Returns ``sqrt(rows) (2^-23 k + 2^-14 [cancelling])``: a measured figure, not a proof.

        A float32 product over k rows of length 1, those of a shard, is off by about
        ``0.3 k^1.5 2^-24``, errors of different chunks are independent, and the first term is four
        times that. The second is more than a search over rows that cancel within themselves found;
        their norms, which include an allowance for rounding, keep it small.
        """
        each = 2.0**-23 * (len(self.real) // self.shards.count) + (
            2.0**-14 if self.cancelling else 0.0
        )
        return math.sqrt(rows) * each


def ghost_engine(loss_fn: LossFn, params: Any, chunk: Chunk, key: Any) -> GhostChunk:
    """Returns the chunk's norms and weighted sums without holding its gradients.

    Args:
        loss_fn: ``loss_fn(params, example) -> (loss, aux)`` of one example, or with a key.
        params: where the gradients are taken.
        chunk: the examples.
        key: None, or the key that is folded with each row's index.
    """
    return book_kept(Work.begun(loss_fn, params, chunk, key))


def ghost_two_pass_engine(loss_fn: LossFn, params: Any, chunk: Chunk, key: Any) -> GhostChunk:
    """Returns the chunk's norms and weighted sums, keeping nothing but the norms in between.

    This needs the least memory, and a second pass over the examples for the weighted sum.

    Args:
        loss_fn: ``loss_fn(params, example) -> (loss, aux)`` of one example, or with a key.
        params: where the gradients are taken.
        chunk: the examples.
        key: None, or the key that is folded with each row's index.
    """
    return _unkept(Work.begun(loss_fn, params, chunk, key))


def auto_engine(loss_fn: LossFn, params: Any, chunk: Chunk, key: Any) -> ChunkGrads:
    """Runs the ghost engine or the vmap engine, whichever is estimated to cost less.

    `explain` says which it is, and why.

    Args:
        loss_fn: ``loss_fn(params, example) -> (loss, aux)`` of one example, or with a key.
        params: where the gradients are taken.
        chunk: the examples.
        key: None, or the key that is folded with each row's index.
    """
    data = loss_arguments(chunk, key)
    ghost = cheaper_engine(blocks_of(_program_of(loss_fn, params, data))) == "ghost"
    return (ghost_engine if ghost else vmap_engine)(loss_fn, params, chunk, key)


@dataclass(frozen=True)
class Work:
    """One pass over the examples of a chunk, and the blocks it is looked at in."""

    program: Program
    blocks: list[Block]
    leaves: list[jax.Array]
    treedef: Any
    data: Any
    real: jax.Array
    shards: Shards
    passed: Pass

    @classmethod
    def begun(cls, loss_fn: LossFn, params: Any, chunk: Chunk, key: Any) -> "Work":
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

    def again(self, data: Any) -> "Work":
        """Passes over other examples."""
        passed = self.shards.pinned(
            backward_pass(self.program, self.leaves, data, varying_zero(data, self.leaves))
        )
        return replace(self, data=data, passed=passed)

    def given(self, block: Block) -> list[Given]:
        """Returns what the pass left at each site of a block."""
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
            squares: of all leaves.
            careful: the norms of chosen rows.
            weighted: the weighted sum.
            unformed: the blocks that it sums without forming gradients.
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

    def by_leaf(self, found: dict[int, jax.Array]) -> jax.Array:
        """Returns (k, leaves) of all leaves; zero for one that meets no data."""
        zero = jnp.zeros_like(self.passed.losses, accumulation_dtype(self.passed.losses))
        return jnp.stack([found.get(i, zero) for i in range(len(self.leaves))], axis=-1)

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
    """Returns the chunk of one pass: norms, and what weighted sums are made of."""
    squares, kept = by_platform(partial(_measured, work, True))
    unformed = [block for block in work.blocks if block.method != "form"]
    return work.chunk_of(
        squares, partial(_careful_norms, work, kept), _kept_sums(work, kept), unformed
    )


def _measured(work: Work, keep: bool, platform: Platform) -> tuple[Square, dict[int, jax.Array]]:
    """Returns the squared norms of all leaves, and the gradients that are kept.

    On a CPU large products are taken one example at a time, all of them in one loop: what blocks
    have in common is computed once, and there is one loop to compile.

    Args:
        work: the pass.
        keep: whether gradients that were formed are returned.
        platform: where it runs.
    """
    large = [block for block in work.blocks if any(map(is_large, block.sites))]
    large = large if platform.serial else []
    small = [block for block in work.blocks if block not in large]
    squares: dict[int, Square] = {}
    kept: dict[int, jax.Array] = {}
    for blocks, over in ((small, jax.vmap), (large, lambda fn: partial(work.shards.mapped, fn))):
        if not blocks:
            continue
        measures = [_measure(work, block, keep, platform) for block in blocks]

        def one(given: Any, measures: Any = measures) -> Any:
            return [measure(own) for measure, own in zip(measures, given, strict=True)]

        given = [work.given(block) for block in blocks]
        if platform.serial:
            # Else the compiler takes products of the pass's results in whatever layout they have,
            # some of them by a plain nest of loops.
            given = jax.lax.optimization_barrier(given)
        for found, formed in over(one)(given):
            squares.update(found)
            kept.update(formed)
    squares.update(
        {leaf: Square(row_squares(x), jnp.zeros_like(x, shape=len(x))) for leaf, x in kept.items()}
    )
    both = (work.by_leaf({i: square[part] for i, square in squares.items()}) for part in (0, 1))
    return Square(*both), kept


_Measure = Callable[[Sequence[Given]], tuple[dict[int, Square], dict[int, jax.Array]]]


def _measure(work: Work, block: Block, keep: bool, platform: Platform) -> _Measure:
    """Returns the function from one example's `given` to squares, and to gradients to keep."""
    (site, *_), (leaf, *_) = block.sites, block.leaves
    if block.method == "gram":
        return lambda given: ({leaf: gram_square(platform, site, given[0])}, {})
    if block.method == "rows":
        return lambda given: ({leaf: _of_norm(lookup_norm(site, given[0]))}, {})
    form = former(platform, block, work.leaves)
    if keep:
        return lambda given: ({}, dict(zip(block.leaves, form(given), strict=True)))

    def measured(given: Sequence[Given]) -> tuple[dict[int, Square], dict[int, jax.Array]]:
        off = _off(platform, block, given)
        norms = [
            jnp.sqrt(row_squares(x[None])[0]) + off
            for x in form(_as_summed(platform, block, given))
        ]
        return {i: _of_norm(n) for i, n in zip(block.leaves, norms, strict=True)}, {}

    return measured


def _of_norm(norm: jax.Array) -> Square:
    return Square(norm * norm, jnp.zeros_like(norm))


def _as_summed(platform: Platform, block: Block, given: Sequence[Given]) -> Sequence[Given]:
    """Returns the operands as the weighted sum takes them, if it is taken at the block's site."""
    if not _summed_at_site(block) or block.method == "rows":
        return given
    return [block.sites[0].rounded(platform, given[0])]


def _careful_norms(
    work: Work, kept: dict[int, jax.Array], needed: Callable[[jax.Array], jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns which rows were looked at again, and their norms by leaf from scaled numbers.

    Some rows of every shard at a time are gathered, until there are none left.

    Args:
        work: the pass.
        kept: the gradients that it kept.
        needed: from (k, leaves) that are zero, to the rows that are needed.
    """
    blocks, givens = work.blocks, [work.given(block) for block in work.blocks]
    met = {leaf for block in blocks for leaf in block.leaves}
    zero = {leaf: jnp.ones_like(work.real) for leaf in range(len(work.leaves)) if leaf not in met}
    zero.update({leaf: _is_zero(x) for leaf, x in kept.items()})
    for block, given in zip(blocks, givens, strict=True):
        if block.leaves[0] not in kept and block.direct and block.sites[0].has_formula:
            zero[block.leaves[0]] = _is_zero_product(given[0])
    rows = needed(work.by_leaf(zero) > 0)

    shards = work.shards
    at_once = min(_AT_ONCE, len(rows) // shards.count)

    def some(platform: Platform, chosen: jax.Array) -> jax.Array:
        own, passed = shards.of_rows(
            lambda tree, places: jax.tree.map(lambda x: x[places], tree),
            ((kept, givens), work.passed),
            chosen,
        )
        one = partial(_careful_row, platform, work)
        found = shards.mapped(one, own) if platform.serial else jax.vmap(one)(own)
        return replace(work, passed=passed).by_leaf(found)

    def more(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        left, lengths = state
        chosen = shards.of_rows(lambda x: jax.lax.top_k(x, at_once)[1], left.astype(jnp.int32))
        found = by_platform(some, chosen).astype(lengths.dtype)
        written = lambda x, places, new: x.at[places].set(new)  # noqa: E731
        seen = jnp.zeros_like(left, shape=chosen.shape)
        return (
            shards.of_rows(written, left, chosen, seen),
            shards.of_rows(written, lengths, chosen, found),
        )

    lengths = work.by_leaf({})
    _, lengths = jax.lax.while_loop(lambda state: jnp.any(state[0]), more, (rows, lengths))
    return rows, lengths


def _careful_row(platform: Platform, work: Work, given: Any) -> dict[int, jax.Array]:
    """Returns one example's norms by leaf, from the gradients that were kept and the operands."""
    kept, givens = given
    found = {leaf: scaled_norm(gradient) for leaf, gradient in kept.items()}
    for block, own in zip(work.blocks, givens, strict=True):
        leaf, site = block.leaves[0], block.sites[0]
        if leaf in kept:
            continue
        form = former(platform, block, work.leaves)
        if block.method == "rows":
            found[leaf] = lookup_norm(site, own[0])
        elif _summed_at_site(block):
            near_one, powers = scaled(own[0])
            (gradient,) = form([site.rounded(platform, near_one)])
            norm = scaled_norm(gradient) + rounding(platform, site, near_one)
            found[leaf] = unscaled(norm, powers)
        else:
            found.update(zip(block.leaves, map(scaled_norm, form(own)), strict=True))
    return found


def _is_zero(rows: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(rows), axis=tuple(range(1, rows.ndim)), initial=0.0) == 0


def _is_zero_product(given: Given) -> jax.Array:
    """Says which examples have a factor that is zero, and no factor that is not finite."""
    factors = [x for x in jax.tree.leaves(given) if is_differentiable(x)]
    largest = [jnp.max(jnp.abs(x), axis=tuple(range(1, x.ndim)), initial=0.0) for x in factors]
    finite = [jnp.isfinite(x) for x in largest]
    return reduce(jnp.logical_or, [x == 0 for x in largest]) & reduce(jnp.logical_and, finite)


def _kept_sums(work: Work, kept: dict[int, jax.Array]) -> _Weighted:
    """Returns the weighted sums: of gradients that were kept, or of factors."""
    direct = {block.leaves[0]: block.sites[0].node for block in work.blocks if block.direct}
    unformed = {block.leaves[0]: block for block in work.blocks if block.method != "form"}
    factors = {i: work.given(block)[0] for i, block in unformed.items()}

    def weighted(
        weights: jax.Array, norms: jax.Array, keep: jax.Array, groups: GroupIndex
    ) -> list[jax.Array]:
        def summed(platform: Platform) -> dict[int, jax.Array]:
            def of_shard(weights: jax.Array, rows: Any) -> dict[int, jax.Array]:
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
            return over_clean_rows(platform, sums, (kept, factors), keep, norms)

        return work.every_leaf(by_platform(summed))

    return weighted


def _unkept(work: Work) -> GhostChunk:
    """Returns the chunk of one pass that keeps norms alone."""
    squares, _ = by_platform(partial(_measured, work, False))
    unformed = [block for block in work.blocks if _summed_at_site(block)]
    return work.chunk_of(squares, partial(_careful_norms, work, {}), _second_pass(work), unformed)


def _off(platform: Platform, block: Block, given: Sequence[Given]) -> jax.Array:
    """Returns the rounding of a sum that is not one of the gradients that were formed."""
    if not _summed_at_site(block):
        return jnp.zeros(())
    return rounding(platform, block.sites[0], given[0])


def _summed_at_site(block: Block) -> bool:
    return block.method == "rows" or (block.direct and block.sites[0].product is not None)


def _second_pass(work: Work) -> _Weighted:
    def weighted(
        weights: jax.Array, norms: jax.Array, keep: jax.Array, groups: GroupIndex
    ) -> list[jax.Array]:
        # What a row that is not kept holds could make its zero weight a NaN: another row takes its
        # place. If none is kept, the sum is zero by definition. The barrier keeps the compiler from
        # finding that both passes compute the same, and from storing it.
        if len(keep) == 0:
            return work.every_leaf({})
        data, _ = jax.lax.optimization_barrier((work.data, norms))
        again = work.again(work.shards.of_rows(_replaced, data, keep))
        if _rounds_to_half(work.program.level.jaxpr, work.program.level.needed):
            # The compiler may round this pass in other places than the first, and a number that
            # falls to the other side is off by 2^-8: no row may be longer than its norm said.
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
    """Says whether needed results of a program depend on values in half precision."""

    def half(var: Any) -> bool:
        return is_float(var.aval) and jnp.finfo(var.aval.dtype).bits < 32

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
    rows: Any = given[0]
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


def _replaced(data: Any, keep: jax.Array) -> Any:
    """Returns the rows of a shard, with one that is kept in place of all that are not."""
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
    # Not a product of matrices: zero times a leaf that is not finite would be NaN in other groups.
    return jnp.sum(jnp.where(member, values[:, :, None], 0), axis=1)


def _weighted_rows(platform: Platform, weights: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns ``sum_i weights[i] rows[i]`` in float32 or wider."""
    wide = accumulation_dtype(rows)
    weights, rows = weights.astype(wide), rows.astype(wide)
    if platform.serial:
        return jnp.tensordot(weights, rows, axes=1)
    # The factors of a product of matrices would be rounded.
    return jnp.sum(weights.reshape((-1,) + (1,) * (rows.ndim - 1)) * rows, axis=0)


def _program_of(loss_fn: LossFn, params: Any, data: Any) -> Program:
    """Returns the program of a loss, from data with a leading axis of examples."""

    def first(leaf: Any) -> jax.Array:
        # Of a real example, since its type may say on which devices it differs.
        leaf = jnp.asarray(leaf)
        return leaf[0] if len(leaf) else jnp.zeros(leaf.shape[1:], leaf.dtype)

    return analysed(loss_fn, params, *jax.tree.map(first, data))
