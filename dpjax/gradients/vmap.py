"""The interface of a chunk's gradients, and the vmap engine, which forms every gradient."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import chex
import jax
import jax.numpy as jnp

from dpjax.devices import WHOLE, Shards
from dpjax.gradients.convolutions import channels_last_convolutions
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.norms import row_norms, settled
from dpjax.gradients.rows import Chunk, loss_arguments
from dpjax.twofloat import TwoFloat, weighted_row_sum

__all__ = ["ChunkGrads", "LossFn", "MaterialisedChunk", "vmap_engine"]

# The loss that every engine takes: ``loss_fn(params, example[, key])`` for one example. It returns
# ``(loss, aux)``; aux is any pytree of arrays, ``()`` for none, and is not differentiated.
LossFn = Callable[..., tuple[jax.Array, chex.ArrayTree]]

_ROOM = 1.001  # a float32 norm may be a little shorter than the longest entry


class ChunkGrads(Protocol):
    """What an engine returns for the examples of one chunk.

    An engine is called as ``engine(loss_fn, params, chunk, key)``, with a `LossFn`.
    """

    @property
    def aux(self) -> chex.ArrayTree:
        """The loss's auxiliary outputs, a pytree with a leading axis k; () if there are none."""

    @property
    def real(self) -> jax.Array:
        """(k,) bool, False for padding."""

    def norms(self, groups: GroupIndex) -> jax.Array:
        """Returns (k, G) norms; a row that is not finite is +inf in all groups."""

    def weighted_sum(self, weights: jax.Array, norms: jax.Array, groups: GroupIndex) -> TwoFloat:
        """Returns ``sum_i weights[i, group] * g_i`` over the real rows whose norm is finite.

        If the chunk has several shards, returns one sum per shard, along a leading axis.
        """

    def rerounding(self, rows: int) -> float:
        """Returns how far one more row can move the weighted sum by changing the others' rounding.

        In units of the longest ``weights[i] * g_i``; 0 if that is below 1e-9.

        Args:
            rows: the number of rows in all chunks, assumed to be like this one.
        """


@dataclass(frozen=True)
class MaterialisedChunk:
    """Gradients as a pytree with a leading axis of rows, as vmap returns them."""

    grads: chex.ArrayTree
    real: jax.Array
    aux: chex.ArrayTree = ()
    shards: Shards = WHOLE

    def norms(self, groups: GroupIndex) -> jax.Array:
        """Returns (k, G) norms; a row that is not finite is +inf in all groups."""
        leaves = jax.tree.leaves(self.grads)
        return row_norms(leaves, groups.of_leaf, len(groups.names), self.real)

    def weighted_sum(self, weights: jax.Array, norms: jax.Array, groups: GroupIndex) -> TwoFloat:
        """Returns ``sum_i weights[i, group] * g_i`` over the real rows whose norm is finite."""
        leaves, treedef = jax.tree.flatten(self.grads)
        keep = self.real & jnp.isfinite(norms[:, 0])
        columns = [jnp.where(keep, weights[:, group], 0) for group in groups.of_leaf]
        lengths = [jnp.where(keep, norms[:, group], 0) for group in groups.of_leaf]
        most = [
            jnp.max(jnp.abs(w) * n, initial=0.0) * _ROOM
            for w, n in zip(columns, lengths, strict=True)
        ]
        sums = _weighted_sums(leaves, columns, most, self.shards)
        return TwoFloat(*(jax.tree.unflatten(treedef, half) for half in zip(*sums, strict=True)))

    def rerounding(self, rows: int) -> float:
        """Returns 0, because rows are added in two floats."""
        del rows
        return 0.0

    def map(self, fn: Callable[[chex.ArrayTree], chex.ArrayTree]) -> "MaterialisedChunk":
        """Applies `fn` to every example's gradient; a row that is not finite stays not finite."""
        leaves = jax.tree.leaves(self.grads)
        finite = jnp.isfinite(row_norms(leaves, (0,) * len(leaves), 1, self.real))

        def marked(leaf: jax.Array) -> jax.Array:
            return jnp.where(finite.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, jnp.nan)

        mapped = settled(jax.tree.map(marked, jax.vmap(fn)(self.grads)))
        return MaterialisedChunk(mapped, self.real, self.aux, self.shards)


def vmap_engine(
    loss_fn: LossFn, params: chex.ArrayTree, chunk: Chunk, key: chex.PRNGKey | None
) -> MaterialisedChunk:
    """Returns ``vmap(value_and_grad(loss_fn))`` over the examples of a chunk.

    Args:
        loss_fn: ``loss_fn(params, example[, key]) -> (loss, aux)`` for one example.
        params: the point at which gradients are taken.
        chunk: the examples.
        key: None, or the key that is folded with each row's number.
    """
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    data = loss_arguments(chunk, key)
    grads_of = jax.vmap(grad_fn, in_axes=(None, *(0 for _ in data)))
    (_, aux), grads = channels_last_convolutions(grads_of)(params, *data)
    grads, aux = chunk.shards.pinned((settled(grads), aux))
    return MaterialisedChunk(grads, chunk.real, aux, chunk.shards)


# Jitted, since an eager caller would run it operation by operation.
@partial(jax.jit, static_argnames=("shards",))
def _weighted_sums(
    leaves: list[jax.Array], columns: list[jax.Array], most: list[jax.Array], shards: Shards
) -> list[TwoFloat]:
    return [
        shards.each(partial(weighted_row_sum, most=largest))(column, leaf)
        for column, leaf, largest in zip(columns, leaves, most, strict=True)
    ]
