"""The devices and processes of a run, and how its state is placed on them."""

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TypeVar

import chex
import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dpjax.train.config import RunConfig

__all__ = [
    "ONE_DEVICE",
    "Layout",
    "LostProcessError",
    "agreed",
    "device_memory",
    "is_primary",
    "leave_together",
    "local",
    "others_alive",
    "wait_for_all",
]

Tree = TypeVar("Tree")

_SECONDS_TO_LEAVE = 300  # the first process may still be drawing plots


def is_primary() -> bool:
    """Returns whether this is the process that writes files and prints."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Returns when every process has called it; at once if there is only one."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"dpjax {what}")


def agreed(value: np.ndarray) -> np.ndarray:
    """Returns the first process's `value`, an array of one shape and dtype everywhere."""
    if jax.process_count() == 1:
        return value
    return np.asarray(multihost_utils.broadcast_one_to_all(value))


class LostProcessError(RuntimeError):
    """Another process of the same run has ended; the run can be resumed from what was saved."""


@contextmanager
def others_alive() -> Iterator[None]:
    """Turns JAX's errors about a lost process into one sentence."""
    try:
        yield
    except Exception as error:
        # JAX reports these only through the messages of Gloo or the coordinator.
        words = str(error).lower()
        lost = any(word in words for word in ("gloo", "connection", "coordination", "preempted"))
        if jax.process_count() > 1 and lost:
            raise LostProcessError("another process of this run has ended") from error
        raise


def leave_together() -> None:
    """Returns when every process is done; if the first one left earlier, JAX would end the others.

    Raises:
        LostProcessError: if another process has ended, or is not done after five minutes.
    """
    try:
        # Through the coordinator: a sum over devices would wait for a dead process for ever.
        everyone = set(range(jax.process_count()))
        ocp.multihost.sync_global_processes(
            "dpjax is done", timeout=_SECONDS_TO_LEAVE, processes=everyone
        )
    except jax.errors.JaxRuntimeError as error:
        raise LostProcessError(
            f"this process is done, but another of this run is not after {_SECONDS_TO_LEAVE} "
            "seconds, or has ended"
        ) from error


@dataclass(frozen=True)
class Layout:
    """The devices that hold a run's state, and how it is split over them.

    Attributes:
        mesh: the devices, with the axis "data" over which the rows are split; None for one device.
        rules: pairs of a pattern for the paths of parameters and, for each of their axes, the name
            of a mesh axis or "".
    """

    mesh: Mesh | None = None
    rules: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def of(cls, run: RunConfig) -> "Layout":
        """Returns the layout `run` asks for; with several processes, over all devices."""
        axes, found = dict(run.mesh), jax.devices()
        if not axes and jax.process_count() > 1:
            axes = {"data": len(found)}
        wanted = int(np.prod(list(axes.values()), dtype=int))
        if wanted > len(found):
            raise ValueError(
                f"run.mesh = {axes}: expected at most {len(found)} devices, as many as there are "
                "(JAX_NUM_CPU_DEVICES sets how many a CPU counts as)"
            )
        if jax.process_count() > 1 and wanted != len(found):
            raise ValueError(
                f"run.mesh = {axes}: expected all {len(found)} devices of the "
                f"{jax.process_count()} processes"
            )
        if wanted == 1:
            return cls()
        shape = {"data": 1, **axes}
        devices = np.asarray(found[:wanted]).reshape(tuple(shape.values()))
        mesh = Mesh(devices, tuple(shape), axis_types=(AxisType.Auto,) * len(shape))
        rules = tuple((path, tuple(axes)) for path, axes in run.sharding.items())
        return cls(mesh, rules)

    @property
    def devices(self) -> Mesh:
        """The mesh, if there is one."""
        if self.mesh is None:
            raise ValueError("layout has no mesh: expected one of several devices")
        return self.mesh

    def placed(self, tree: Tree) -> Tree:
        """Returns a state, the same in every process, placed as in the layout."""
        if self.mesh is None or self._is_here(tree):
            return tree
        return jax.jit(lambda leaves: leaves, out_shardings=self.shardings(tree))(tree)

    def like(self, shapes: Tree) -> Tree:
        """Returns shapes with the shardings to which a checkpoint is to be restored."""
        if self.mesh is None:
            return shapes
        return jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            shapes,
            self.shardings(shapes),
        )

    def shardings(self, tree: chex.ArrayTree) -> chex.ArrayTree:
        """Returns the sharding of every leaf, from the first rule that matches its path."""
        return jax.tree_util.tree_map_with_path(self._sharding, tree)

    def _sharding(
        self, path: tuple[Hashable, ...], leaf: jax.Array | jax.ShapeDtypeStruct
    ) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec: tuple[str | None, ...] = ()
        for pattern, axes in self.rules:
            # The paths of averages and moments end in those of their parameters.
            if len(axes) == leaf.ndim and fnmatch(f"/{name}", f"*/{pattern}"):
                spec = tuple(axis or None for axis in axes)
                self._check(name, leaf.shape, pattern, axes)
                break
        return NamedSharding(self.devices, PartitionSpec(*spec))

    def _check(self, name: str, shape: tuple[int, ...], pattern: str, axes: Sequence[str]) -> None:
        sizes = self.devices.shape
        for size, axis in zip(shape, axes, strict=True):
            if axis and size % sizes[axis]:
                raise ValueError(
                    f"run.sharding.{pattern} = {list(axes)}: {name} has the shape {shape}: "
                    f"expected an axis that {sizes[axis]} devices can share evenly"
                )

    def _is_here(self, tree: chex.ArrayTree) -> bool:
        first = jax.tree.leaves(tree)[0]
        return isinstance(first, jax.Array) and getattr(first.sharding, "mesh", None) == self.mesh


ONE_DEVICE = Layout()


def local(leaf: jax.Array) -> np.ndarray:
    """Returns the local copy of an array that is the same on all devices."""
    return np.asarray(leaf.addressable_data(0))


def device_memory() -> int:
    """Returns a device's memory in bytes; for a CPU, the machine's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
