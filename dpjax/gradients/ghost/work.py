"""One pass over the examples of a chunk, and the chunk that an engine makes of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import chex
import jax
import jax.numpy as jnp
import numpy as np

from dpjax.devices import Shards, varying_zero
from dpjax.gradients.ghost.backward import Pass, backward_pass
from dpjax.gradients.ghost.contractions import Given
from dpjax.gradients.ghost.norms import Square
from dpjax.gradients.ghost.planner import Block, blocks_of
from dpjax.gradients.ghost.trace import TracedLoss, analysed
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.norms import combined_norm
from dpjax.gradients.rows import Chunk, loss_arguments
from dpjax.gradients.vmap import LossFn
from dpjax.twofloat import TwoFloat, accumulation_dtype

__all__ = ["GhostChunk", "Weighted", "Work", "program_of"]

# Maps the rows' weights and norms by group, and which rows to keep, to the sum for each leaf.
Weighted = Callable[[jax.Array, jax.Array, jax.Array, GroupIndex], list[jax.Array]]
# Takes a function from an all-zero (k, leaves) mask to (k,) rows; returns those rows and their
# norms by leaf.
_Careful = Callable[[Callable[[jax.Array], jax.Array]], tuple[jax.Array, jax.Array]]

# Below this, squares of single entries may have underflowed.
_LEAST = 1e-20
# How much of a squared norm may be in doubt before it is computed again.
_MOST_DOUBTED = 2e-2


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
    _weighted: Weighted = field(repr=False)
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
        program = program_of(loss_fn, params, data)
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
        weighted: Weighted,
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


def program_of(
    loss_fn: LossFn, params: chex.ArrayTree, data: tuple[chex.ArrayTree, ...]
) -> TracedLoss:
    """Returns the program of a loss, from data with a leading axis of examples."""

    def first(leaf: chex.Array) -> jax.Array:
        # From a real example, since its type may say over which devices it varies.
        leaf = jnp.asarray(leaf)
        return leaf[0] if len(leaf) else jnp.zeros(leaf.shape[1:], leaf.dtype)

    return analysed(loss_fn, params, *jax.tree.map(first, data))
