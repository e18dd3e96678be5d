"""Runners, which take a program's steps: with the data on the devices, or fed from the host."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import _checks
from dpjax.batch_sums import ClippedSum
from dpjax.data import Dataset, RandomAccess, Split
from dpjax.gradients.rows import leading_size
from dpjax.mechanism import Mechanism
from dpjax.privatize import Released
from dpjax.sampling import Packed, Sampling
from dpjax.train.config import RunConfig
from dpjax.train.mesh import ONE_DEVICE, Layout, device_memory, local
from dpjax.train.step import Examples, Program, Scores, TrainState

__all__ = [
    "DeviceRunner",
    "HostRunner",
    "Part",
    "Runner",
    "build_runner",
    "examples_of",
    "fits_on_device",
    "gathered",
    "host_parts",
    "mesh_program",
    "stacked",
]

_MOST_BYTES = 2**27  # of rows that are transferred at once
_MOST_STEPS = 2**12  # per call, because each step leaves a few numbers on the device


def examples_of(split: Split) -> Examples:
    """Returns the examples of a split, numbered."""
    return Examples(split.x, split.y, np.arange(len(split.y), dtype=np.int32))


def gathered(data: chex.ArrayTree | RandomAccess, rows: np.ndarray) -> chex.ArrayTree:
    """Returns rows of the data as NumPy arrays, by their numbers.

    Args:
        data: a pytree of arrays with a leading axis, or a source with ``__getitems__``.
        rows: the numbers.
    """
    if hasattr(data, "__getitems__"):
        return data.__getitems__(rows)
    return jax.tree.map(lambda leaf: np.asarray(leaf[rows]), data)


class Part(NamedTuple):
    """A fixed-shape part of a batch, on the device.

    Attributes:
        step: the step whose batch it belongs to.
        rows: a pytree like the data, with a leading axis of exactly `chunk`.
        packed: the rows' numbers in the data set, and how many rows are real.
        last: whether it is the last part of its batch.
    """

    step: int
    rows: chex.ArrayTree
    packed: Packed
    last: bool


def host_parts(
    data: chex.ArrayTree | RandomAccess,
    sampling: Sampling,
    key: jax.Array,
    chunk: int,
    *,
    start: int,
    stop: int,
    depth: int = 2,
    share: tuple[int, int] | None = None,
    device: jax.Device | jax.sharding.Sharding | None = None,
) -> Generator[Part]:
    """Yields the batches of steps ``start, ..., stop - 1`` in parts, prepared in advance.

    The batch of step t is ``sampling.draw(key, t).rows()``, drawn on the host's CPU, and is the
    same that the device would draw. It is cut into parts of `chunk` rows; the last one is padded
    with row 0. An empty batch is one part of padding, so that its step still releases noise. One
    thread draws, gathers and transfers up to `depth` parts while the device works on earlier ones;
    closing the iterator stops it.

    Args:
        data: pytree of NumPy arrays that share their leading axis (memory maps are fine), or a
            source with ``__getitems__``.
        sampling: how batches are drawn.
        key: the run's key, from which the sampling derives its stream.
        chunk: the number of rows per part.
        start: the first step.
        stop: one past the last step.
        depth: how many parts to prepare in advance, at least 1.
        share: ``(start, rows)`` to keep only the rows of the batch in that range; None for all.
        device: the device or sharding to put the parts on; None for JAX's default.

    Example:
        >>> from dpjax.sampling import FixedSize
        >>> data, sampling = np.arange(5.0), FixedSize(5, 5)
        >>> for part in host_parts(data, sampling, jax.random.key(0), 3, start=0, stop=1):
        ...     print(part.step, part.rows.tolist(), int(part.packed.size), part.last)
        0 [0.0, 1.0, 2.0] 3 False
        0 [3.0, 4.0, 0.0] 2 True
    """
    if not isinstance(sampling, Sampling):
        raise TypeError(f"sampling = {sampling!r}: expected a dpjax.sampling.Sampling")
    size = len(data) if hasattr(data, "__getitems__") else leading_size("data", data)
    if size == 0:
        raise ValueError("data has no rows: expected at least one to gather from")
    if sampling.dataset_size != size:
        raise ValueError(
            f"data has {size} rows: expected {sampling.dataset_size}, as in {sampling!r}"
        )
    _checks.integer("chunk", chunk, at_least=1)
    _checks.integer("stop", stop, at_least=_checks.integer("start", start, at_least=0))
    _checks.integer("depth", depth, at_least=1)
    # On the host, so that a draw never waits behind work queued on the device.
    host = jax.local_devices(backend="cpu")[0]
    key = jax.device_put(key, host)

    def parts() -> Iterator[Part]:
        for t in range(start, stop):
            with jax.default_device(host):
                batch = sampling.draw(key, t, share).rows()
            for begin in range(0, max(len(batch), 1), chunk):
                real = batch[begin : begin + chunk]
                index = np.zeros(chunk, batch.dtype)
                index[: len(real)] = real
                rows, numbers = jax.device_put((gathered(data, index), index), device)
                # The size is a scalar, which cannot be split: JAX moves it to where the rows are.
                packed = Packed(numbers, jnp.int32(len(real)), sampling)
                yield Part(t, rows, packed, begin + chunk >= len(batch))
                del rows, numbers, packed  # would otherwise stay alive during the next gather

    return _ahead(parts(), depth)


def _ahead(parts: Iterator[Part], depth: int) -> Generator[Part]:
    """Yields the items of an iterator, computed by a thread up to `depth` items ahead."""
    pool = ThreadPoolExecutor(1, "dpjax-host-feed")
    try:
        waiting: deque[Future[Part | None]] = deque(
            pool.submit(next, parts, None) for _ in range(depth)
        )
        while (part := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, parts, None))
            yield part
    finally:
        pool.shutdown(cancel_futures=True)


class Runner(ABC):
    """Takes the steps of a program, and evaluates the parameters.

    Args:
        program: the program, for one device.
        test: the held-out examples, which are split over a mesh.
        layout: the devices.
        most: how many steps one call may take.
        members: whether a state holds several runs, `stacked`, on one device. Each has its own
            keys, and hence its own batches and noise.
    """

    def __init__(
        self, program: Program, test: Examples, layout: Layout, most: int, members: bool = False
    ) -> None:
        """Puts the held-out examples on the devices."""
        self.most = most
        self._program, self._layout, self._members = program, layout, members
        self._scores = self._scorer(test)

    @abstractmethod
    def advance(self, state: TrainState, steps: int) -> tuple[TrainState, Released]:
        """Takes at most `most` steps; returns the new state and each step's released numbers."""

    def evaluate(self, state: TrainState) -> Scores:
        """Returns the scores on the held-out examples."""
        return self._scores(self._layout.placed(state))

    def _scorer(self, test: Examples) -> Callable[[TrainState], Scores]:
        program, mesh = self._program, self._layout.mesh
        if mesh is None:
            one = program.evaluate
            whole = jax.jit(jax.vmap(one, (0, None)) if self._members else one)
            held = jax.device_put(test)
            return lambda state: whole(state, held)
        size, by_row = len(test.y), PartitionSpec("data")
        shares = _split(test, size, self._layout)
        outcomes = jax.shard_map(
            program.outcomes,
            mesh=mesh,
            in_specs=(PartitionSpec(), by_row),
            out_specs=by_row,
            axis_names={"data"},
        )

        def scores(state: TrainState, test: Examples) -> Scores:
            right, losses = outcomes(state, test)
            return Scores(jnp.mean(right[:size].astype(jnp.float32)), jnp.mean(losses[:size]))

        compiled = jax.jit(scores, out_shardings=NamedSharding(mesh, PartitionSpec()))
        return lambda state: jax.tree.map(local, compiled(state, shares))

    def _refuse_stored_momentum(self, field: str) -> None:
        """Refuses a method with state for every example, which needs its full batch at once."""
        method = self._program.plan.method
        if isinstance(method, Mechanism) and method.full_batch:
            raise ValueError(
                f"{field} with method {method.name}: expected one device that holds the data, "
                "since the method takes its full batch at once"
            )


