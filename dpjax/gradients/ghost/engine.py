"""The ghost engines: norms and weighted sums of a chunk without its per-example gradients.

`ghost_engine` computes both from one backward pass, and keeps in memory what the sum needs.
`ghost_two_pass_engine` keeps only the norms, and passes over the examples again for the sum.
`auto_engine` compares the estimated cost with that of forming every gradient.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from dpjax.devices import mesh_of
from dpjax.gradients.ghost.backward import former
from dpjax.gradients.ghost.contractions import Given, Site
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
from dpjax.gradients.ghost.sums import block_sums, kept_sums, summed_at_site
from dpjax.gradients.ghost.work import GhostChunk, Weighted, Work, program_of
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.jaxprs import aval_of, is_float, needed_inside, needed_values
from dpjax.gradients.norms import row_squares
from dpjax.gradients.platforms import Platform, by_platform
from dpjax.gradients.rows import Chunk, loss_arguments
from dpjax.gradients.vmap import ChunkGrads, LossFn, vmap_engine
from dpjax.twofloat import accumulation_dtype

__all__ = ["auto_engine", "book_kept", "ghost_engine", "ghost_two_pass_engine"]

# How many rows are computed again together, on platforms where that is not one.
_AT_ONCE = 8
# Up to this many numbers, gradients of one size are copied together, to compile one program.
_SMALL = 4096


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
    ghost = cheaper_engine(blocks_of(program_of(loss_fn, params, data))) == "ghost"
    return (ghost_engine if ghost else vmap_engine)(loss_fn, params, chunk, key)


def book_kept(work: Work) -> GhostChunk:
    """Returns the chunk of one pass: norms, and what weighted sums need."""
    squares, kept = by_platform(partial(_measured, work, True))
    unformed = [block for block in work.blocks if block.method != "form"]
    return work.chunk_of(
        squares, partial(_careful_norms, work, kept), kept_sums(work, kept), unformed
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
    if not summed_at_site(block) or block.method == "rows":
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
        elif summed_at_site(block):
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


def _unkept(work: Work) -> GhostChunk:
    """Returns the chunk of one pass that keeps only the norms."""
    squares, _ = by_platform(partial(_measured, work, False))
    unformed = [block for block in work.blocks if summed_at_site(block)]
    return work.chunk_of(squares, partial(_careful_norms, work, {}), _second_pass(work), unformed)


def _off(platform: Platform, block: Block, given: Sequence[Given]) -> jax.Array:
    """Returns the rounding of a weighted sum that is not taken over formed gradients."""
    if not summed_at_site(block):
        return jnp.zeros(())
    return rounding(platform, block.sites[0], given[0])


def _second_pass(work: Work) -> Weighted:
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
                sums = block_sums(platform, again, block, columns, keep)
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


def _replaced(data: chex.ArrayTree, keep: jax.Array) -> chex.ArrayTree:
    """Returns the rows of a shard, with a kept row in place of each row that is not kept."""
    good = jnp.argmax(keep)

    def one(leaf: jax.Array) -> jax.Array:
        return jnp.where(keep.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, leaf[good])

    return jax.tree.map(one, data)
