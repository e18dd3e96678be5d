"""A pass over the examples of a chunk, and what an engine makes of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.analysis import Program, analysed
from dpjax.gradients.ghost.blocks import Block, blocks_of
from dpjax.gradients.ghost.embeddings import lookup_norms
from dpjax.gradients.ghost.forms import former
from dpjax.gradients.ghost.gram import gram_norms
from dpjax.gradients.ghost.sites import Given
from dpjax.gradients.ghost.tapped import Pass, backward_pass
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.norms import accumulation_dtype, combined_norm, norms_of
from dpjax.gradients.rows import Chunk, loss_arguments
from dpjax.gradients.shards import varying_zero
from dpjax.gradients.twofloat import TwoFloat

__all__ = ["GhostChunk", "Weighted", "Work", "group_norms", "program_of"]

# From the weights and norms of rows by group, and which rows to keep, to the sum for each leaf.
Weighted = Callable[[jax.Array, jax.Array, jax.Array, GroupIndex], list[jax.Array]]


@dataclass(frozen=True)
class GhostChunk:
    """The examples of a chunk: the norm of every leaf, and how the weighted sum is had.

    Attributes:
        losses: (k,).
        real: (k,) bool, False for padding.
        leaf_norms: (k, leaves).
        cancelling: whether terms of one example, longer than their sum, are added in the weighted
            sum; otherwise it adds whole gradients.
    """

    losses: jax.Array
    real: jax.Array
    leaf_norms: jax.Array
    cancelling: bool
    _weighted: Weighted = field(repr=False)
    _treedef: Any = field(repr=False)

    def norms(self, groups: GroupIndex) -> jax.Array:
        """Returns (k, G) norms; a row that is not finite is +inf in all groups."""
        return group_norms(self.leaf_norms, groups)

    def weighted_sum(self, weights: jax.Array, norms: jax.Array, groups: GroupIndex) -> TwoFloat:
        """Returns ``sum_i weights[i, group] * g_i`` over the real rows whose norm is finite."""
        keep = self.real & jnp.isfinite(norms[:, 0])
        sums = self._weighted(jnp.where(keep[:, None], weights, 0), norms, keep, groups)
        total = jax.tree.unflatten(self._treedef, sums)
        return TwoFloat(total, jax.tree.map(jnp.zeros_like, total))

    def rerounding(self, rows: int) -> float:
        """Returns ``sqrt(rows) (2^-23 k + 2^-14 [cancelling])``: a measured figure, not a proof.

        A float32 product over k rows of length 1 is off by about ``0.3 k^1.5 2^-24``, errors of
        different chunks are independent, and the first term is four times that. The second is more
        than a search over rows that cancel within themselves found; their norms, which include an
        allowance for rounding, keep it small.
        """
        each = 2.0**-23 * len(self.real) + (2.0**-14 if self.cancelling else 0.0)
        return math.sqrt(rows) * each


@dataclass(frozen=True)
class Work:
    """One pass over the examples of a chunk, and the blocks it is looked at in."""

    program: Program
    blocks: list[Block]
    leaves: list[jax.Array]
    treedef: Any
    data: Any
    real: jax.Array
    passed: Pass

    @classmethod
    def begun(
        cls, loss_fn: Callable[..., jax.Array], params: Any, chunk: Chunk, key: Any
    ) -> "Work":
        """Traces the loss and passes over the examples."""
        data = loss_arguments(chunk, key)
        program = program_of(loss_fn, params, data)
        leaves, treedef = jax.tree.flatten(params)
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        passed = backward_pass(program, leaves, data, varying_zero(data, leaves))
        return cls(program, blocks_of(program), leaves, treedef, data, chunk.real, passed)

    def again(self, data: Any) -> "Work":
        """Passes over other examples."""
        passed = backward_pass(self.program, self.leaves, data, varying_zero(data, self.leaves))
        return replace(self, data=data, passed=passed)

    def given(self, block: Block) -> list[Given]:
        """Returns what the pass left at each site of a block."""
        numbers = [site.meeting.number for site in block.sites]
        return [Given(self.passed.kept[i], self.passed.cotangents[i]) for i in numbers]

    def unformed_norms(self, block: Block) -> jax.Array:
        """Returns the norms of a block's one leaf, by a method that does not form its gradient."""
        (site,), (given,) = block.sites, self.given(block)
        if block.method == "rows":
            return lookup_norms(site, given)
        form = former(block, self.leaves)
        return gram_norms(site, given, self.real, lambda one: norms_of(form([one]))[0])

    def chunk_of(
        self, norms: dict[int, jax.Array], weighted: Weighted, unformed: Sequence[Block]
    ) -> GhostChunk:
        """Returns the chunk; a leaf that meets no data has a gradient of zero.

        Args:
            norms: of every leaf that meets data.
            weighted: the weighted sum.
            unformed: the blocks that it sums without forming gradients.
        """
        return GhostChunk(
            self.passed.losses,
            self.real,
            self.leaf_norms(norms),
            any(map(_several_terms, unformed)),
            weighted,
            self.treedef,
        )

    def leaf_norms(self, norms: dict[int, jax.Array]) -> jax.Array:
        """Returns (k, leaves) norms of all leaves; zero for one that meets no data."""
        zero = jnp.zeros_like(self.passed.losses, accumulation_dtype(self.passed.losses))
        return jnp.stack([norms.get(i, zero) for i in range(len(self.leaves))], axis=-1)

    def every_leaf(self, sums: dict[int, jax.Array]) -> list[jax.Array]:
        """Returns the sums of all leaves; zero for one that meets no data."""
        return [
            sums[i] if i in sums else jnp.zeros_like(leaf, accumulation_dtype(leaf))
            for i, leaf in enumerate(self.leaves)
        ]


def _several_terms(block: Block) -> bool:
    site = block.sites[0]
    return site.product is None or site.sizes[1] > 1


def group_norms(leaf_norms: jax.Array, groups: GroupIndex) -> jax.Array:
    """Returns (k, G) norms from (k, leaves); a row that is not finite is +inf in all groups."""
    members = [
        [i for i, group in enumerate(groups.of_leaf) if group == j]
        for j in range(len(groups.names))
    ]
    columns = [combined_norm(leaf_norms[:, jnp.array(mine)]) for mine in members]
    norms = jnp.stack(columns, axis=-1)
    return jnp.where(jnp.all(jnp.isfinite(norms), axis=1, keepdims=True), norms, jnp.inf)


def program_of(loss_fn: Callable[..., jax.Array], params: Any, data: Any) -> Program:
    """Returns the program of a loss, from data with a leading axis of examples."""

    def first(leaf: Any) -> jax.Array:
        # Of a real example, since its type may say on which devices it differs.
        leaf = jnp.asarray(leaf)
        return leaf[0] if len(leaf) else jnp.zeros(leaf.shape[1:], leaf.dtype)

    return analysed(loss_fn, params, *jax.tree.map(first, data))
