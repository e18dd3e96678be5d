"""Where rows come from: devices that hold the data, or a host that feeds them; and their steps."""

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

_MOST_BYTES = 2**27  # of rows that travel at once
_MOST_STEPS = 2**12  # in one call, each of which leaves a few numbers on the device


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
    """A part of a batch, of a fixed shape, on the device.

    Attributes:
        step: whose batch it is.
        rows: pytree like the data, with a leading axis of exactly `chunk`.
        packed: which rows of the data set they are, and how many are real.
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
    """Yields the batches of steps ``start, ..., stop - 1`` in parts, gathered ahead of their use.

    The batch of step t is ``sampling.draw(key, t).rows()``, drawn on the host's CPU: the one that
    the device would draw. It is cut into parts of `chunk` rows, the last of them padded with row 0.
    An empty batch is one part of padding, so that its step still releases noise. One thread draws,
    gathers and transfers up to `depth` parts while the device works on those before; closing the
    iterator ends it.

    Args:
        data: pytree of NumPy arrays that share their leading axis, memory maps among them, or a
            source with ``__getitems__``.
        sampling: how batches are drawn.
        key: the run's key, from which the sampling derives its own.
        chunk: rows of a part.
        start: the first step.
        stop: one beyond the last step.
        depth: how many parts are prepared ahead, at least 1.
        share: ``(start, rows)`` for the rows of the batch in that range; None for all.
        device: where the parts go, a device or a sharding; None for JAX's default.

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
    # On the host, so that a draw never waits behind what the device has to do.
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
                # The size is a scalar, which no sharding splits: JAX puts it where the rows are.
                packed = Packed(numbers, jnp.int32(len(real)), sampling)
                yield Part(t, rows, packed, begin + chunk >= len(batch))
                del rows, numbers, packed  # they would stay alive during the next gather

    return _ahead(parts(), depth)


def _ahead(parts: Iterator[Part], depth: int) -> Generator[Part]:
    """Yields what a thread takes from an iterator, up to `depth` items ahead."""
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
    """Takes the steps of a program, and says how good the parameters are.

    Args:
        program: the program, for one device.
        test: the held-out examples, which are split over a mesh.
        layout: the devices.
        most: how many steps one call may take.
        members: whether states are those of several runs, `stacked`, on one device. Each has keys
            of its own, so that batches and noise are its own too.
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
        """Takes steps, at most `most`; returns the new state and each step's released numbers."""

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
        """Refuses a method that keeps something for each row of its one batch."""
        method = self._program.plan.method
        if isinstance(method, Mechanism) and method.full_batch:
            raise ValueError(
                f"{field} with method {method.name}: expected one device that holds the data, "
                "since the method takes its full batch at once"
            )


def build_runner(program: Program, dataset: Dataset, run: RunConfig, members: int = 1) -> Runner:
    """Returns where the program runs, as `run` asks.

    Args:
        program: the program.
        dataset: the data.
        run: the devices, and whether they hold the data.
        members: how many runs go side by side in one program; above 1, states are `stacked`.

    Raises:
        ValueError: if the data are read on demand and the devices should hold them, or the method
            needs its full batch on one device; names the field.

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
    """Says whether arrays, split over devices, take at most half of the memory of each."""
    if not isinstance(data, Split) or any(isinstance(leaf, np.memmap) for leaf in data):
        return False  # what is read on demand stays where it is
    return sum(leaf.nbytes for leaf in examples_of(data)) / devices <= device_memory() / 2


class DeviceRunner(Runner):
    """Devices that hold the data; steps are one compiled loop.

    On a mesh every device holds a share of the rows, draws its own rows of the batch from the one
    key and loops over its own chunks; one sum goes over the devices, and all of them add the same
    noise. The run is that of one device, but for the order in which float32 numbers are added.

    Args:
        program: the program, for one device.
        train: the private examples; each process reads those of its own devices.
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
            # The number of steps is shared by all members.
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
        """Returns the memory that the compiled program needs beside its arguments, by XLA."""
        lowered = self._compiled.lower(state, self._data, jnp.int32(1))
        analysis: Any = lowered.compile().memory_analysis()  # compiled once: jit takes it from here
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def mesh_program(program: Program, most: int, layout: Layout) -> jax.stages.Wrapped:
    """Returns ``advance(state, data, steps)``, jitted, over the devices of a layout.

    Where it splits parameters, JAX splits the program: none is whole on a device but while a step
    computes with it. Otherwise each device runs its own, and sums over devices are finer.

    Args:
        program: the program, for one device.
        most: how many steps a call may take.
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
        self,
        program: Program,
        train: Split | RandomAccess,
        test: Examples,
        layout: Layout = ONE_DEVICE,
    ) -> None:
        """Compiles nothing yet."""
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
        """Takes steps."""
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
                if taken:  # parts that wait for their turn on the device take up its memory
                    jax.block_until_ready(taken[-1])
                taken.append(released)
        return state, jax.tree.map(lambda *leaves: np.stack([*map(local, leaves)]), *taken)

    def _step(
        self, state: TrainState, feeds: Sequence[Iterator[Part]]
    ) -> tuple[TrainState, Released]:
        """Takes one step, of what the feeds of this process's devices give for it."""
        own = [
            jax.tree.map(lambda leaf: leaf.addressable_data(i), state)  # noqa: B023
            for i in range(len(feeds))
        ]
        totals: list[ClippedSum | None] = [None] * len(own)
        for parts in zip_longest(*map(_batch, feeds)):  # no device gets more before all have work
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
        """Returns how many rows travel at once: a whole batch mostly, in whole chunks."""
        plan, mesh = self._program.plan, self._layout.mesh
        chunk = plan.experiment.train.chunk
        expected = plan.batch_size / (1 if mesh is None else mesh.size)
        likely = expected + 3 * math.sqrt(expected)  # 999 of 1000 batches, as on the device
        row = jax.tree.leaves(gathered(self._data, np.zeros(1, np.int32)))
        room = _MOST_BYTES // (chunk * sum(leaf.nbytes for leaf in row))
        return chunk * max(1, min(math.ceil(likely / chunk), room))


def stacked(states: Sequence[TrainState]) -> TrainState:
    """Returns the states of several members with a leading axis; of one, as it is."""
    if len(states) == 1:
        return states[0]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def _split(examples: Examples, size: int, layout: Layout) -> Examples:
    """Returns examples split over the data axis; each process reads the rows of its devices.

    Rows of zeros at the end, which no draw can reach, make the shares equal.
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