def build_runner(program: Program, dataset: Dataset, run: RunConfig, members: int = 1) -> Runner:
    """Returns the runner for a program on the devices that `run` asks for.

    Args:
        program: the program.
        dataset: the data set.
        run: says which devices to use, and whether they hold the data.
        members: how many runs are trained side by side in one program; above 1, states are
            `stacked`.

    Raises:
        ValueError: if the devices should hold data that are read on demand, or if the method needs
            its full batch on one device; names the field.

    Example:
        >>> from dpjax.train import Experiment, build_program, load_dataset
        >>> experiment = Experiment().set("method.noise_multiplier", 1.0)
        >>> dataset = load_dataset(experiment)
        >>> build_runner(build_program(experiment, dataset), dataset, experiment.run).most
        57
    """
    layout = Layout.of(run)
    train, test = dataset.train, examples_of(dataset.test)
    devices = 1 if layout.mesh is None else layout.mesh.size
    if run.data == "host" or (run.data == "auto" and not fits_on_device(train, devices)):
        return HostRunner(program, train, test, layout)
    if not isinstance(train, Split):
        raise ValueError("run.data = 'device': expected 'host' for data that are read on demand")
    most = max(1, min(program.plan.steps, _MOST_STEPS))
    return DeviceRunner(program, examples_of(train), test, most, layout, members > 1)


