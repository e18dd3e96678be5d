"""Where a program runs: on one device, for several members at once, over a mesh, or fed by host."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dpjax.mechanism import Mechanism
from dpjax.privatize import Released
from dpjax.sampling import Packed
from dpjax.train.host_feed import HostFeed, Part
from dpjax.train.program import Program, TrainState
from dpjax.train.task import Examples, Scores

__all__ = [
    "DeviceRunner",
    "HostRunner",
    "MembersRunner",
    "MeshRunner",
    "Runner",
    "device_memory",
    "fits_on_device",
]


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


def device_memory() -> int:
    """Returns the bytes that the device has; a CPU has those of the machine."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def fits_on_device(data: Any) -> bool:
    """Says whether arrays take at most half of the device's memory."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(data)) <= device_memory() / 2


class DeviceRunner:
    """One device that holds all data; steps are one compiled scan, compiled once.

    Args:
        program: the program.
        train: the private examples.
        test: the held-out examples.
        most: the length of the scan: so many steps at most in one call.
    """

    def __init__(self, program: Program, train: Examples, test: Examples, most: int) -> None:
        """Puts the data on the device."""
        self._data = self._placed(train)
        self._test = jax.device_put(test)
        self.most = most
        self._compiled = jax.jit(self._lifted(partial(_advance, program, most)))
        self._evaluate = jax.jit(self._lifted_evaluate(program.evaluate))

    def advance(self, state: TrainState, steps: int) -> tuple[TrainState, Released]:
        """Takes steps, at most `most`."""
        state, released = self._compiled(state, self._data, jnp.int32(steps))
        return state, jax.tree.map(lambda leaf: self._leading(leaf, steps), released)

    def evaluate(self, state: TrainState) -> Scores:
        """Returns the scores on the held-out examples."""
        return self._evaluate(state, self._test)

    def temporary_bytes(self, state: TrainState) -> int:
        """Returns the memory that the compiled program needs beside its arguments, by XLA."""
        lowered = self._compiled.lower(state, self._data, jnp.int32(1))
        analysis: Any = lowered.compile().memory_analysis()  # compiled once: jit takes it from here
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes

    def _placed(self, train: Examples) -> Examples:
        return jax.device_put(train)

    def _lifted(self, advance: Callable[..., Any]) -> Callable[..., Any]:
        return advance

    def _lifted_evaluate(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        return evaluate

    def _leading(self, leaf: jax.Array, steps: int) -> Any:
        return np.asarray(leaf)[:steps]


class MembersRunner(DeviceRunner):
    """Several members in one compiled program, vmapped; states have a leading axis of members.

    Each member has keys of its own, so that batches and noise are its own too.
    """

    def _lifted(self, advance: Callable[..., Any]) -> Callable[..., Any]:
        # The number of steps is shared, so that a step that is skipped is skipped by all.
        return jax.vmap(advance, in_axes=(0, None, None))

    def _lifted_evaluate(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(evaluate, in_axes=(0, None))

    def _leading(self, leaf: jax.Array, steps: int) -> Any:
        return np.asarray(leaf)[:, :steps]


class MeshRunner(DeviceRunner):
    """Several devices, each with its own share of the rows.

    Every device draws the whole batch from the one key and takes its own rows of it, loops over
    its own chunks, and one sum goes over the devices; all of them then add the same noise. The run
    is that of one device, but for the order in which float32 numbers are added.

    Args:
        program: the program, for one device.
        train: the private examples.
        test: the held-out examples.
        most: the length of the scan.
        devices: the devices.
    """

    def __init__(
        self,
        program: Program,
        train: Examples,
        test: Examples,
        most: int,
        devices: Sequence[jax.Device],
    ) -> None:
        """Splits the rows over the devices."""
        _refuse_stored_momentum(f"run.devices = {len(devices)}", program)
        self._mesh = Mesh(np.asarray(devices), ("data",), axis_types=(AxisType.Auto,))
        self._rows = -(-program.plan.dataset_size // len(devices))
        own = replace(program, axis="data", rows_per_device=self._rows)
        super().__init__(own, train, test, most)

    def advance(self, state: TrainState, steps: int) -> tuple[TrainState, Released]:
        """Takes steps, at most `most`."""
        everywhere = NamedSharding(self._mesh, PartitionSpec())
        return super().advance(jax.device_put(state, everywhere), steps)

    def evaluate(self, state: TrainState) -> Scores:
        """Returns the scores, computed by one of the devices."""
        return super().evaluate(jax.device_put(state, jax.devices()[0]))

    def _placed(self, train: Examples) -> Examples:
        padded = jax.tree.map(lambda leaf: _padded(leaf, self._rows * self._mesh.size), train)
        return jax.device_put(padded, NamedSharding(self._mesh, PartitionSpec("data")))

    def _lifted(self, advance: Callable[..., Any]) -> Callable[..., Any]:
        everywhere = PartitionSpec()
        return jax.shard_map(
            advance,
            mesh=self._mesh,
            in_specs=(everywhere, PartitionSpec("data"), everywhere),
            out_specs=everywhere,
        )


class HostRunner:
    """Data that stay on the host: each batch reaches the device in parts, fetched ahead.

    The batches are those that the device itself would draw from the same key.

    Args:
        program: the program.
        train: the private examples, as NumPy arrays (also memory-mapped ones).
        test: the held-out examples.
    """

    def __init__(self, program: Program, train: Examples, test: Examples) -> None:
        """Compiles nothing yet."""
        _refuse_stored_momentum("run.data = 'host'", program)
        self._program = program
        self._data = train
        self._test = jax.device_put(test)
        self.most = 2**31
        self._add = jax.jit(partial(_add, program))
        self._zero: Any = None
        self._finish = jax.jit(program.finish)
        self._evaluate = jax.jit(program.evaluate)

    def advance(self, state: TrainState, steps: int) -> tuple[TrainState, Released]:
        """Takes steps."""
        plan, start = self._program.plan, int(state.step)
        chunk = plan.experiment.train.chunk
        if self._zero is None:
            self._zero = self._empty_sum(state, chunk)
        taken = []
        with HostFeed(
            self._data, plan.sampling, state.key, chunk, start=start, stop=start + steps
        ) as feed:
            for _, parts in feed:
                total = self._zero
                for part in parts:
                    total = self._add(total, state, part)
                state, released = self._finish(state, total)
                taken.append(released)
        return state, jax.tree.map(lambda *leaves: np.stack(leaves), *taken)

    def evaluate(self, state: TrainState) -> Scores:
        """Returns the scores on the held-out examples."""
        return self._evaluate(state, self._test)

    def _empty_sum(self, state: TrainState, chunk: int) -> Any:
        """Returns the clipped sum over no parts."""
        rows = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((chunk, *leaf.shape[1:]), leaf.dtype), self._data
        )
        packed = Packed(jnp.zeros(chunk, jnp.int32), jnp.int32(0), self._program.plan.sampling)
        total = jax.eval_shape(self._program.clipped_sum, state, rows, packed)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), total)


def _add(program: Program, total: Any, state: TrainState, part: Part) -> Any:
    return total + program.clipped_sum(state, part.rows, part.packed)


def _refuse_stored_momentum(field: str, program: Program) -> None:
    """Refuses a method that keeps something for each row of its one batch."""
    method = program.plan.method
    if isinstance(method, Mechanism) and method.full_batch:
        raise ValueError(
            f"{field} with method {method.name}: expected one device that holds the data, since "
            "the method takes its full batch at once"
        )


def _advance(
    program: Program, most: int, state: TrainState, data: Examples, steps: jax.Array
) -> tuple[TrainState, Released]:
    return program.advance(state, data, steps, most)


def _padded(leaf: np.ndarray, rows: int) -> np.ndarray:
    """Adds rows of zeros at the end, which no draw can reach."""
    return np.concatenate([leaf, np.zeros((rows - len(leaf), *leaf.shape[1:]), leaf.dtype)])
