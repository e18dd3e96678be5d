"""Where rows come from: numbered examples, and batches gathered on the host ahead of their use."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks
from dpjax.data import RandomAccess, Split
from dpjax.gradients.rows import leading_size
from dpjax.sampling import Packed, Sampling

__all__ = ["ExampleRows", "Examples", "Part", "examples_of", "gathered", "host_parts"]


class Examples(NamedTuple):
    """Examples as the loop takes them, with a leading axis.

    Attributes:
        x: inputs as they are stored: pixels as bytes, tokens, or features.
        y: class labels.
        row: the example's own number, which its augmentation's key is folded with, so that it does
            not matter on which device or in which part of a batch the example comes.
    """

    x: Any
    y: Any
    row: Any


class ExampleRows:
    """Examples that are read when they are asked for, numbered.

    Args:
        rows: where they come from.
    """

    def __init__(self, rows: RandomAccess) -> None:
        """Keeps the source."""
        self._rows = rows

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self._rows)

    def __getitems__(self, rows: np.ndarray) -> Examples:
        """Returns some of them."""
        return Examples(*self._rows.__getitems__(rows), np.asarray(rows, np.int32))


@overload
def examples_of(split: Split) -> Examples: ...
@overload
def examples_of(split: RandomAccess) -> ExampleRows: ...
def examples_of(split: Split | RandomAccess) -> Examples | ExampleRows:
    """Returns the examples of a split, numbered."""
    if not isinstance(split, Split):
        return ExampleRows(split)
    return Examples(split.x, split.y, np.arange(len(split.y), dtype=np.int32))


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
        step: whose batch it is.
        rows: pytree like the data, with a leading axis of exactly `chunk`.
        packed: which rows of the data set they are, and how many are real.
        last: whether it is the last part of its batch.
    """

    step: int
    rows: Any
    packed: Packed
    last: bool


def host_parts(
    data: Any,
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
