"""One sum over the devices under one noise, and the refusal of anything else."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.batch_sums import ClippedSum
from dpjax.gradients.twofloat import TwoFloat, added, of_integer

__all__ = ["Limits", "summed_over_devices"]

# The unit of the coarse limb, relative to the largest possible sum; see `_limb_sum`.
_COARSE = 2.0**-30


class Limits(NamedTuple):
    """The most that one example adds to a coordinate, in absolute value; public."""

    gradient: Any
    statistic: Any


def summed_over_devices(
    total: ClippedSum, axis_name: Any, key: jax.Array, limits: Limits | None
) -> ClippedSum:
    """Sums `total` over the mesh axes, and refuses what would not be one sum under one noise.

    A float32 sum over devices would round all parts anew whenever one of them changes. The parts
    are put on a public grid instead and added as integers, which is exact in any order.

    JAX's own types say what differs by device. A total that still differs after the sum, while the
    noise key does not, would put the same noise on different signals; a total that does not differ
    over an axis would be counted once per device. With ``check_vma=False`` the types say nothing.

    Args:
        total: this device's part.
        axis_name: the mesh axes to sum over, or None.
        key: the noise key.
        limits: what the grid is made from; None, for a mechanism without a bound, sums floats.
    """
    axes = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name or ())
    _refuse_other_than_one_sum(total, axes, key)
    if not axes:
        return total
    if limits is None:
        gradient, statistic = jax.lax.psum((total.gradient, total.statistic), axes)
        return replace(
            total,
            gradient=gradient,
            statistic=statistic,
            gradient_low=jax.tree.map(jnp.zeros_like, gradient),
            statistic_low=jnp.zeros_like(statistic),
        )
    positions, rerounding = total.positions, total.rerounding
    if set(axes) & (_varying_axes(positions) | _varying_axes(rerounding)):
        # They follow from shapes and are the same everywhere, but their types do not say so.
        positions, rerounding = jax.lax.pmax((positions, rerounding), axes)
    devices = math.prod(jax.lax.axis_size(axis) for axis in axes)
    rows = positions.astype(jnp.float32) * devices
    limit_of = (jax.tree.map(lambda _: limits.gradient, total.gradient), limits.statistic)
    sums = _limb_sum(total.sums, jax.tree.map(lambda x: rows * x, limit_of), devices, axes)
    (gradient, statistic), (gradient_low, statistic_low) = sums
    coordinates = sum(leaf.size for leaf in jax.tree.leaves(gradient))
    off_grid = rows * (devices * math.sqrt(coordinates) * _fine(devices))
    return ClippedSum(
        gradient,
        statistic,
        gradient_low,
        statistic_low,
        positions * devices,
        math.sqrt(devices) * rerounding + off_grid,
    )


# Let M be a power of two that bounds the sum over all devices of a coordinate's absolute values.
# With coarse = 2^-30 M and fine = 2^-30 D coarse (D the number of devices, rounded up to a power of
# two), a pair becomes the limbs
#     a = round(hi / coarse) + round(lo / coarse),
#     b = round((hi mod coarse) / fine) + round((lo mod coarse) / fine),
# where x mod coarse is the remainder of the division before. No sum of limbs overflows an int32:
# |sum a| <= (1 + 2^-23) M / coarse + D, and |sum b| <= D (coarse / fine + 1) <= 2^30 + D. Scaling
# is by powers of two and the remainders are exact, so all that is lost is the rounding to b: at
# most one `fine` a coordinate and device.


def _limb_sum(sums: TwoFloat, most: Any, devices: int, axes: tuple[str, ...]) -> TwoFloat:
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


def _refuse_other_than_one_sum(total: ClippedSum, axes: tuple[str, ...], key: jax.Array) -> None:
    found = frozenset().union(*(_varying_axes(leaf) for leaf in jax.tree.leaves(total)))
    for axis in sorted(found - set(axes) - _varying_axes(key)):
        raise ValueError(
            f"the rows differ over mesh axis {axis!r} and the noise would not: expected "
            f"axis_name = {axis!r}, or a key of its own for each device"
        )
    for axis in axes:
        if axis not in found and axis in _varying_axes(jax.lax.axis_index(axis)):
            raise ValueError(
                f"axis_name = {axis!r}: the rows are the same on all its devices, and each would "
                "be counted once per device; expected rows that are split over it"
            )


def _varying_axes(value: Any) -> frozenset[str]:
    kind = jax.typeof(value)
    if hasattr(kind, "vma"):  # the name up to jax 0.9
        return kind.vma
    return kind.manual_axis_type.varying
