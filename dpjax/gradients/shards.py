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
        flat = _numbers(source).reshape(-1)
        zero = zero + jnp.sum(jnp.zeros_like(flat[:1], jnp.int32) * (flat[:1] == flat[:1]))
    return zero


def _numbers(source: Any) -> jax.Array:
    source = jnp.asarray(source)
    is_key = jnp.issubdtype(source.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(source) if is_key else source


def varying(value: jax.Array, zero: jax.Array | None) -> Any:
    """Returns `value`, marked as differing by device like `zero`."""
    if zero is None:
        return value
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        words = varying(jax.random.key_data(value), zero)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(value))
    return value + zero.astype(value.dtype)
