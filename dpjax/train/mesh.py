"""Where a program runs: on one device, over a mesh of them, on several processes, fed by a host."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dpjax.data import Dataset
from dpjax.mechanism import Mechanism
from dpjax.privatize import Released
from dpjax.train.config import RunConfig
from dpjax.train.feed import HostFeed, Part, gathered
from dpjax.train.step import Program, TrainState
from dpjax.train.task import ExampleRows, Examples, Scores, examples_of

__all__ = [
    "DeviceRunner",
    "HostRunner",
    "Layout",
    "LostProcessError",
    "MeshRunner",
    "Runner",
    "agreed",
    "build_runner",
    "device_memory",
    "fits_on_device",
    "is_primary",
    "mesh_program",
    "others_alive",
    "stacked",
    "wait_for_all",
]


_MOST_BYTES = 2**27  # of rows that travel at once


def is_primary() -> bool:
    """Says whether this process is the one that writes files and prints."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Returns when every process has come here; at once where there is one."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"dpjax {what}")


def agreed(value: np.ndarray) -> np.ndarray:
    """Returns what the first process has for `value`, an array of one shape and type for all."""
    if jax.process_count() == 1:
        return value
    return np.asarray(multihost_utils.broadcast_one_to_all(value))


class LostProcessError(RuntimeError):
    """Another process of the same run has ended; what was saved can be resumed."""


@contextmanager
def others_alive() -> Iterator[None]:
    """Turns what JAX says when another process has ended into one sentence."""
    try:
        yield
    except Exception as error:
        # JAX passes on in words only what Gloo, or the coordinator, says.
        words = str(error).lower()
        lost = any(word in words for word in ("gloo", "connection", "coordination", "preempted"))
        if jax.process_count() > 1 and lost:
            raise LostProcessError("another process of this run has ended") from error
        raise


