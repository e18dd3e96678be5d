"""The rows of a batch, taken a fixed number at a time."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Chunk", "Rows", "batch_rows", "gathered_rows", "leading_size", "loss_arguments"]


class Chunk(NamedTuple):
    """Some rows: the examples, which of them are real, and their row indices in the data."""

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
    """

    data: Any
    size: int
    chunk: int
    real: jax.Array | None = None
    indices: jax.Array | None = None
    count: jax.Array | None = None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Everything that may be traced."""
        return self.data, self.real, self.indices, self.count

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
        return Chunk(self._gather(jnp.clip(row, 0, rows - 1)), self.real_at(position), row)

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
        real = jnp.ones(self.size, bool) if self.real is None else self.real
        return Chunk(self.data, real, jnp.arange(self.size))

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
    real = None
    if mask is not None:
        mask = jnp.asarray(mask)
        if mask.shape != (size,):
            raise ValueError(f"mask has shape {mask.shape}: expected ({size},), one per row")
        real = mask > 0
    return Rows(batch, size, _chunk_size(chunk, size), real=real)


def gathered_rows(data: Any, indices: Any, count: Any, chunk: int | None) -> Rows:
    """Returns the rows ``indices[:count]`` of `data`."""
    if leading_size("data", data) == 0:
        raise ValueError("data has no rows: expected at least one to gather from")
    indices = jnp.asarray(indices)
    if indices.ndim != 1 or not jnp.issubdtype(indices.dtype, jnp.integer):
        raise ValueError(
            f"indices has shape {indices.shape} and dtype {indices.dtype}: "
            "expected a vector of integers"
        )
    indices = indices.astype(jnp.int32)  # a narrow dtype could not hold the number of rows
    size = indices.shape[0]
    if count is not None:
        count = jnp.asarray(count)
        if count.shape != () or not jnp.issubdtype(count.dtype, jnp.integer):
            raise ValueError(
                f"count has shape {count.shape} and dtype {count.dtype}: expected an integer"
            )
        count = jnp.clip(count.astype(jnp.int32), 0, size)
    return Rows(data, size, _chunk_size(chunk, size), indices=indices, count=count)


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
