"""The ghost engine: norms and weighted sums from one backward pass with respect to taps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.forms import by_leaf, former
from dpjax.gradients.ghost.mapping import over_examples
from dpjax.gradients.ghost.sums import weighted_site_sum
from dpjax.gradients.ghost.work import GhostChunk, Weighted, Work
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.masking import over_clean_rows, weighted_rows
from dpjax.gradients.norms import row_norms
from dpjax.gradients.rows import Chunk

__all__ = ["book_kept", "ghost_engine"]


def ghost_engine(
    loss_fn: Callable[..., jax.Array], params: Any, chunk: Chunk, key: Any
) -> GhostChunk:
    """Returns the chunk's norms and weighted sums without holding its gradients.

    Args:
        loss_fn: the loss of one example, ``loss_fn(params, example)`` or with a key.
        params: where the gradients are taken.
        chunk: the examples.
        key: None, or the key that is folded with each row's index.
    """
    return book_kept(Work.begun(loss_fn, params, chunk, key))


def book_kept(work: Work) -> GhostChunk:
    """Returns the chunk of one pass: norms, and what weighted sums are made of."""
    norms: dict[int, jax.Array] = {}
    kept: dict[int, jax.Array] = {}
    for block in work.blocks:
        if block.method == "form":
            formed = over_examples(former(block, work.leaves), work.given(block), block.sites)
            kept.update(zip(block.leaves, formed, strict=True))
        else:
            norms[block.leaves[0]] = work.unformed_norms(block)
    found = _kept_norms(kept, work.real)
    norms.update({leaf: found[:, i] for i, leaf in enumerate(kept)})
    unformed = [block for block in work.blocks if block.method != "form"]
    return work.chunk_of(norms, _kept_sums(work, kept), unformed)


def _kept_norms(kept: dict[int, jax.Array], real: jax.Array) -> jax.Array:
    if not kept:
        return jnp.zeros((len(real), 0))
    return row_norms(list(kept.values()), tuple(range(len(kept))), len(kept), real)


def _kept_sums(work: Work, kept: dict[int, jax.Array]) -> Weighted:
    """Returns the weighted sums: of gradients that were kept, or of factors."""
    direct = {block.leaves[0]: block.sites[0].node for block in work.blocks if block.direct}
    unformed = {block.leaves[0]: block for block in work.blocks if block.method != "form"}
    factors = {i: work.given(block)[0] for i, block in unformed.items()}

    def weighted(
        weights: jax.Array, norms: jax.Array, keep: jax.Array, groups: GroupIndex
    ) -> list[jax.Array]:
        def sums(rows: Any) -> dict[int, jax.Array]:
            formed, given = rows
            found = {i: weighted_rows(weights[:, groups.of_leaf[i]], x) for i, x in formed.items()}
            for i, block in unformed.items():
                column = weights[:, groups.of_leaf[i]]
                found[i] = weighted_site_sum(block.sites[0], given[i], column)
            return found

        found = over_clean_rows(sums, (kept, factors), keep, norms)
        for i, node in direct.items():
            found[i] = by_leaf(node, found[i], work.leaves[i])
        return work.every_leaf(found)

    return weighted