@dataclass(frozen=True)
class Layout:
    """On which devices a run's state lies, and how it is split over them.

    Attributes:
        mesh: the devices, with the axis "data" over which the rows are split; None for one device.
        rules: pairs of a pattern for the paths of parameters and, for each of their axes, the name
            of a mesh axis or "".
    """

    mesh: Mesh | None = None
    rules: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def of(cls, run: RunConfig) -> "Layout":
        """Returns the layout that is asked for; with several processes, one over all devices."""
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

    def placed(self, tree: Any) -> Any:
        """Returns a state, the same in every process, where the layout has it."""
        if self.mesh is None or self._is_here(tree):
            return tree
        return jax.jit(lambda leaves: leaves, out_shardings=self.shardings(tree))(tree)

    def like(self, shapes: Any) -> Any:
        """Returns shapes with the places where a checkpoint is to be restored."""
        if self.mesh is None:
            return shapes
        return jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            shapes,
            self.shardings(shapes),
        )

    def shardings(self, tree: Any) -> Any:
        """Returns the sharding of every leaf: by the first rule that its path matches."""
        return jax.tree_util.tree_map_with_path(self._sharding, tree)

    def _sharding(self, path: Any, leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec: tuple[str | None, ...] = ()
        for pattern, axes in self.rules:
            # Averages and moments have the paths of their parameters at the end of their own.
            if len(axes) == leaf.ndim and fnmatch(f"/{name}", f"*/{pattern}"):
                spec = tuple(axis or None for axis in axes)
                self._check(name, leaf.shape, pattern, axes)
                break
        assert self.mesh is not None
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def _check(self, name: str, shape: tuple[int, ...], pattern: str, axes: Sequence[str]) -> None:
        assert self.mesh is not None
        for size, axis in zip(shape, axes, strict=True):
            if axis and size % self.mesh.shape[axis]:
                raise ValueError(
                    f"run.sharding.{pattern} = {list(axes)}: {name} has the shape {shape}: "
                    f"expected an axis that {self.mesh.shape[axis]} devices can share evenly"
                )

    def _is_here(self, tree: Any) -> bool:
        first = jax.tree.leaves(tree)[0]
        return isinstance(first, jax.Array) and getattr(first.sharding, "mesh", None) == self.mesh


class Runner(Protocol):
    """Takes steps, and says how good the parameters are.

    Attributes:
        most: how many steps one call may take.
    """

    most: int

    def advance(self, state: TrainState, steps: int) -> tuple[TrainState, Released]:
        """Takes steps; returns the new state and each step's released numbers."""

    def evaluate(self, state: TrainState) -> Scores:
        """Returns the scores on the held-out examples."""


def build_runner(program: Program, dataset: Dataset, run: RunConfig, members: int = 1) -> Runner:
    """Returns where the program runs, as `run` asks.

    Args:
        program: the program.
        dataset: the data.
        run: the devices, and whether they hold the data.
        members: how many runs go side by side in one program; above 1, states are `stacked`.
    """
    layout = Layout.of(run)
    train, test = examples_of(dataset.train), examples_of(dataset.test)
    most = max(1, min(program.plan.steps, round(program.plan.steps_per_epoch)))
    devices = 1 if layout.mesh is None else layout.mesh.size
    if run.data == "host" or (run.data == "auto" and not fits_on_device(train, devices)):
        return HostRunner(program, train, test, layout)
    if isinstance(train, ExampleRows):
        raise ValueError("run.data = 'device': expected 'host' for data that are read on demand")
    if layout.mesh is not None:
        return MeshRunner(program, train, test, most, layout)
    return DeviceRunner(program, train, test, most, members > 1)


def device_memory() -> int:
    """Returns the bytes that a device has; a CPU has those of the machine."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def fits_on_device(data: Any, devices: int = 1) -> bool:
    """Says whether arrays, split over devices, take at most half of the memory of each."""
    if any(isinstance(leaf, ExampleRows | np.memmap) for leaf in jax.tree.leaves(data)):
        return False  # what is read on demand stays where it is
    return sum(leaf.nbytes for leaf in jax.tree.leaves(data)) / devices <= device_memory() / 2


class DeviceRunner:
    """One device that holds all data; steps are one compiled scan, compiled once.

    Args:
        program: the program.
        train: the private examples.
        test: the held-out examples.
        most: the length of the scan: so many steps at most in one call.
        members: whether states are those of several runs, `stacked`. Each has keys of its own, so
            that batches and noise are its own too.
    """

    def __init__(
        self, program: Program, train: Examples, test: Examples, most: int, members: bool = False
    ) -> None:
        """Puts the data on the device."""
        self._data, self._test = jax.device_put((train, test))
        self.most = most
        self._members = members
        advance: Callable[..., Any] = partial(_advance, program, most)
        evaluate: Callable[..., Any] = program.evaluate
        if members:
            # The number of steps is shared, so that a step that is skipped is skipped by all.
            advance = jax.vmap(advance, in_axes=(0, None, None))
            evaluate = jax.vmap(evaluate, in_axes=(0, None))
        self._compiled, self._evaluate = jax.jit(advance), jax.jit(evaluate)

    def advance(self, state: TrainState, steps: int) -> tuple[TrainState, Released]:
        """Takes steps, at most `most`."""
        state, released = self._compiled(state, self._data, jnp.int32(steps))
        taken = np.s_[:, :steps] if self._members else np.s_[:steps]
        return state, jax.tree.map(lambda leaf: np.asarray(leaf)[taken], released)

    def evaluate(self, state: TrainState) -> Scores:
        """Returns the scores on the held-out examples."""
        return self._evaluate(state, self._test)

    def temporary_bytes(self, state: TrainState) -> int:
        """Returns the memory that the compiled program needs beside its arguments, by XLA."""
        lowered = self._compiled.lower(state, self._data, jnp.int32(1))
        analysis: Any = lowered.compile().memory_analysis()  # compiled once: jit takes it from here
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


class MeshRunner:
    """Several devices, each with its own share of the rows; of one process or of several.

    Every device draws its own rows of the batch from the one key, loops over its own chunks, and
    one sum goes over the devices; all of them then add the same noise. The run is that of one
    device, but for the order in which float32 numbers are added.

    Args:
        program: the program, for one device.
        train: the private examples; each process reads those of its own devices.
        test: the held-out examples.
        most: the length of the scan.
        layout: the devices.
    """

    def __init__(
        self, program: Program, train: Examples, test: Examples, most: int, layout: Layout
    ) -> None:
        """Splits the rows over the devices."""
        self.most = most
        self._layout, self._mesh = layout, _mesh_of(layout)
        _refuse_stored_momentum(f"run.mesh = {dict(self._mesh.shape)}", program)
        self._data = _split(train, program.plan.dataset_size, self._mesh)
        self._compiled = mesh_program(program, most, layout)
        self._scored = _MeshScores(program, test, self._mesh)

    def advance(self, state: TrainState, steps: int) -> tuple[TrainState, Released]:
        """Takes steps, at most `most`."""
        placed = self._layout.placed(state)
        state, released = self._compiled(placed, self._data, jnp.int32(steps))
        return state, jax.tree.map(lambda leaf: _local(leaf)[:steps], released)

    def evaluate(self, state: TrainState) -> Scores:
        """Returns the scores, computed by all devices."""
        return self._scored(self._layout.placed(state))


def mesh_program(program: Program, most: int, layout: Layout) -> Any:
    """Returns ``advance(state, data, steps)``, jitted, over the devices of a layout.

    Args:
        program: the program, for one device.
        most: how many steps a call may take.
        layout: the devices.
    """
    mesh = _mesh_of(layout)
    rows = -(-program.plan.dataset_size // mesh.shape["data"])
    everywhere, by_row = PartitionSpec(), PartitionSpec("data")
    advance = jax.shard_map(
        partial(_advance, replace(program, axis="data", rows_per_device=rows), most),
        mesh=mesh,
        in_specs=(everywhere, by_row, everywhere),
        out_specs=everywhere,
        axis_names={"data"},
    )
    state = layout.shardings(jax.eval_shape(program.init, jax.random.key(0)))
    return jax.jit(advance, out_shardings=(state, None))


class HostRunner:
    """Data that stay on the host: each batch reaches the devices in parts, fetched ahead.

    The batches are those that the devices themselves would draw from the same key. With several
    devices each has its own range of rows, and one sum goes over them at the end of a batch.

    Args:
        program: the program.
        train: the private examples: NumPy arrays, memory maps, or a source of rows.
        test: the held-out examples.
        layout: the devices.
    """

    def __init__(
        self, program: Program, train: Any, test: Examples, layout: Layout | None = None
    ) -> None:
        """Compiles nothing yet."""
        _refuse_stored_momentum("run.data = 'host'", program)
        if layout is not None and layout.rules:
            raise ValueError(
                "run.sharding with data on the host: expected data that the devices hold, or "
                "parameters that every device holds"
            )
        self.most = 2**31
        self._program, self._data = program, train
        self._layout = layout or Layout()
        self._add = jax.jit(partial(_add, program))
        self._first = jax.jit(program.clipped_sum)
        if self._layout.mesh is None:
            self._finish = jax.jit(program.finish)
            scores = jax.jit(program.evaluate)
            on_device = jax.device_put(test)
            self._evaluate: Callable[[TrainState], Scores] = lambda state: scores(state, on_device)
            return
        mesh = _mesh_of(self._layout)
        self._evaluate = _MeshScores(program, test, mesh)
        everywhere = PartitionSpec()
        finish = jax.shard_map(
            partial(_finish_part, replace(program, axis="data")),
            mesh=mesh,
            in_specs=(everywhere, PartitionSpec("data")),
            out_specs=everywhere,
            axis_names={"data"},
        )
        self._finish = jax.jit(finish)

    def advance(self, state: TrainState, steps: int) -> tuple[TrainState, Released]:
        """Takes steps."""
        state = self._layout.placed(state)
        plan, taken = self._program.plan, []
        start = int(_local(state.step))
        ranges = self._ranges()
        with ExitStack() as feeds:
            opened = [
                feeds.enter_context(
                    HostFeed(
                        self._data,
                        plan.sampling,
                        _local_key(state.key),
                        self._rows_per_part(),
                        start=start,
                        stop=start + steps,
                        part=part,
                        device=device,
                    )
                )
                for device, part in ranges
            ]
            for step in zip(*opened, strict=True):
                state, released = self._taken(state, [parts for _, parts in step])
                taken.append(jax.tree.map(_local, released))
        return state, jax.tree.map(lambda *leaves: np.stack(leaves), *taken)

    def evaluate(self, state: TrainState) -> Scores:
        """Returns the scores on the held-out examples."""
        return self._evaluate(self._layout.placed(state))

    def _taken(self, state: TrainState, parts_of: Sequence[Any]) -> tuple[TrainState, Released]:
        """Takes one step, given the parts of its batch for each of this process's devices."""
        own = [_on(state, i) for i in range(len(parts_of))]
        totals: list[Any] = [None] * len(own)
        for parts in zip_longest(*parts_of):  # all devices get work before the first gets more
            for i, part in enumerate(parts):
                if part is not None and totals[i] is None:
                    totals[i] = self._first(own[i], part.rows, part.packed)
                elif part is not None:
                    totals[i] = self._add(totals[i], own[i], part)
        if self._layout.mesh is None:
            return self._finish(state, totals[0])
        sharding = NamedSharding(_mesh_of(self._layout), PartitionSpec("data"))
        return self._finish(state, jax.tree.map(partial(_joined, sharding), *totals))

    def _devices(self) -> list[jax.Device | None]:
        return [None] if self._layout.mesh is None else list(self._layout.mesh.devices.flat)

    def _ranges(self) -> list[tuple[jax.Device | None, tuple[int, int] | None]]:
        """Returns this process's devices, each with its range of rows."""
        devices = self._devices()
        if self._layout.mesh is None:
            return [(None, None)]
        rows = -(-self._program.plan.dataset_size // len(devices))
        return [
            (device, (i * rows, rows))
            for i, device in enumerate(devices)
            if device is not None and device.process_index == jax.process_index()
        ]

    def _rows_per_part(self) -> int:
        """Returns how many rows travel at once: a whole batch mostly, in whole chunks."""
        plan = self._program.plan
        chunk, expected = plan.experiment.train.chunk, plan.batch_size / len(self._devices())
        likely = expected + 3 * math.sqrt(expected)  # 999 of 1000 batches, as on the device
        row = jax.tree.leaves(gathered(self._data, np.zeros(1, np.int32)))
        room = _MOST_BYTES // (chunk * sum(leaf.nbytes for leaf in row))
        return chunk * max(1, min(math.ceil(likely / chunk), room))


class _MeshScores:
    """Scores of held-out examples that are split over the devices of a mesh."""

    def __init__(self, program: Program, test: Examples, mesh: Mesh) -> None:
        size = len(test.y)
        self._test = _split(test, size, mesh)
        by_row = PartitionSpec("data")
        outcomes = jax.shard_map(
            program.outcomes,
            mesh=mesh,
            in_specs=(PartitionSpec(), by_row),
            out_specs=by_row,
            axis_names={"data"},
        )
        everywhere = NamedSharding(mesh, PartitionSpec())

        def scores(state: TrainState, test: Examples) -> Scores:
            right, losses = outcomes(state, test)
            return Scores(jnp.mean(right[:size].astype(jnp.float32)), jnp.mean(losses[:size]))

        self._scores = jax.jit(scores, out_shardings=everywhere)

    def __call__(self, state: TrainState) -> Scores:
        return jax.tree.map(_local, self._scores(state, self._test))


def stacked(states: Sequence[TrainState]) -> TrainState:
    """Returns the states of several members with a leading axis; of one, as it is."""
    if len(states) == 1:
        return states[0]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def _mesh_of(layout: Layout) -> Mesh:
    if layout.mesh is None:
        raise ValueError("layout has no mesh: expected one of several devices")
    return layout.mesh


def _split(examples: Examples, size: int, mesh: Mesh) -> Examples:
    """Returns examples split over the data axis; each process reads the rows of its devices.

    Rows of zeros at the end, which no draw can reach, make the shares equal.
    """
    rows = -(-size // mesh.shape["data"])
    sharding = NamedSharding(mesh, PartitionSpec("data"))

    def placed(leaf: Any) -> jax.Array:
        def read(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(rows * mesh.shape["data"])
            found = np.asarray(leaf[start : min(stop, size)])
            missing = (stop - start) - len(found)
            return np.concatenate([found, np.zeros((missing, *leaf.shape[1:]), leaf.dtype)])

        shape = (rows * mesh.shape["data"], *leaf.shape[1:])
        return jax.make_array_from_callback(shape, sharding, read)

    return jax.tree.map(placed, examples)


def _joined(sharding: NamedSharding, *parts: jax.Array) -> jax.Array:
    """Returns one array with a row for each device, of which this process holds `parts`."""
    shape = (sharding.mesh.size, *parts[0].shape)
    rows = [part[None] for part in parts]
    return jax.make_array_from_single_device_arrays(shape, sharding, rows)


def _on(state: TrainState, device: int) -> TrainState:
    """Returns the copy of a state on one of this process's devices."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(device), state)


def _local(leaf: jax.Array) -> np.ndarray:
    """Returns an array that is the same on all devices."""
    return np.asarray(leaf.addressable_data(0))


def _local_key(key: jax.Array) -> jax.Array:
    return key.addressable_data(0)


def _advance(
    program: Program, most: int, state: TrainState, data: Examples, steps: jax.Array
) -> tuple[TrainState, Released]:
    return program.advance(state, data, steps, most)


def _add(program: Program, total: Any, state: TrainState, part: Part) -> Any:
    return total + program.clipped_sum(state, part.rows, part.packed)


def _finish_part(program: Program, state: TrainState, total: Any) -> tuple[TrainState, Released]:
    return program.finish(state, jax.tree.map(lambda leaf: leaf[0], total))


def _refuse_stored_momentum(field: str, program: Program) -> None:
    """Refuses a method that keeps something for each row of its one batch."""
    method = program.plan.method
    if isinstance(method, Mechanism) and method.full_batch:
        raise ValueError(
            f"{field} with method {method.name}: expected one device that holds the data, since "
            "the method takes its full batch at once"
        )
