"""Weighted sums of a chunk's gradients, from kept gradients or from their factors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.backward import by_leaf, former
from dpjax.gradients.ghost.contractions import Given, weighted_site_sum
from dpjax.gradients.ghost.norms import is_large
from dpjax.gradients.ghost.planner import Block
from dpjax.gradients.ghost.work import Weighted, Work
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.platforms import Platform, by_platform
from dpjax.twofloat import accumulation_dtype

__all__ = ["block_sums", "kept_sums", "summed_at_site"]


def kept_sums(work: Work, kept: dict[int, jax.Array]) -> Weighted:
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


def block_sums(
    platform: Platform, work: Work, block: Block, weights: list[jax.Array], keep: jax.Array
) -> list[jax.Array]:
    """Returns the weighted sum for each leaf of a block; zero if no row is kept.

    Args:
        platform: where it runs.
        work: the pass.
        block: the block.
        weights: (k,) for each of its leaves; 0 for rows that are not kept.
        keep: (k,) bool, the rows that are real and finite.
    """
    given = work.given(block)
    site, node = block.sites[0], block.sites[0].node
    rows: Any = given[0]  # of a site, or the formed gradients of each leaf
    if not summed_at_site(block):
        form = former(platform, block, work.leaves)
        serial = platform.serial and any(map(is_large, block.sites))
        rows = work.shards.mapped(form, given) if serial else jax.vmap(form)(given)

    def of_shard(weights: list[jax.Array], rows: Any, keep: jax.Array) -> list[jax.Array]:
        if summed_at_site(block):
            sums = [weighted_site_sum(platform, site, rows, weights[0])]
        else:
            sums = [
                _weighted_rows(platform, column, own)
                for column, own in zip(weights, rows, strict=True)
            ]
        if block.direct or summed_at_site(block):
            sums = [by_leaf(node, sums[0], work.leaves[block.leaves[0]])]
        return [jnp.where(jnp.any(keep), total, 0) for total in sums]

    return work.shards.each(of_shard)(weights, rows, keep)


def summed_at_site(block: Block) -> bool:
    """Returns whether a sum that keeps no gradients is computed without forming them."""
    return block.method == "rows" or (block.direct and block.sites[0].product is not None)


def _weighted_rows(platform: Platform, weights: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns ``sum_i weights[i] rows[i]`` in float32 or wider."""
    wide = accumulation_dtype(rows)
    weights, rows = weights.astype(wide), rows.astype(wide)
    if platform.serial:
        return jnp.tensordot(weights, rows, axes=1)
    # A matrix product would round its factors.
    return jnp.sum(weights.reshape((-1,) + (1,) * (rows.ndim - 1)) * rows, axis=0)
