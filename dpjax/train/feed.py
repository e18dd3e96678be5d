"""Batches of data that do not fit on the device: gathered on the host, ahead of their use."""

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks
from dpjax.gradients.rows import leading_size
from dpjax.sampling import Packed, Sampling

__all__ = ["HostFeed", "Part", "gathered"]


def gathered(data: Any, rows: np.ndarray) -> Any:
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
        rows: pytree like the data, with a leading axis of exactly `chunk`.
        packed: which rows of the data set they are, and how many are real.
    """

    rows: Any
    packed: Packed


class _Ready(NamedTuple):
    part: Part
    last: bool  # of its step


class HostFeed:
    """The batches of steps ``start, ..., stop - 1`` in parts, put on the device ahead of their use.

    The batch of step t is ``sampling.draw(key, t).rows()``, drawn on the host's CPU: the one that
    the device would draw. It is cut into parts of `chunk` rows, the last of them padded with row 0.
    An empty batch is one part of padding, so that its step still releases noise. One thread
    draws, gathers and transfers, while the device works on the parts before.

    At most `depth` parts exist that the consumer has not taken. What it took and still computes
    with is its own: a loop that never waits for its results holds every part it has dispatched.

    Args:
        data: pytree of NumPy arrays that share their leading axis; `numpy.memmap` will do.
        sampling: how batches are drawn.
        key: the run's key, from which the sampling derives its own.
        chunk: rows of a part.
        start: the first step.
        stop: one beyond the last step.
        depth: how many parts are prepared ahead, at least 1.
        part: ``(start, rows)`` for the rows of the batch in that range; None for all.
        device: where the parts go, a device or a sharding; None for JAX's default.

    Example:
        >>> from dpjax.sampling import FixedSize
        >>> data = np.arange(5.0)
        >>> with HostFeed(data, FixedSize(5, 5), jax.random.key(0), 3, start=0, stop=1) as feed:
        ...     for t, parts in feed:
        ...         for rows, packed in parts:
        ...             print(t, rows.tolist(), int(packed.size))
        0 [0.0, 1.0, 2.0] 3
        0 [3.0, 4.0, 0.0] 2
    """

    def __init__(
        self,
        data: Any,
        sampling: Sampling,
        key: jax.Array,
        chunk: int,
        *,
        start: int,
        stop: int,
        depth: int = 2,
        part: tuple[int, int] | None = None,
        device: jax.Device | jax.sharding.Sharding | None = None,
    ) -> None:
        """Checks the arguments; the thread starts with the iteration."""
        if not isinstance(sampling, Sampling):
            raise TypeError(f"sampling = {sampling!r}: expected a dpjax.sampling.Sampling")
        self._rows = len(data) if hasattr(data, "__getitems__") else leading_size("data", data)
        if self._rows == 0:
            raise ValueError("data has no rows: expected at least one to gather from")
        self._chunk = _checks.integer("chunk", chunk, at_least=1)
        self._start = _checks.integer("start", start, at_least=0)
        self._stop = _checks.integer("stop", stop, at_least=self._start)
        self._slots = threading.Semaphore(_checks.integer("depth", depth, at_least=1))
        if sampling.dataset_size != self._rows:
            raise ValueError(
                f"data has {self._rows} rows: expected {sampling.dataset_size}, as in {sampling!r}"
            )
        self._data, self._sampling, self._device, self._range = data, sampling, device, part
        # On the host, so that a draw never waits behind what the device has to do.
        self._host = jax.local_devices(backend="cpu")[0]
        self._key = jax.device_put(key, self._host)
        self._ready: queue.SimpleQueue[_Ready | BaseException] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[tuple[int, Iterator[Part]]]:
        """Yields each step with its parts, once; a step's parts must all be taken before the next.

        The parts of a step come as they get ready. An error in the thread is raised here, in the
        place of the part that it prevented.
        """
        if self._thread is not None or self._closed.is_set():
            raise RuntimeError("the feed was read or closed: expected a new one to read from")
        self._thread = threading.Thread(target=self._work, name="dpjax-host-feed", daemon=True)
        self._thread.start()
        try:
            for t in range(self._start, self._stop):
                parts = _StepParts(self)
                yield t, parts
                if not parts.done:
                    raise RuntimeError(f"step {t} has parts left: expected all of them to be taken")
        finally:
            self.close()

    def close(self) -> None:
        """Ends the thread, after the part it is at; parts that were not taken are dropped."""
        self._closed.set()
        self._slots.release()
        if self._thread is not None:
            self._thread.join()
        while not self._ready.empty():
            self._ready.get()
        self._ready.put(RuntimeError("the feed is closed: expected no more parts to be taken"))

    def __enter__(self) -> "HostFeed":
        """Returns the feed."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the feed."""
        self.close()

    def _take(self) -> _Ready:
        """Returns the next part, and lets the thread prepare another."""
        ready = self._ready.get()
        if isinstance(ready, BaseException):
            self._ready.put(ready)  # who asks again is told again, and does not wait for ever
            raise ready
        self._slots.release()
        return ready

    def _work(self) -> None:
        try:
            for t in range(self._start, self._stop):
                with jax.default_device(self._host):
                    batch = self._sampling.draw(self._key, t, self._range).rows()
                for begin in range(0, max(len(batch), 1), self._chunk):
                    self._slots.acquire()
                    if self._closed.is_set():
                        return
                    end = begin + self._chunk
                    # No name for the part: it would keep it alive during the next gather.
                    self._ready.put(_Ready(self._part(batch[begin:end]), last=end >= len(batch)))
        except BaseException as error:  # whatever it is, the consumer must not wait for ever
            self._ready.put(error)

    def _part(self, batch: np.ndarray) -> Part:
        index = np.zeros(self._chunk, batch.dtype)
        index[: len(batch)] = batch
        rows = gathered(self._data, index)
        rows, numbers = jax.device_put((rows, index), self._device)
        # The size is a scalar, which no sharding splits: JAX puts it where the rows are.
        return Part(rows, Packed(numbers, jnp.int32(len(batch)), self._sampling))


class _StepParts(Iterator[Part]):
    """The parts of one step, as they get ready."""

    def __init__(self, feed: HostFeed) -> None:
        self._feed = feed
        self.done = False

    def __next__(self) -> Part:
        if self.done:
            raise StopIteration
        part, self.done = self._feed._take()
        return part
