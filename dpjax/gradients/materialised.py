"""A chunk of per-example gradients that are held as arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.masking import over_clean_rows, weighted_rows
from dpjax.gradients.norms import row_norms, settled

__all__ = ["ChunkGrads", "MaterialisedChunk"]


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

    def weighted_sum(self, weights: jax.Array, norms: jax.Array, groups: GroupIndex) -> Any:
        """Returns ``sum_i weights[i, group] * g_i`` over the real rows whose norm is finite."""


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

    def weighted_sum(self, weights: jax.Array, norms: jax.Array, groups: GroupIndex) -> Any:
        """Returns ``sum_i weights[i, group] * g_i`` over the real rows whose norm is finite."""
        leaves, treedef = jax.tree.flatten(self.grads)
        keep = self.real & jnp.isfinite(norms[:, 0])
        columns = [jnp.where(keep, weights[:, group], 0) for group in groups.of_leaf]
        sums = _weighted_sums(leaves, columns, keep, norms)
        return jax.tree.unflatten(treedef, sums)

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
    leaves: list[jax.Array], columns: list[jax.Array], keep: jax.Array, norms: jax.Array
) -> list[jax.Array]:
    def sums(rows: list[jax.Array]) -> list[jax.Array]:
        return jax.tree.map(weighted_rows, columns, rows)

    return over_clean_rows(sums, leaves, keep, norms)
