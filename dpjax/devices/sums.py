"""Sums over devices as integers on a public grid, exact in any order."""

import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from dpjax.twofloat import TwoFloat, added, of_integer

__all__ = ["Limits", "grid_sum", "limb_sum", "off_grid", "one_limb"]

# The unit of the coarse limb, relative to the largest possible sum; see `limb_sum`.
_COARSE = 2.0**-30


class Limits(NamedTuple):
    """The largest absolute value that one example can add to a coordinate; public."""

    gradient: chex.Numeric
    statistic: chex.Numeric


# Let M be a power of two that bounds the sum over all devices of a coordinate's absolute values.
# With coarse = 2^-30 M and fine = 2^-30 D coarse (D the number of devices, rounded up to a power of
# two), a pair becomes the limbs
#     a = round(hi / coarse) + round(lo / coarse),
#     b = round((hi mod coarse) / fine) + round((lo mod coarse) / fine),
# where x mod coarse is the remainder of the first division. No sum of limbs overflows an int32:
# |sum a| <= (1 + 2^-23) M / coarse + D, and |sum b| <= D (coarse / fine + 1) <= 2^30 + D. Scaling
# is by powers of two and the remainders are exact, so the only error is the rounding to b: at most
# one `fine` per coordinate and device.


def limb_sum(
    sums: TwoFloat, most: chex.ArrayTree, devices: int, axes: tuple[str, ...] | None = None
) -> TwoFloat:
    """Returns the sums over the devices, exact on the grid; float64 leaves are summed directly.

    Args:
        sums: this device's sums; without `axes`, the sums of all devices along a leading axis.
        most: for every leaf, a bound on the sum over devices of a coordinate's absolute values.
        devices: D, the number of devices.
        axes: the mesh axes, inside `shard_map`.
    """
    highs, treedef = jax.tree.flatten(sums.hi)
    scales = [_power_of_two_above(x) for x in jax.tree.leaves(most)]
    limbs = [
        _limbs(hi / scale, lo / scale, devices) if hi.dtype == jnp.float32 else (hi,)
        for hi, lo, scale in zip(highs, jax.tree.leaves(sums.lo), scales, strict=True)
    ]
    pairs = []
    added_up = _over_leading_axis(limbs) if axes is None else jax.lax.psum(limbs, axes)
    for limb, scale in zip(added_up, scales, strict=True):
        if len(limb) == 1:
            pairs.append((limb[0], jnp.zeros_like(limb[0])))
        else:
            hi, lo = _joined(limb[0], limb[1], devices)
            pairs.append((hi * scale, lo * scale))
    return TwoFloat(*(jax.tree.unflatten(treedef, half) for half in zip(*pairs, strict=True)))


def _over_leading_axis(tree: chex.ArrayTree) -> chex.ArrayTree:
    return jax.tree.map(lambda x: jnp.sum(x, axis=0, dtype=x.dtype), tree)


# The same in one limb, for a sum of which only 4 bytes per number are sent. M bounds the sum over
# shards of a coordinate's absolute values, except for batches of more than `Sampling.likely_rows`
# rows. Values that exceed a shard's share of the int32 range are clamped, which never moves the
# values of two neighbouring batches further apart; the integers are clamped after both halves of a
# pair are added. Rounding changes the difference between two values by at most one unit per
# coordinate, and so by at most sqrt(d) units.

_UNIT = 2.0**-31
_LARGEST_POWER = 2.01  # _power_of_two_above returns at most this many times its argument


def grid_sum(sums: TwoFloat, most: chex.Numeric, shards: int) -> TwoFloat:
    """Returns sums over the leading axis, computed as integers on a grid of 2^-31 of their range.

    Float64 leaves are summed directly.

    Args:
        sums: the sums of all shards, along a leading axis.
        most: a bound on the sum over shards of a coordinate's absolute values; public. Each shard
            gets an equal share of it.
        shards: the number of shards.
    """
    scale = _power_of_two_above(jnp.asarray(most, jnp.float32))
    share = math.floor(2.0**31 / shards / 1.0005)  # _power_of_two_above leaves twice this margin

    def summed(hi: jax.Array, lo: jax.Array) -> TwoFloat:
        if hi.dtype != jnp.float32:
            total = jnp.sum(hi, axis=0)
            return TwoFloat(total, jnp.zeros_like(total))
        scaled = jnp.clip(hi / scale / _UNIT, -1.0002 * share, 1.0002 * share)
        whole = jnp.round(scaled)
        low = jnp.clip(lo / scale / _UNIT, -(2.0**-20) * share, 2.0**-20 * share)
        rest = jnp.round((scaled - whole) + low)
        integers = jnp.clip(whole.astype(jnp.int32) + rest.astype(jnp.int32), -share, share)
        found = of_integer(jnp.sum(integers, axis=0, dtype=jnp.int32), _UNIT)
        return TwoFloat(found.hi * scale, found.lo * scale)

    highs, treedef = jax.tree.flatten(sums.hi)
    pairs = [summed(*pair) for pair in zip(highs, jax.tree.leaves(sums.lo), strict=True)]
    return TwoFloat(*(jax.tree.unflatten(treedef, half) for half in zip(*pairs, strict=True)))


def one_limb(coordinates: int, rows: int) -> float:
    """Returns how much `grid_sum` can change the difference of two parts of one shard.

    In units of the largest value a row can add to a coordinate, if `most` allows for `rows` rows.
    """
    return math.sqrt(coordinates) * _LARGEST_POWER * rows * _UNIT


def off_grid(coordinates: int, devices: int) -> float:
    """Returns how much `limb_sum` can change the difference of two sums, in units of `most`."""
    return 2 * devices * math.sqrt(coordinates) * _LARGEST_POWER * _fine(devices)


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
    """Returns a power of two above `most`, with a margin for rounding."""
    return jnp.ldexp(jnp.float32(1), jnp.frexp(1.001 * most)[1])
