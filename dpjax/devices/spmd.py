"""Automatic SPMD: plain `jit` on arrays sharded over a mesh with automatic or explicit axes."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

__all__ = [
    "WHOLE",
    "Shards",
    "as_automatic",
    "as_explicit",
    "automatic_axes",
    "explicit_mesh",
    "leading_axes",
    "leading_axis",
    "mesh_of",
]

Tree = TypeVar("Tree")


def mesh_of(value: object) -> AbstractMesh | None:
    """Returns the mesh of several devices that a traced array is sharded over, if any.

    Returns None outside `jit`, and inside `shard_map`, where a device sees only its own part.
    """
    if not isinstance(value, jax.core.Tracer) or jax.sharding.get_abstract_mesh().manual_axes:
        return None
    mesh = jax.typeof(value).sharding.mesh
    return mesh if not mesh.empty and mesh.size > 1 else None


@jax.tree_util.register_static
@dataclass(frozen=True)
class Shards:
    """How rows are split over devices under automatic SPMD: in consecutive parts of equal length.

    Attributes:
        count: the number of parts; 1 on one device and inside `shard_map`.
        sharding: how an array's leading axis is split over them; None if unknown.
    """

    count: int = 1
    sharding: NamedSharding | None = None

    @classmethod
    def of(cls, tree: chex.ArrayTree, rows: int, told: NamedSharding | None = None) -> "Shards":
        """Returns how the rows of arrays are split, from their types or as given by the caller.

        Along automatic axes, types name the mesh but not how it splits an array. Rows are then
        assumed to be split over as many devices as possible. A part may be smaller than what a
        device holds, which costs some memory, but is never larger.

        Args:
            tree: pytree of arrays with a leading axis.
            rows: the length of that axis.
            told: how they are split; None if the caller does not know.

        Raises:
            ValueError: if `told` does not split the rows evenly.
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

    def each(self, fn: Callable[..., chex.ArrayTree]) -> Callable[..., chex.ArrayTree]:
        """Returns `fn` mapped over the parts, with results along a new leading axis.

        Args:
            fn: a function of pytrees of arrays with a leading axis of rows. With one part, `fn`
                itself is returned.
        """
        if self.count == 1:
            return fn

        def split(leaf: jax.Array) -> jax.Array:
            return leaf.reshape(self.count, leaf.shape[0] // self.count, *leaf.shape[1:])

        return lambda *rows: self.pinned(jax.vmap(fn)(*jax.tree.map(split, rows)))

    def of_rows(self, fn: Callable[..., chex.ArrayTree], *rows: chex.ArrayTree) -> chex.ArrayTree:
        """Returns `fn` applied to each part's rows, with the rows of the results concatenated."""
        if self.count == 1:
            return fn(*rows)
        found = self.each(fn)(*rows)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)

    def mapped(
        self, fn: Callable[[chex.ArrayTree], chex.ArrayTree], rows: chex.ArrayTree
    ) -> chex.ArrayTree:
        """Returns ``jax.lax.map(fn, rows)``, computed for one row of every part at a time."""
        if self.count == 1:
            return jax.lax.map(fn, rows)

        def turned(leaf: jax.Array) -> jax.Array:
            parts = leaf.reshape(self.count, leaf.shape[0] // self.count, *leaf.shape[1:])
            return jnp.swapaxes(parts, 0, 1)

        found = jax.lax.map(lambda row: jax.vmap(fn)(self.pinned(row)), jax.tree.map(turned, rows))
        return jax.tree.map(
            lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), found
        )

    def pinned(self, tree: chex.ArrayTree) -> chex.ArrayTree:
        """Returns the arrays, constrained to stay on the devices of their rows if these are known.

        Without this, the compiler may move rows to the devices of a sharded parameter.
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


# Along explicit axes, the default of `jax.make_mesh`, every operation must state how its result is
# split, which per-example gradients of an arbitrary loss cannot. So they are computed as in
# `jax.sharding.auto_axes`: on the same mesh with automatic axes.


def leading_axis(tree: chex.ArrayTree) -> NamedSharding | None:
    """Returns how the leading axis of arrays is split, if their types say so; otherwise None."""
    kinds = [_sharding(leaf) for leaf in jax.tree.leaves(tree)]
    explicit = [kind for kind in kinds if kind is not None and kind.mesh.explicit_axes]
    if not explicit:
        return None
    return NamedSharding(explicit[0].mesh, PartitionSpec(*explicit[0].spec[:1]))


def explicit_mesh(*trees: chex.ArrayTree) -> AbstractMesh | None:
    """Returns the mesh with explicit axes that the arrays are sharded over, if any."""
    kinds = [_sharding(leaf) for leaf in jax.tree.leaves(trees)]
    meshes = [kind.mesh.abstract_mesh for kind in kinds if kind is not None]
    return next((mesh for mesh in meshes if mesh.explicit_axes), None)


def automatic_axes(mesh: AbstractMesh | None) -> AbstractContextManager[None]:
    """Returns a context in which the mesh's explicit axes are automatic; no-op for None."""
    return nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(_automatic(mesh))


def as_automatic(tree: Tree, mesh: AbstractMesh | None) -> Tree:
    """Returns the arrays for use within `automatic_axes`, without moving them."""
    if mesh is None:
        return tree

    def one(leaf: chex.Array) -> chex.Array:
        kind = _sharding(leaf)
        if kind is None or not kind.mesh.explicit_axes:
            return leaf
        return jax.sharding.reshard(leaf, NamedSharding(_automatic(mesh), PartitionSpec()))

    with automatic_axes(mesh):
        return jax.tree.map(one, tree)


def as_explicit(tree: Tree, mesh: AbstractMesh | None, like: chex.ArrayTree = None) -> Tree:
    """Returns results of a computation within `automatic_axes`, for use outside.

    Args:
        tree: pytree of arrays.
        mesh: the mesh with explicit axes; None changes nothing.
        like: pytree of arrays or of `jax.ShapeDtypeStruct` whose sharding the results get; None
            replicates them on every device.
    """
    if mesh is None:
        return tree

    def one(leaf: jax.Array, other: object) -> jax.Array:
        kind = _sharding(other)
        spec = PartitionSpec() if kind is None else kind.spec
        return jax.sharding.reshard(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(one, tree, jax.tree.map(lambda _: None, tree) if like is None else like)


def _sharding(leaf: object) -> NamedSharding | None:
    """Returns the sharding in an array's type; None if there is none."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding if isinstance(leaf.sharding, NamedSharding) else None
    return jax.typeof(leaf).sharding if isinstance(leaf, jax.Array) else None


def _automatic(mesh: AbstractMesh) -> AbstractMesh:
    return mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))


def leading_axes(sharding: NamedSharding | None) -> tuple[str, ...]:
    """Returns the mesh axes that the leading axis of an array is split over."""
    first = sharding.spec[0] if sharding is not None and len(sharding.spec) else None
    return (first,) if isinstance(first, str) else tuple(first or ())
