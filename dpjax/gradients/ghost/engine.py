"""The ghost engine: norms and weighted sums from one backward pass with respect to taps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.analysis import Program, analysed
from dpjax.gradients.ghost.blocks import Block, blocks_of
from dpjax.gradients.ghost.forms import by_leaf, former, norms_of
from dpjax.gradients.ghost.gram import gram_norms
from dpjax.gradients.ghost.mapping import over_examples
from dpjax.gradients.ghost.sites import Given
from dpjax.gradients.ghost.sums import weighted_site_sum
from dpjax.gradients.ghost.tapped import Pass, backward_pass
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.masking import over_clean_rows, weighted_rows
from dpjax.gradients.norms import accumulation_dtype, combined_norm, row_norms
from dpjax.gradients.rows import Chunk, row_keys
from dpjax.gradients.shards import varying_zero

__all__ = ["GhostChunk", "Weighted", "Work", "book_kept", "ghost_engine", "program_of"]

# From the weights and norms of rows by group, and which rows to keep, to the sum for each leaf.
Weighted = Callable[[jax.Array, jax.Array, jax.Array, GroupIndex], list[jax.Array]]


@dataclass(frozen=True)
class GhostChunk:
    """The examples of a chunk: the norm of every leaf, and how the weighted sum is had.

    Attributes:
        losses: (k,).
        real: (k,) bool, False for padding.
        leaf_norms: (k, leaves).
    """

    losses: jax.Array
    real: jax.Array
    leaf_norms: jax.Array
    _weighted: Weighted = field(repr=False)
    _treedef: Any = field(repr=False)

    def norms(self, groups: GroupIndex) -> jax.Array:
        """Returns (k, G) norms; a row that is not finite is +inf in all groups."""
        members = [
            [i for i, group in enumerate(groups.of_leaf) if group == j]
            for j in range(len(groups.names))
        ]
        columns = [combined_norm(self.leaf_norms[:, jnp.array(mine)]) for mine in members]
        norms = jnp.stack(columns, axis=-1)
        return jnp.where(jnp.all(jnp.isfinite(norms), axis=1, keepdims=True), norms, jnp.inf)

    def weighted_sum(self, weights: jax.Array, norms: jax.Array, groups: GroupIndex) -> Any:
        """Returns ``sum_i weights[i, group] * g_i`` over the real rows whose norm is finite."""
        keep = self.real & jnp.isfinite(norms[:, 0])
        sums = self._weighted(jnp.where(keep[:, None], weights, 0), norms, keep, groups)
        return jax.tree.unflatten(self._treedef, sums)


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


def book_kept(work: "Work") -> GhostChunk:
    """Returns the chunk of one pass: norms, and what weighted sums are made of."""
    norms: dict[int, jax.Array] = {}
    kept: dict[int, jax.Array] = {}
    for block in work.blocks:
        given = work.given(block)
        if block.method == "gram":
            norms[block.leaves[0]] = work.gram(block, given)
        else:
            formed = over_examples(former(block, work.leaves), given, block.sites)
            kept.update(zip(block.leaves, formed, strict=True))
    found = _kept_norms(kept, work.real)
    norms.update({leaf: found[:, i] for i, leaf in enumerate(kept)})
    return work.chunk_of(norms, _kept_sums(work, kept))


@dataclass(frozen=True)
class Work:
    """One pass over the examples of a chunk, and the blocks it is looked at in."""

    leaves: list[jax.Array]
    treedef: Any
    blocks: list[Block]
    passed: Pass
    real: jax.Array

    @classmethod
    def begun(
        cls, loss_fn: Callable[..., jax.Array], params: Any, chunk: Chunk, key: Any
    ) -> "Work":
        """Traces the loss and passes over the examples."""
        data = (chunk.examples,) if key is None else (chunk.examples, row_keys(key, chunk))
        program = program_of(loss_fn, params, data)
        leaves, treedef = jax.tree.flatten(params)
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        passed = backward_pass(program, leaves, data, varying_zero(data, params))
        return cls(leaves, treedef, blocks_of(program), passed, chunk.real)

    def given(self, block: Block) -> list[Given]:
        """Returns what the pass left at each site of a block."""
        numbers = [site.meeting.number for site in block.sites]
        return [Given(self.passed.kept[i], self.passed.cotangents[i]) for i in numbers]

    def gram(self, block: Block, given: Sequence[Given]) -> jax.Array:
        """Returns the norms of a block's one leaf from inner products."""
        form = former(block, self.leaves)
        return gram_norms(block.sites[0], given[0], self.real, lambda one: norms_of(form([one]))[0])

    def chunk_of(self, norms: dict[int, jax.Array], weighted: Weighted) -> GhostChunk:
        """Returns the chunk; a leaf that meets no data has a gradient of zero."""
        zero = jnp.zeros_like(self.passed.losses, accumulation_dtype(self.passed.losses))
        columns = [norms.get(i, zero) for i in range(len(self.leaves))]
        return GhostChunk(
            self.passed.losses, self.real, jnp.stack(columns, axis=-1), weighted, self.treedef
        )


def program_of(loss_fn: Callable[..., jax.Array], params: Any, data: Any) -> Program:
    """Returns the program of a loss, from data with a leading axis of examples."""

    def first(leaf: Any) -> jax.Array:
        # Of a real example, since its type may say on which devices it differs.
        leaf = jnp.asarray(leaf)
        return leaf[0] if len(leaf) else jnp.zeros(leaf.shape[1:], leaf.dtype)

    return analysed(loss_fn, params, *jax.tree.map(first, data))


def _kept_norms(kept: dict[int, jax.Array], real: jax.Array) -> jax.Array:
    if not kept:
        return jnp.zeros((len(real), 0))
    return row_norms(list(kept.values()), tuple(range(len(kept))), len(kept), real)


def _kept_sums(work: Work, kept: dict[int, jax.Array]) -> Weighted:
    """Returns the weighted sums: of gradients that were kept, or of factors."""
    direct = {block.leaves[0]: block.sites[0].node for block in work.blocks if block.direct}
    gram = {b.leaves[0]: b.sites[0] for b in work.blocks if b.method == "gram"}
    factors = {b.leaves[0]: work.given(b)[0] for b in work.blocks if b.method == "gram"}

    def weighted(
        weights: jax.Array, norms: jax.Array, keep: jax.Array, groups: GroupIndex
    ) -> list[jax.Array]:
        def sums(rows: Any) -> dict[int, jax.Array]:
            formed, given = rows
            found = {i: weighted_rows(weights[:, groups.of_leaf[i]], x) for i, x in formed.items()}
            for i, site in gram.items():
                found[i] = weighted_site_sum(site, given[i], weights[:, groups.of_leaf[i]])
            return found

        found = over_clean_rows(sums, (kept, factors), keep, norms)
        for i, node in direct.items():
            found[i] = by_leaf(node, found[i], work.leaves[i])
        return [found.get(i, _no_gradient(leaf)) for i, leaf in enumerate(work.leaves)]

    return weighted


def _no_gradient(leaf: jax.Array) -> jax.Array:
    return jnp.zeros_like(leaf, accumulation_dtype(leaf))
