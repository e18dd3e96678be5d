"""Batches of chosen rows, in the form in which a sampling draws them."""

import jax
import jax.numpy as jnp

from dpjax.sampling import Drawn, FullBatch


def drawn_of(indices, count, rows):
    """Returns ``indices[:count]`` as drawn from `rows` rows; a count of None takes all of them."""
    indices = jnp.asarray(indices, jnp.int32)
    size = jnp.asarray(indices.shape[0] if count is None else count, jnp.int32)
    return Drawn(indices, size, jnp.int32(0), FullBatch(rows), rows)


def rows_of(data):
    """Returns how many rows the data has."""
    return jax.tree.leaves(data)[0].shape[0]
