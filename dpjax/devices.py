"""Several devices: what differs by device, and sums over devices that are exact."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from dpjax.twofloat import TwoFloat, added, of_integer

__all__ = [
    "WHOLE",
    "Limits",
    "Shards",
    "as_automatic",
    "as_explicit",
    "automatic_axes",
    "explicit_mesh",
    "grid_sum",
    "leading_axes",
    "leading_axis",
    "limb_sum",
    "mesh_of",
    "off_grid",
    "one_limb",
    "refuse_other_than_one_sum",
    "varying",
    "varying_axes",
    "varying_zero",
]

Tree = TypeVar("Tree")


class Limits(NamedTuple):
    """The most that one example adds to a coordinate, in absolute value; public."""

    gradient: chex.Numeric
    statistic: chex.Numeric


def mesh_of(value: Any) -> AbstractMesh | None:
    """Returns the mesh of several devices that a traced array lies on, if any.

    None inside `shard_map`, where a device sees its own part only, and outside of `jit`.
    """
    if not isinstance(value, jax.core.Tracer) or jax.sharding.get_abstract_mesh().manual_axes:
        return None
    mesh = jax.typeof(value).sharding.mesh
    return mesh if not mesh.empty and mesh.size > 1 else None


@jax.tree_util.register_static
@dataclass(frozen=True)
class Shards:
    """How rows lie on devices under automatic SPMD: in parts of equal length, one after the other.

    Attributes:
        count: how many parts there are; 1 on one device, and inside `shard_map`.
        sharding: how an array's leading axis is split over them; None where that is not known.
    """

    count: int = 1
    sharding: NamedSharding | None = None

    @classmethod
    def of(cls, tree: Any, rows: int, told: NamedSharding | None = None) -> "Shards":
        """Returns how the rows of arrays lie, from the arrays' types or as the caller was told.

        Along automatic axes, types name a mesh but not how it splits an array. Rows are then taken
        to be split as far as the mesh can split them: a part may be smaller than what a device
        holds, which costs some memory, and is never larger.

        Args:
            tree: pytree of arrays with a leading axis.
            rows: the length of that axis.
            told: how they are split; None if nobody said.

        Raises:
            ValueError: if rows that are said to be split cannot be split evenly.
        """
        leaves = jax.tree.leaves(tree)
        mesh = next(filter(None, map(mesh_of, leaves)), None)
        if rows == 0 or mesh is None:
            return WHOLE
        if told is None:
            return cls(math.gcd(rows, mesh.size))
        axes = leading_axes(told)
        count = math.prod(mesh.shape[axis] for axis in axes)
        if rows % count:
            raise ValueError(
                f"{rows} rows: expected a multiple of {count}, the number of devices along mesh "
                f"axis {', '.join(map(repr, axes))}"
            )
        return cls(count, NamedSharding(_automatic(mesh), PartitionSpec(axes)))

    def each(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `fn` of each part's rows, its results along a new leading axis; `fn` for one.

        Args:
            fn: a function of pytrees of arrays with a leading axis of rows.
        """
        if self.count == 1:
            return fn

        def split(leaf: jax.Array) -> jax.Array:
            return leaf.reshape(self.count, leaf.shape[0] // self.count, *leaf.shape[1:])

        return lambda *rows: self.pinned(jax.vmap(fn)(*jax.tree.map(split, rows)))

    def of_rows(self, fn: Callable[..., Any], *rows: Any) -> Any:
        """Returns `fn` of each part's rows, results that have rows themselves laid end to end."""
        if self.count == 1:
            return fn(*rows)
        found = self.each(fn)(*rows)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)

    def mapped(self, fn: Callable[[Any], Any], rows: Any) -> Any:
        """Returns ``jax.lax.map(fn, rows)``, a row of every part at a time."""
        if self.count == 1:
            return jax.lax.map(fn, rows)

        def turned(leaf: jax.Array) -> jax.Array:
            parts = leaf.reshape(self.count, leaf.shape[0] // self.count, *leaf.shape[1:])
            return jnp.swapaxes(parts, 0, 1)

        found = jax.lax.map(lambda row: jax.vmap(fn)(self.pinned(row)), jax.tree.map(turned, rows))
        return jax.tree.map(
            lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), found
        )

    def pinned(self, tree: Any) -> Any:
        """Returns arrays whose leading axis stays where the rows are, as far as that is known.

        Without this, the compiler may move rows to where a sharded parameter lies.
        """
        if self.sharding is None:
            return tree
        mesh, axes = self.sharding.mesh, leading_axes(self.sharding)

        def one(leaf: jax.Array) -> jax.Array:
            free = [PartitionSpec.UNCONSTRAINED] * (leaf.ndim - 1)
            where = NamedSharding(mesh, PartitionSpec(axes, *free))
            return jax.lax.with_sharding_constraint(leaf, where)

        return jax.tree.map(one, tree)


WHOLE = Shards()
"""All rows in one piece."""


# Along explicit axes, what `jax.make_mesh` makes, every operation must say how its result is split,
# which per-example gradients of an arbitrary loss cannot. So they are computed as
# `jax.sharding.auto_axes` would do it: on the same mesh with automatic axes.


def leading_axis(tree: Any) -> NamedSharding | None:
    """Returns how types say that the leading axis of arrays is split; None if they do not say."""
    kinds = [_sharding(leaf) for leaf in jax.tree.leaves(tree)]
    explicit = [kind for kind in kinds if kind is not None and kind.mesh.explicit_axes]
    if not explicit:
        return None
    return NamedSharding(explicit[0].mesh, PartitionSpec(*explicit[0].spec[:1]))


