"""A chunk of per-example gradients that are held as arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.masking import over_clean_rows
from dpjax.gradients.norms import row_norms, settled
from dpjax.gradients.twofloat import TwoFloat, weighted_row_sum

__all__ = ["ChunkGrads", "MaterialisedChunk"]

_ROOM = 1.001  # a float32 norm may be a little shorter than the longest entry


class ChunkGrads(Protocol):
    """What an engine gives for the examples of one chunk."""

    @property
    def losses(self) -> jax.Array | None:
        """(k,) losses; None if there are none."""

    @property
    def real(self) -> jax.Array:
        """(k,) bool, False for padding."""

    def norms(self, groups: GroupIndex) -> jax.Array:
        """Returns (k, G) norms; a row that is not finite is +inf in all groups."""

    def weighted_sum(self, weights: jax.Array, norms: jax.Array, groups: GroupIndex) -> TwoFloat:
        """Returns ``sum_i weights[i, group] * g_i`` over the real rows whose norm is finite."""

    def rerounding(self, rows: int) -> float:
        """Returns how far one more row can move the weighted sum by rounding the others anew.

        In units of the longest ``weights[i] * g_i``; 0 where that is below 1e-9.

        Args:
            rows: the number of rows in all chunks, which are like this one.
        """


@dataclass(frozen=True)
class MaterialisedChunk:
    """Gradients as a pytree with a leading axis of rows; what vmap gives."""

    grads: Any
    losses: jax.Array | None
    real: jax.Array

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
        sums = _weighted_sums(leaves, columns, most, keep, norms)
        return TwoFloat(*(jax.tree.unflatten(treedef, half) for half in zip(*sums, strict=True)))

    def rerounding(self, rows: int) -> float:
        """Returns 0: rows are added in two floats."""
        del rows
        return 0.0

    def map(self, fn: Callable[[Any], Any]) -> "MaterialisedChunk":
        """Applies `fn` to every example's gradient; a row that is not finite stays so."""
        leaves = jax.tree.leaves(self.grads)
        finite = jnp.isfinite(row_norms(leaves, (0,) * len(leaves), 1, self.real))

        def marked(leaf: jax.Array) -> jax.Array:
            return jnp.where(finite.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, jnp.nan)

        mapped = settled(jax.tree.map(marked, jax.vmap(fn)(self.grads)))
        return MaterialisedChunk(mapped, self.losses, self.real)


@jax.jit  # an eager caller would recompile a bare cond each time
def _weighted_sums(
    leaves: list[jax.Array],
    columns: list[jax.Array],
    most: list[jax.Array],
    keep: jax.Array,
    norms: jax.Array,
) -> list[TwoFloat]:
    def sums(rows: list[jax.Array]) -> list[TwoFloat]:
        return jax.tree.map(weighted_row_sum, columns, rows, most)

    return over_clean_rows(sums, leaves, keep, norms)
