"""Inside `shard_map`: which values differ between devices, and which may be summed over them."""

import chex
import jax
import jax.numpy as jnp

__all__ = ["refuse_other_than_one_sum", "varying", "varying_axes", "varying_zero"]


def varying_zero(*trees: chex.ArrayTree) -> jax.Array | None:
    """Returns a zero that varies over the mesh axes of the trees; None outside `shard_map`.

    Its value is always 0; only its type carries the mesh axes. It is made by arithmetic because the
    name of JAX's cast differs between releases.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return None
    zero = jnp.zeros((), jnp.int32)
    for source in jax.tree.leaves(trees):
        flat = _numbers(source).reshape(-1)
        zero = zero + jnp.sum(jnp.zeros_like(flat[:1], jnp.int32) * (flat[:1] == flat[:1]))
    return zero


def _numbers(source: chex.Array) -> jax.Array:
    source = jnp.asarray(source)
    is_key = jnp.issubdtype(source.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(source) if is_key else source


def varying(value: jax.Array, zero: jax.Array | None) -> jax.Array:
    """Returns `value`, with a type that varies over the same mesh axes as `zero`."""
    if zero is None:
        return value
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        words = varying(jax.random.key_data(value), zero)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(value))
    return value + zero.astype(value.dtype)


def refuse_other_than_one_sum(total: chex.ArrayTree, axes: tuple[str, ...], key: jax.Array) -> None:
    """Raises if a sum over devices would not be a single sum with a single noise.

    JAX's types say which values differ between devices. If the total still differs after the sum
    but the noise key does not, the same noise would cover different signals. If the total does not
    differ over an axis, it would be counted once per device. With ``check_vma=False`` the types
    carry no information, and nothing is checked.

    Args:
        total: this device's part.
        axes: the mesh axes to sum over.
        key: the noise key.
    """
    found = frozenset().union(*(varying_axes(leaf) for leaf in jax.tree.leaves(total)))
    for axis in sorted(found - set(axes) - varying_axes(key)):
        raise ValueError(
            f"the rows differ over mesh axis {axis!r} and the noise would not: expected "
            f"axis_name = {axis!r}, or a key of its own for each device"
        )
    for axis in axes:
        if axis not in found and axis in varying_axes(jax.lax.axis_index(axis)):
            raise ValueError(
                f"axis_name = {axis!r}: the rows are the same on all its devices, and each would "
                "be counted once per device; expected rows that are split over it"
            )


def varying_axes(value: jax.Array) -> frozenset[str]:
    """Returns the mesh axes over which a value varies, inside `shard_map`."""
    kind = jax.typeof(value)
    if hasattr(kind, "vma"):  # the name up to jax 0.9
        return kind.vma
    return kind.manual_axis_type.varying
