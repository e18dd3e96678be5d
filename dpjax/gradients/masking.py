"""Sums over rows, some of which may hold anything: 0 times infinity must not be in them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.norms import accumulation_dtype

__all__ = ["over_clean_rows", "weighted_rows"]


def weighted_rows(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns ``sum_i weights[i] rows[i]`` in float32 or wider."""
    wide = accumulation_dtype(rows)
    # The default precision of an accelerator's matmul is too coarse for a bound to hold.
    highest = jax.lax.Precision.HIGHEST
    return jnp.tensordot(weights.astype(wide), rows.astype(wide), axes=1, precision=highest)


def over_clean_rows(fn: Callable[[Any], Any], rows: Any, keep: jax.Array, norms: jax.Array) -> Any:
    """Returns ``fn(rows)``, in which rows that are not finite are zeros.

    A masked copy of all rows is dear, and made only if a row is not finite.

    Args:
        fn: a sum over rows in which a row that is not kept has weight 0.
        rows: pytree of arrays with a leading axis.
        keep: (k,) bool, the rows that are real and finite.
        norms: of the rows, padding too.
    """

    def masked(leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.where(keep.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, 0)

    return jax.lax.cond(
        jnp.all(jnp.isfinite(norms)), fn, lambda dirty: fn(jax.tree.map(masked, dirty)), rows
    )
