"""The rows of a batch, taken a fixed number at a time."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.sampling import Drawn, Packed

__all__ = [
    "Chunk",
    "Rows",
    "batch_rows",
    "drawn_rows",
    "leading_size",
    "loss_arguments",
    "packed_rows",
]


class Chunk(NamedTuple):
    """Some rows: the examples, which of them are real, and their numbers in the whole data set."""

    examples: Any
    real: jax.Array
    row: jax.Array


@dataclass(frozen=True)
class Rows:
    """A logical batch as `size` positions, of which a chunk is gathered at a time.

    Args:
        data: pytree with a leading axis.
        size: the number of positions.
        chunk: positions per chunk.
        real: (size,) bool, False for padding; None when every position is real.
        indices: (size,) the row of `data` behind each position; None for row = position.
        count: number of leading positions in use, possibly traced; None for all of them.
        numbers: (size,) the row's number in the whole data set; None where `data` is all of it.
        likely: how many positions are in use at most, but with a probability of about 1e-9; None
            for all of them.
    """

    data: Any
    size: int
    chunk: int
    real: jax.Array | None = None
    indices: jax.Array | None = None
    count: jax.Array | None = None
    numbers: jax.Array | None = None
    likely: int | None = None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Everything that may be traced."""
        return self.data, self.real, self.indices, self.count, self.numbers

    @property
    def single(self) -> bool:
        """Whether one chunk holds every position."""
        return self.chunk >= self.size

    @property
    def chunks(self) -> Any:
        """The number of chunks in use: a Python int, or traced when `count` is."""
        used = self.size if self.count is None else self.count
        return (used + self.chunk - 1) // self.chunk

    def take(self, start: Any) -> Chunk:
        """Gathers the chunk that begins at position `start`."""
        position = start + jnp.arange(self.chunk)
        inside = jnp.minimum(position, self.size - 1)
        row = inside if self.indices is None else self.indices[inside]
        rows = leading_size("data", self.data)
        number = row if self.numbers is None else self.numbers[inside]
        return Chunk(self._gather(jnp.clip(row, 0, rows - 1)), self.real_at(position), number)

    def real_at(self, position: jax.Array) -> jax.Array:
        """Returns which of these positions hold a real row."""
        inside = jnp.minimum(position, self.size - 1)
        real = position < (self.size if self.count is None else self.count)
        if self.real is not None:
            real &= self.real[inside]
        if self.indices is not None:
            # A row that does not exist is padding: clipping it would count a neighbour twice.
            row = self.indices[inside]
            real &= (row >= 0) & (row < leading_size("data", self.data))
        return real

    def all(self) -> Chunk:
        """Returns every position as one chunk, without a gather where row = position."""
        if self.indices is not None:
            return self.take(0)
        position = jnp.arange(self.size)
        number = position if self.numbers is None else self.numbers
        return Chunk(self.data, self.real_at(position), number)

    def _gather(self, index: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], self.data)


def loss_arguments(chunk: Chunk, key: jax.Array | None) -> tuple[Any, ...]:
    """Returns a loss's arguments beside the parameters: examples, and a key for each if given.

    It is `key`, folded with the row's index.
    """
    if key is None:
        return (chunk.examples,)
    return chunk.examples, jax.vmap(lambda row: jax.random.fold_in(key, row))(chunk.row)


def batch_rows(batch: Any, mask: Any, chunk: int | None) -> Rows:
    """Returns the rows of a batch; `mask` is (B,), nonzero for real rows."""
    size = leading_size("batch", batch)
    batch = jax.tree.map(jnp.asarray, batch)  # NumPy's cannot be indexed by a traced number
    real = None
    if mask is not None:
        mask = jnp.asarray(mask)
        if mask.shape != (size,):
            raise ValueError(f"mask has shape {mask.shape}: expected ({size},), one per row")
        real = mask > 0
    return Rows(batch, size, _chunk_size(chunk, size), real=real)


def drawn_rows(data: Any, drawn: Drawn, chunk: int | None) -> Rows:
    """Returns the rows of `data` that were drawn; `data` holds the rows that were drawn from."""
    if (rows := leading_size("data", data)) != drawn.length:
        raise ValueError(
            f"data has {rows} rows: expected the {drawn.length} that {drawn.sampling!r} drew from"
        )
    size = drawn.indices.shape[0]
    local = drawn.indices - drawn.start
    count = jnp.clip(drawn.size, 0, size)
    share = drawn.length / (drawn.sampling.dataset_size or drawn.length)
    expected = share * (drawn.sampling.batch_size or size)
    likely = _likely(expected, size)
    # There is room for all rows, of which few are drawn: one chunk holds 999 of 1000 batches.
    chunk = _chunk_size(
        math.ceil(expected + 3 * math.sqrt(expected)) if chunk is None else chunk, size
    )
    return Rows(data, size, chunk, indices=local, count=count, numbers=drawn.indices, likely=likely)


def packed_rows(rows: Any, packed: Packed, chunk: int | None) -> Rows:
    """Returns the rows of a batch that was gathered elsewhere."""
    size = packed.indices.shape[0]
    if (given := leading_size("rows", rows)) != size:
        raise ValueError(f"rows has {given} rows: expected {size}, one for each packed index")
    chunk = _chunk_size(chunk, size)
    count = jnp.clip(packed.size, 0, size)
    likely = _likely(packed.sampling.batch_size or size, size)
    return Rows(rows, size, chunk, count=count, numbers=packed.indices, likely=likely)


def _likely(expected: float, most: int) -> int:
    """Returns six standard deviations of a Poisson number above its mean, or `most`."""
    return min(most, math.ceil(expected + 6 * math.sqrt(expected)))


def leading_size(field: str, tree: Any) -> int:
    """Returns the length of the leading axis that all leaves of `tree` share."""
    found = jax.tree_util.tree_leaves_with_path(tree)
    if not found:
        raise ValueError(f"{field} has no leaves: expected arrays with a leading batch axis")
    sizes: dict[int, str] = {}
    for path, leaf in found:
        name = f"{field}{jax.tree_util.keystr(path)}"
        shape = jnp.shape(leaf)
        if not shape:
            raise ValueError(f"{name} is a scalar: expected a leading batch axis")
        sizes.setdefault(shape[0], name)
    if len(sizes) > 1:
        listed = ", ".join(f"{name} has {size}" for size, name in sizes.items())
        raise ValueError(f"{field} is ragged: {listed} rows; expected one length for all leaves")
    return next(iter(sizes))


def _chunk_size(chunk: int | None, size: int) -> int:
    return size if chunk is None else min(chunk, size)