def fits_on_device(data: Split | RandomAccess, devices: int = 1) -> bool:
    """Returns whether arrays, split over devices, take at most half of each one's memory."""
    if not isinstance(data, Split) or any(isinstance(leaf, np.memmap) for leaf in data):
        return False  # data that are read on demand stay on the host
    return sum(leaf.nbytes for leaf in examples_of(data)) / devices <= device_memory() / 2


class DeviceRunner(Runner):
    """Trains with the data on the devices; steps are one compiled loop.

    On a mesh, every device holds a share of the rows, draws its own rows of the batch from the
    common key and loops over its own chunks. The sums are added over the devices once, and all add
    the same noise. The result equals that of one device, up to the order of float32 additions.

    Args:
        program: the program, for one device.
        train: the private examples; each process reads the rows for its own devices.
        test: the held-out examples.
        most: how many steps one call may take.
        layout: the devices.
        members: see `Runner`.
    """

    def __init__(
        self,
        program: Program,
        train: Examples,
        test: Examples,
        most: int,
        layout: Layout = ONE_DEVICE,
        members: bool = False,
    ) -> None:
        """Puts the data on the devices."""
        super().__init__(program, test, layout, most, members)
        if layout.mesh is None:
            self._data = jax.device_put(train)
            advance: Callable[..., tuple[TrainState, Released]] = partial(
                program.advance, most=most
            )
            # All members take the same number of steps.
            self._compiled: jax.stages.Wrapped = jax.jit(
                jax.vmap(advance, (0, None, None)) if members else advance
            )
            return
        self._refuse_stored_momentum(f"run.mesh = {dict(layout.mesh.shape)}")
        self._data = _split(train, program.plan.dataset_size, layout)
        self._compiled = mesh_program(program, most, layout)

    def advance(self, state: TrainState, steps: int) -> tuple[TrainState, Released]:
        """Takes steps as one call of the compiled loop."""
        placed = self._layout.placed(state)
        state, released = self._compiled(placed, self._data, jnp.int32(steps))
        taken = np.s_[:, :steps] if self._members else np.s_[:steps]
        return state, jax.tree.map(lambda leaf: local(leaf)[taken], released)

    def temporary_bytes(self, state: TrainState) -> int:
        """Returns XLA's figure for the memory the program needs in addition to its arguments."""
        lowered = self._compiled.lower(state, self._data, jnp.int32(1))
        analysis: Any = lowered.compile().memory_analysis()  # compiled once: jit reuses it
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def mesh_program(program: Program, most: int, layout: Layout) -> jax.stages.Wrapped:
    """Returns ``advance(state, data, steps)``, jitted, over the devices of a layout.

    If the layout splits parameters, JAX partitions the program, and a parameter is whole on a
    device only while a step uses it. Otherwise each device runs its own copy of the program, and
    the sums over devices are more precise.

    Args:
        program: the program, for one device.
        most: how many steps one call may take.
        layout: the devices.
    """
    mesh = layout.devices
    everywhere, by_row = PartitionSpec(), PartitionSpec("data")
    if layout.rules:
        split = replace(program, sharding=NamedSharding(mesh, by_row))
        advance: Callable[..., tuple[TrainState, Released]] = partial(split.advance, most=most)
    else:
        advance = jax.shard_map(
            partial(replace(program, axis="data").advance, most=most),
            mesh=mesh,
            in_specs=(everywhere, by_row, everywhere),
            out_specs=everywhere,
            axis_names={"data"},
        )
    state = layout.shardings(jax.eval_shape(program.init, jax.random.key(0)))
    return jax.jit(advance, out_shardings=(state, NamedSharding(mesh, everywhere)))


