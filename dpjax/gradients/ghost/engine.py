"""The ghost engines: norms and weighted sums of a chunk without its per-example gradients.

`ghost_engine` takes both from one backward pass, and keeps what the sum is made of in between.
`ghost_two_pass_engine` keeps the norms alone, and passes over the examples again for the sum.
`auto_engine` compares the estimated cost with that of forming every gradient.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from dpjax.devices import varying_zero
from dpjax.gradients.ghost.backward import Pass, backward_pass, by_leaf, former
from dpjax.gradients.ghost.contractions import Given, weighted_site_sum
from dpjax.gradients.ghost.norms import (
    gram_norms,
    lookup_norms,
    one_at_a_time,
    over_examples,
    rounding,
)
from dpjax.gradients.ghost.planner import Block, blocks_of, cheaper_engine
from dpjax.gradients.ghost.trace import Program, analysed
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.jaxprs import is_float, needed_inside, needed_values
from dpjax.gradients.norms import combined_norm, norms_of, row_norms
from dpjax.gradients.rows import Chunk, loss_arguments
from dpjax.gradients.vmap import ChunkGrads, LossFn, over_clean_rows, vmap_engine
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


@dataclass(frozen=True)
class GhostChunk:
    """The examples of a chunk: the norm of every leaf, and how to compute the weighted sum.

    Attributes:
        aux: the auxiliary outputs, with a leading axis.
        real: (k,) bool, False for padding.
        leaf_norms: (k, leaves).
        cancelling: whether terms of one example, longer than their sum, are added in the weighted
            sum; otherwise it adds whole gradients.
    """

    aux: Any
    real: jax.Array
    leaf_norms: jax.Array
    cancelling: bool
    _weighted: _Weighted = field(repr=False)
    _treedef: Any = field(repr=False)

    def norms(self, groups: GroupIndex) -> jax.Array:
        """Returns (k, G) norms; a row that is not finite is +inf in all groups."""
        return _group_norms(self.leaf_norms, groups)

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
    work = Work.begun(loss_fn, params, chunk, key)
    unformed = [block for block in work.blocks if _summed_at_site(block)]
    return work.chunk_of(_norms(work), _second_pass(work), unformed)


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
    passed: Pass

    @classmethod
    def begun(cls, loss_fn: LossFn, params: Any, chunk: Chunk, key: Any) -> "Work":
        """Traces the loss and passes over the examples."""
        data = loss_arguments(chunk, key)
        program = _program_of(loss_fn, params, data)
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
        self, norms: dict[int, jax.Array], weighted: _Weighted, unformed: Sequence[Block]
    ) -> GhostChunk:
        """Returns the chunk; a leaf that meets no data has a gradient of zero.

        Args:
            norms: of every leaf that meets data.
            weighted: the weighted sum.
            unformed: the blocks that it sums without forming gradients.
        """
        return GhostChunk(
            self.passed.aux,
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


def _kept_sums(work: Work, kept: dict[int, jax.Array]) -> _Weighted:
    """Returns the weighted sums: of gradients that were kept, or of factors."""
    direct = {block.leaves[0]: block.sites[0].node for block in work.blocks if block.direct}
    unformed = {block.leaves[0]: block for block in work.blocks if block.method != "form"}
    factors = {i: work.given(block)[0] for i, block in unformed.items()}

    def weighted(
        weights: jax.Array, norms: jax.Array, keep: jax.Array, groups: GroupIndex
    ) -> list[jax.Array]:
        def sums(rows: Any) -> dict[int, jax.Array]:
            formed, given = rows
            found = {i: _weighted_rows(weights[:, groups.of_leaf[i]], x) for i, x in formed.items()}
            for i, block in unformed.items():
                column = weights[:, groups.of_leaf[i]]
                found[i] = weighted_site_sum(block.sites[0], given[i], column)
            return found

        found = over_clean_rows(sums, (kept, factors), keep, norms)
        for i, node in direct.items():
            found[i] = by_leaf(node, found[i], work.leaves[i])
        return work.every_leaf(found)

    return weighted


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


def _second_pass(work: Work) -> _Weighted:
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
        if _rounds_to_half(work.program.level.jaxpr, work.program.level.needed):
            # The compiler may round this pass in other places than the first, and a number that
            # falls to the other side is off by 2^-8: no row may be longer than its norm said.
            second = _group_norms(again.leaf_norms(_norms(again)), groups)
            weights = weights * jnp.where(second > norms, norms / second, 1)
        found: dict[int, jax.Array] = {}
        for block in again.blocks:
            columns = [weights[:, groups.of_leaf[i]] for i in block.leaves]
            found.update(zip(block.leaves, _sums(again, block, columns), strict=True))
        found = {i: jnp.where(jnp.any(keep), total, 0) for i, total in found.items()}
        return work.every_leaf(found)

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


def _sums(work: Work, block: Block, weights: list[jax.Array]) -> list[jax.Array]:
    given = work.given(block)
    site, node = block.sites[0], block.sites[0].node
    if _summed_at_site(block):
        total = weighted_site_sum(site, given[0], weights[0])
        return [by_leaf(node, total, work.leaves[block.leaves[0]])]
    formed = over_examples(former(block, work.leaves), given, block.sites)
    sums = [_weighted_rows(column, rows) for column, rows in zip(weights, formed, strict=True)]
    return [by_leaf(node, sums[0], work.leaves[block.leaves[0]])] if block.direct else sums


def _replaced(leaf: jax.Array, keep: jax.Array, good: jax.Array) -> jax.Array:
    return jnp.where(keep.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, leaf[good])


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


def _weighted_rows(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns ``sum_i weights[i] rows[i]`` in float32 or wider."""
    wide = accumulation_dtype(rows)
    # The default precision of an accelerator's matmul is too coarse for a bound to hold.
    highest = jax.lax.Precision.HIGHEST
    return jnp.tensordot(weights.astype(wide), rows.astype(wide), axes=1, precision=highest)


def _program_of(loss_fn: LossFn, params: Any, data: Any) -> Program:
    """Returns the program of a loss, from data with a leading axis of examples."""

    def first(leaf: Any) -> jax.Array:
        # Of a real example, since its type may say on which devices it differs.
        leaf = jnp.asarray(leaf)
        return leaf[0] if len(leaf) else jnp.zeros(leaf.shape[1:], leaf.dtype)

    return analysed(loss_fn, params, *jax.tree.map(first, data))