def explicit_mesh(*trees: Any) -> AbstractMesh | None:
    """Returns the mesh with explicit axes that arrays lie on, if any."""
    kinds = [_sharding(leaf) for leaf in jax.tree.leaves(trees)]
    meshes = [kind.mesh.abstract_mesh for kind in kinds if kind is not None]
    return next((mesh for mesh in meshes if mesh.explicit_axes), None)


def automatic_axes(mesh: AbstractMesh | None) -> AbstractContextManager[None]:
    """Returns a context in which the mesh's explicit axes are automatic; None changes nothing."""
    return nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(_automatic(mesh))


def as_automatic(tree: Tree, mesh: AbstractMesh | None) -> Tree:
    """Returns the arrays for use within `automatic_axes`, where they are; nothing is moved."""
    if mesh is None:
        return tree

    def one(leaf: Any) -> Any:
        kind = _sharding(leaf)
        if kind is None or not kind.mesh.explicit_axes:
            return leaf
        return jax.sharding.reshard(leaf, NamedSharding(_automatic(mesh), PartitionSpec()))

    with automatic_axes(mesh):
        return jax.tree.map(one, tree)


def as_explicit(tree: Tree, mesh: AbstractMesh | None, like: Any = None) -> Tree:
    """Returns what was computed within `automatic_axes` for use outside.

    Args:
        tree: pytree of arrays.
        mesh: the mesh with explicit axes; None changes nothing.
        like: pytree of arrays or of `jax.ShapeDtypeStruct`, which the results lie as; None to have
            them whole on every device.
    """
    if mesh is None:
        return tree

    def one(leaf: jax.Array, other: Any) -> jax.Array:
        kind = _sharding(other)
        spec = PartitionSpec() if kind is None else kind.spec
        return jax.sharding.reshard(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(one, tree, jax.tree.map(lambda _: None, tree) if like is None else like)


def _sharding(leaf: Any) -> NamedSharding | None:
    """Returns what an array's type says of where it lies; None for what is no such array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding if isinstance(leaf.sharding, NamedSharding) else None
    return jax.typeof(leaf).sharding if isinstance(leaf, jax.Array) else None


def _automatic(mesh: AbstractMesh) -> AbstractMesh:
    return mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))


def leading_axes(sharding: NamedSharding | None) -> tuple[str, ...]:
    """Returns the mesh axes that the leading axis of an array is split over."""
    first = sharding.spec[0] if sharding is not None and len(sharding.spec) else None
    return (first,) if isinstance(first, str) else tuple(first or ())


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


def limb_sum(
    sums: TwoFloat, most: Any, devices: int, axes: tuple[str, ...] | None = None
) -> TwoFloat:
    """Returns the sums over the devices, exact on the grid; float64 leaves are summed as they are.

    Args:
        sums: this device's; without `axes` those of all devices, along a leading axis.
        most: for every leaf, a bound on the sum over devices of a coordinate's absolute values.
        devices: D.
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


def _over_leading_axis(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.sum(x, axis=0, dtype=x.dtype), tree)


# The same in one limb, for a sum that may travel in 4 bytes a number only. M bounds the sum over
# shards of a coordinate's absolute values, but for batches larger than 6 standard deviations above
# the expected one: a shard's part beyond its share of the int32 range is cut off, which brings no
# two parts further from each other. Rounding changes the difference of two parts by less than a
# unit in every coordinate, and so by less than sqrt(d) units.

_UNIT = 2.0**-31
_ROOM_FOR_ROUNDING = 1.0005  # _power_of_two_above leaves twice as much


def grid_sum(sums: TwoFloat, most: chex.Numeric, shards: int) -> TwoFloat:
    """Returns the sums over the leading axis as integers: exact on a grid of 2^-31 of their range.

    Float64 leaves are summed as they are.

    Args:
        sums: those of all shards, along a leading axis.
        most: a bound on the sum over shards of a coordinate's absolute values; public.
        shards: how many there are.
    """
    unit = _power_of_two_above(jnp.asarray(most, jnp.float32)) * _UNIT
    share = 2.0**31 / shards / _ROOM_FOR_ROUNDING

    def summed(hi: jax.Array, lo: jax.Array) -> TwoFloat:
        if hi.dtype != jnp.float32:
            total = jnp.sum(hi, axis=0)
            return TwoFloat(total, jnp.zeros_like(total))
        scaled = jnp.clip(hi / unit, -share, share)
        whole = jnp.round(scaled)
        rest = jnp.round((scaled - whole) + jnp.clip(lo / unit, -(2.0**8), 2.0**8))
        integers = whole.astype(jnp.int32) + rest.astype(jnp.int32)
        return of_integer(jnp.sum(integers, axis=0, dtype=jnp.int32), unit)

    highs, treedef = jax.tree.flatten(sums.hi)
    pairs = [summed(*pair) for pair in zip(highs, jax.tree.leaves(sums.lo), strict=True)]
    return TwoFloat(*(jax.tree.unflatten(treedef, half) for half in zip(*pairs, strict=True)))


def one_limb(coordinates: int, rows: int) -> float:
    """Returns by how much `grid_sum` may change the difference that one shard's part makes.

    In units of the most that a row adds to a coordinate, for sums of so many rows.
    """
    return math.sqrt(coordinates) * 2.0 ** math.frexp(1.001 * rows)[1] * _UNIT


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
