"""Several devices: what differs by device, and sums over devices that are exact."""

import math
from typing import Any

import chex
import jax
import jax.numpy as jnp

from dpjax.twofloat import TwoFloat, added, of_integer

__all__ = [
    "limb_sum",
    "off_grid",
    "refuse_other_than_one_sum",
    "varying",
    "varying_axes",
    "varying_zero",
]

# The unit of the coarse limb, relative to the largest possible sum; see `limb_sum`.
_COARSE = 2.0**-30


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


# Let M be a power of two that bounds the sum over all devices of a coordinate's absolute values.
# With coarse = 2^-30 M and fine = 2^-30 D coarse (D the number of devices, rounded up to a power of
# two), a pair becomes the limbs
#     a = round(hi / coarse) + round(lo / coarse),
#     b = round((hi mod coarse) / fine) + round((lo mod coarse) / fine),
# where x mod coarse is the remainder of the division before. No sum of limbs overflows an int32:
# |sum a| <= (1 + 2^-23) M / coarse + D, and |sum b| <= D (coarse / fine + 1) <= 2^30 + D. Scaling
# is by powers of two and the remainders are exact, so all that is lost is the rounding to b: at
# most one `fine` a coordinate and device.


def limb_sum(sums: TwoFloat, most: Any, devices: int, axes: tuple[str, ...]) -> TwoFloat:
    """Returns the sums over the devices, exact on the grid; float64 leaves are summed as they are.

    Args:
        sums: this device's.
        most: for every leaf, a bound on the sum over devices of a coordinate's absolute values.
        devices: D.
        axes: the mesh axes.
    """
    highs, treedef = jax.tree.flatten(sums.hi)
    scales = [_power_of_two_above(x) for x in jax.tree.leaves(most)]
    limbs = [
        _limbs(hi / scale, lo / scale, devices) if hi.dtype == jnp.float32 else (hi,)
        for hi, lo, scale in zip(highs, jax.tree.leaves(sums.lo), scales, strict=True)
    ]
    pairs = []
    for limb, scale in zip(jax.lax.psum(limbs, axes), scales, strict=True):
        if len(limb) == 1:
            pairs.append((limb[0], jnp.zeros_like(limb[0])))
        else:
            hi, lo = _joined(limb[0], limb[1], devices)
            pairs.append((hi * scale, lo * scale))
    return TwoFloat(*(jax.tree.unflatten(treedef, half) for half in zip(*pairs, strict=True)))


def off_grid(coordinates: int, devices: int) -> float:
    """Returns how far `limb_sum` may lie from the exact sum, in units of its `most`."""
    return devices * math.sqrt(coordinates) * _fine(devices)


def _limbs(hi: jax.Array, lo: jax.Array, devices: int) -> tuple[jax.Array, jax.Array]:
    """Returns (a, b) for M = 1."""

    def split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        a = jnp.round(x / _COARSE)
        return a.astype(jnp.int32), jnp.round((x - a * _COARSE) / _fine(devices)).astype(jnp.int32)

    (a, b), (a_of_low, b_of_low) = split(hi), split(lo)
    return a + a_of_low, b + b_of_low


def _joined(a: jax.Array, b: jax.Array, devices: int) -> TwoFloat:
    """Returns ``a coarse + b fine`` for M = 1."""

    return added(of_integer(a, _COARSE), of_integer(b, _fine(devices)))


def _fine(devices: int) -> float:
    """Returns fine for M = 1."""
    return 2.0 ** math.ceil(math.log2(devices)) * _COARSE**2


def _power_of_two_above(most: jax.Array) -> jax.Array:
    """Returns a power of two above `most`, with room for what rounding may add to it."""
    return jnp.ldexp(jnp.float32(1), jnp.frexp(1.001 * most)[1])


def refuse_other_than_one_sum(total: chex.ArrayTree, axes: tuple[str, ...], key: jax.Array) -> None:
    """Refuses a sum over devices that would not be one sum under one noise.

    JAX's own types say what differs by device. A total that still differs after the sum, while the
    noise key does not, would put the same noise on different signals; a total that does not differ
    over an axis would be counted once per device. With ``check_vma=False`` the types say nothing.

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
    """Returns the mesh axes over which a value differs, inside `shard_map`."""
    kind = jax.typeof(value)
    if hasattr(kind, "vma"):  # the name up to jax 0.9
        return kind.vma
    return kind.manual_axis_type.varying