class HostRunner(Runner):
    """Trains with the data on the host, from which each batch is fetched in parts, in advance.

    The batches are those that the devices themselves would draw from the same key. With several
    devices, each has its own range of rows, and their sums are added at the end of a batch.

    Args:
        program: the program.
        train: the private examples: NumPy arrays, memory maps, or a source of rows.
        test: the held-out examples.
        layout: the devices.
    """

    def __init__(
        self,
        program: Program,
        train: Split | RandomAccess,
        test: Examples,
        layout: Layout = ONE_DEVICE,
    ) -> None:
        """Sets up the runner without compiling anything."""
        super().__init__(program, test, layout, most=2**31)
        self._refuse_stored_momentum("run.data = 'host'")
        if layout.rules:
            raise ValueError(
                "run.sharding with data on the host: expected data that the devices hold, or "
                "parameters that every device holds"
            )
        self._data = train

        def add(
            total: ClippedSum | None, state: TrainState, rows: Split, packed: Packed
        ) -> ClippedSum:
            part = program.clipped_sum(state, Examples(rows.x, rows.y, packed.indices), packed)
            return part if total is None else total + part

        self._add = jax.jit(add)
        if layout.mesh is None:
            self._finish = jax.jit(program.finish)
            return
        split = replace(program, axis="data")
        finish = jax.shard_map(
            lambda state, total: split.finish(state, jax.tree.map(lambda leaf: leaf[0], total)),
            mesh=layout.mesh,
            in_specs=(PartitionSpec(), PartitionSpec("data")),
            out_specs=PartitionSpec(),
            axis_names={"data"},
        )
        self._finish = jax.jit(finish)

    def advance(self, state: TrainState, steps: int) -> tuple[TrainState, Released]:
        """Takes steps, at most `most`."""
        state = self._layout.placed(state)
        start = int(local(state.step))
        taken: list[Released] = []
        feed = partial(
            host_parts,
            self._data,
            self._program.plan.sampling,
            state.key.addressable_data(0),
            self._rows_per_part(),
            start=start,
            stop=start + steps,
        )
        with ExitStack() as open_feeds:
            feeds = [
                open_feeds.enter_context(closing(feed(device=device, share=share)))
                for device, share in self._shares()
            ]
            for _ in range(steps):
                state, released = self._step(state, feeds)
                if taken:  # parts that are queued for the device take up its memory
                    jax.block_until_ready(taken[-1])
                taken.append(released)
        return state, jax.tree.map(lambda *leaves: np.stack([*map(local, leaves)]), *taken)

    def _step(
        self, state: TrainState, feeds: Sequence[Iterator[Part]]
    ) -> tuple[TrainState, Released]:
        """Takes one step from what the feeds of this process's devices deliver for it."""
        # Not `addressable_data(i)`: of what all devices hold, that is the first device's copy.
        own = [
            jax.tree.map(lambda leaf: leaf.addressable_shards[i].data, state)  # noqa: B023
            for i in range(len(feeds))
        ]
        totals: list[ClippedSum | None] = [None] * len(own)
        for parts in zip_longest(*map(_batch, feeds)):  # all devices get a part before any gets two
            for i, part in enumerate(parts):
                if part is not None:
                    totals[i] = self._add(totals[i], own[i], part.rows, part.packed)
        if self._layout.mesh is None:
            return self._finish(state, totals[0])
        sharding = NamedSharding(self._layout.mesh, PartitionSpec("data"))
        return self._finish(state, jax.tree.map(partial(_joined, sharding), *totals))

    def _shares(self) -> list[tuple[jax.Device | None, tuple[int, int] | None]]:
        """Returns this process's devices, each with its range of rows."""
        if self._layout.mesh is None:
            return [(None, None)]
        rows = -(-self._program.plan.dataset_size // self._layout.mesh.size)
        return [
            (device, (i * rows, rows))
            for i, device in enumerate(self._layout.mesh.devices.flat)
            if device.process_index == jax.process_index()
        ]

    def _rows_per_part(self) -> int:
        """Returns how many rows are transferred at once: mostly a whole batch, in whole chunks."""
        plan, mesh = self._program.plan, self._layout.mesh
        chunk = plan.experiment.train.chunk
        expected = plan.batch_size / (1 if mesh is None else mesh.size)
        likely = expected + 3 * math.sqrt(expected)  # 999 of 1000 batches, as on the device
        row = jax.tree.leaves(gathered(self._data, np.zeros(1, np.int32)))
        room = _MOST_BYTES // (chunk * sum(leaf.nbytes for leaf in row))
        return chunk * max(1, min(math.ceil(likely / chunk), room))


def stacked(states: Sequence[TrainState]) -> TrainState:
    """Returns the states of several members stacked along a leading axis; a single one as it is."""
    if len(states) == 1:
        return states[0]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def _split(examples: Examples, size: int, layout: Layout) -> Examples:
    """Returns examples split over the data axis; each process reads the rows of its devices.

    Rows of zeros at the end, which are never drawn, make the shares equal.
    """
    shares = layout.devices.shape["data"]
    rows = -(-size // shares)
    sharding = NamedSharding(layout.devices, PartitionSpec("data"))

    def placed(leaf: chex.Array) -> jax.Array:
        def read(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(rows * shares)
            found = np.asarray(leaf[start : min(stop, size)])
            missing = (stop - start) - len(found)
            return np.concatenate([found, np.zeros((missing, *leaf.shape[1:]), leaf.dtype)])

        return jax.make_array_from_callback((rows * shares, *leaf.shape[1:]), sharding, read)

    return jax.tree.map(placed, examples)


def _batch(feed: Iterator[Part]) -> Iterator[Part]:
    """Yields the parts of one batch."""
    for part in feed:
        yield part
        if part.last:
            return


def _joined(sharding: NamedSharding, *parts: jax.Array) -> jax.Array:
    """Returns one array with a row for each device, of which this process holds `parts`."""
    shape = (sharding.mesh.size, *parts[0].shape)
    rows = [part[None] for part in parts]
    return jax.make_array_from_single_device_arrays(shape, sharding, rows)
