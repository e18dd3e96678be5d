"""What `shard_map` asks of a loop and of a gradient: to say that a value differs by device."""

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["varying", "varying_zero"]


def varying_zero(*trees: Any) -> jax.Array | None:
    """Returns a zero that differs by device as the trees do; None outside `shard_map`.

    Its value is 0 whatever the data holds; only its type carries the devices' axes. Made by
    arithmetic because JAX's name for the cast has changed from release to release.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return None
    zero = jnp.zeros((), jnp.int32)
    for source in jax.tree.leaves(trees):
        flat = jnp.asarray(source).reshape(-1)
        zero = zero + jnp.sum(jnp.zeros_like(flat[:1], jnp.int32) * (flat[:1] == flat[:1]))
    return zero


def varying(value: jax.Array, zero: jax.Array | None) -> Any:
    """Returns `value`, marked as differing by device like `zero`."""
    return value if zero is None else value + zero.astype(value.dtype)
