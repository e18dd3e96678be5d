"""The ghost engine in two backward passes: norms first, then the weighted sum."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from dpjax.gradients.ghost.blocks import Block
from dpjax.gradients.ghost.forms import by_leaf, former
from dpjax.gradients.ghost.gram import rounding
from dpjax.gradients.ghost.mapping import one_at_a_time, over_examples
from dpjax.gradients.ghost.sites import Given
from dpjax.gradients.ghost.sums import weighted_site_sum
from dpjax.gradients.ghost.work import GhostChunk, Weighted, Work, group_norms
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.jaxprs import inner_programs, is_float
from dpjax.gradients.masking import weighted_rows
from dpjax.gradients.norms import norms_of, row_norms
from dpjax.gradients.rows import Chunk

__all__ = ["ghost_two_pass_engine"]


def ghost_two_pass_engine(
    loss_fn: Callable[..., jax.Array], params: Any, chunk: Chunk, key: Any
) -> GhostChunk:
    """Returns the chunk's norms and weighted sums, keeping nothing but the norms in between.

    For the least memory: the examples are passed over once more for the weighted sum.

    Args:
        loss_fn: the loss of one example, ``loss_fn(params, example)`` or with a key.
        params: where the gradients are taken.
        chunk: the examples.
        key: None, or the key that is folded with each row's index.
    """
    work = Work.begun(loss_fn, params, chunk, key)
    unformed = [block for block in work.blocks if _summed_at_site(block)]
    return work.chunk_of(_norms(work), _second_pass(work), unformed)


def _norms(work: Work) -> dict[int, jax.Array]:
    """Returns (N,) norms for each leaf that meets data."""
    norms: dict[int, jax.Array] = {}
    for block in work.blocks:
        found = _block_norms(work, block)
        norms.update({leaf: found[:, i] for i, leaf in enumerate(block.leaves)})
    return norms


def _block_norms(work: Work, block: Block) -> jax.Array:
    """Returns (N, leaves of the block)."""
    if block.method != "form":
        return work.unformed_norms(block)[:, None]
    form, given = former(block, work.leaves), work.given(block)
    if not one_at_a_time(block.sites):
        formed = jax.vmap(form)(given)
        found = row_norms(formed, tuple(range(len(formed))), len(formed), work.real)
        return found + jax.vmap(lambda one: _off(block, one))(given)[:, None]
    return jax.lax.map(lambda one: norms_of(form(one)) + _off(block, one), given)


def _off(block: Block, given: Sequence[Given]) -> jax.Array:
    """Returns the rounding of a sum that is not one of the gradients that were formed."""
    if not _summed_at_site(block):
        return jnp.zeros(())
    return rounding(block.sites[0], given[0])


def _summed_at_site(block: Block) -> bool:
    return block.method == "rows" or (block.direct and block.sites[0].product is not None)


def _second_pass(work: Work) -> Weighted:
    def weighted(
        weights: jax.Array, norms: jax.Array, keep: jax.Array, groups: GroupIndex
    ) -> list[jax.Array]:
        # What a row that is not kept holds could make its zero weight a NaN: another row takes its
        # place. If none is kept, the sum is zero by definition. The barrier keeps the compiler from
        # finding that both passes compute the same, and from storing it.
        if len(keep) == 0:
            return work.every_leaf({})
        good = jnp.argmax(keep)
        data, _ = jax.lax.optimization_barrier((work.data, norms))
        again = work.again(jax.tree.map(lambda leaf: _replaced(leaf, keep, good), data))
        if _rounds_to_half(work.program.level.jaxpr):
            # The compiler may round this pass in other places than the first, and a number that
            # falls to the other side is off by 2^-8: no row may be longer than its norm said.
            second = group_norms(again.leaf_norms(_norms(again)), groups)
            weights = weights * jnp.where(second > norms, norms / second, 1)
        found: dict[int, jax.Array] = {}
        for block in again.blocks:
            columns = [weights[:, groups.of_leaf[i]] for i in block.leaves]
            found.update(zip(block.leaves, _sums(again, block, columns), strict=True))
        found = {i: jnp.where(jnp.any(keep), total, 0) for i, total in found.items()}
        return work.every_leaf(found)

    return weighted


def _rounds_to_half(jaxpr: core.Jaxpr) -> bool:
    """Says whether a program has values in half precision."""

    def half(atom: Any) -> bool:
        return is_float(atom.aval) and jnp.finfo(atom.aval.dtype).bits < 32

    return any(map(half, jaxpr.invars)) or any(
        any(map(half, eqn.outvars)) or any(map(_rounds_to_half, inner_programs(eqn)))
        for eqn in jaxpr.eqns
    )


def _sums(work: Work, block: Block, weights: list[jax.Array]) -> list[jax.Array]:
    given = work.given(block)
    site, node = block.sites[0], block.sites[0].node
    if _summed_at_site(block):
        total = weighted_site_sum(site, given[0], weights[0])
        return [by_leaf(node, total, work.leaves[block.leaves[0]])]
    formed = over_examples(former(block, work.leaves), given, block.sites)
    sums = [weighted_rows(column, rows) for column, rows in zip(weights, formed, strict=True)]
    return [by_leaf(node, sums[0], work.leaves[block.leaves[0]])] if block.direct else sums


def _replaced(leaf: jax.Array, keep: jax.Array, good: jax.Array) -> jax.Array:
    return jnp.where(keep.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, leaf[good])
