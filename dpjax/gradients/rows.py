"""The rows of a batch, taken a fixed number at a time.

Under automatic SPMD the rows lie on several devices, in shards of equal length. A chunk takes the
same number of rows from each shard, so every device computes its own part of every chunk, and no
row leaves its device.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from dpjax.devices import WHOLE, Shards
from dpjax.sampling import Drawn, Packed

__all__ = [
    "BatchRows",
    "Chunk",
    "batch_rows",
    "drawn_rows",
    "leading_size",
    "loss_arguments",
    "packed_rows",
]


class Chunk(NamedTuple):
    """The rows that one pass takes.

    Attributes:
        examples: a pytree with a leading axis.
        real: whether each row is real, not padding.
        row: each row's number in the whole data set.
        shards: how the rows are split over devices.
    """

    examples: chex.ArrayTree
    real: jax.Array
    row: jax.Array
    shards: Shards = WHOLE


@dataclass(frozen=True)
class BatchRows:
    """A logical batch as `size` positions, gathered one chunk at a time.

    Args:
        data: pytree with a leading axis.
        size: the number of positions, divided equally among the shards.
        chunk: positions per chunk, taken equally from the shards.
        real: (size,) bool, False for padding; None when every position is real.
        indices: (size,) the row of the shard's data at each position; None for row = position.
        count: (shards,) the number of leading positions in use in each shard, possibly traced; None
            for all of them.
        numbers: (size,) the row's number in the whole data set; None if `data` is all of it.
        share: a bound on the positions in use in a shard, exceeded with a probability below 1e-20;
            None for all of them.
        batch: the same bound for the logical batch with all its parts; None if these rows are all.
        parts: how many parts like this one hold any logical batch within that bound.
        shards: how data and positions are split over devices.
    """

    data: chex.ArrayTree
    size: int
    chunk: int
    real: jax.Array | None = None
    indices: jax.Array | None = None
    count: jax.Array | None = None
    numbers: jax.Array | None = None
    share: int | None = None
    batch: int | None = None
    parts: int = 1
    shards: Shards = WHOLE

    @property
    def arrays(self) -> tuple[chex.ArrayTree, ...]:
        """Everything that may be traced."""
        return self.data, self.real, self.indices, self.count, self.numbers

    @property
    def single(self) -> bool:
        """Whether one chunk holds every position."""
        return self.chunk >= self.size

    @property
    def length(self) -> int:
        """Positions in a shard."""
        return self.size // self.shards.count

    @property
    def step(self) -> int:
        """The number of positions that a chunk takes from each shard."""
        return self.chunk // self.shards.count

    @property
    def likely(self) -> int:
        """A bound on the positions in use, exceeded with a probability below 1e-20."""
        return self.shards.count * (self.length if self.share is None else self.share)

    @property
    def likely_batch(self) -> int:
        """The same bound for the logical batch, whether these rows are all of it or a part.

        It does not depend on how many parts a batch turned out to have, which is private.
        """
        return self.likely if self.batch is None else self.batch

    @property
    def chunks(self) -> chex.ArrayTree:
        """The number of chunks in use: a Python int, or traced if `count` is.

        All devices use the number for the shard with the most rows: a pass may hold a collective,
        so all must make equally many passes.
        """
        used = self.length if self.count is None else jnp.max(self.count)
        return (used + self.step - 1) // self.step

    def take(self, start: chex.Numeric) -> Chunk:
        """Gathers the chunk that begins at position `start` of every shard."""
        offset = start + jnp.arange(self.step)
        inside = jnp.minimum(offset, self.length - 1)
        place = self.of_shards(jnp.arange(self.size), inside)
        number = place if self.numbers is None else self.of_shards(self.numbers, inside)
        if self.indices is None:
            examples = jax.tree.map(
                lambda leaf: self.of_shards(jnp.asarray(leaf), inside), self.data
            )
        else:
            examples = self._gather(self.of_shards(self.indices, inside))
        return Chunk(self.shards.pinned(examples), self._real(offset), number, self.shards)

    def of_shards(self, leaf: jax.Array, offset: jax.Array) -> jax.Array:
        """Returns the entries of an array over all positions at these offsets in every shard."""
        if self.shards.count == 1:
            return leaf[offset]
        found = leaf.reshape(self.shards.count, self.length, *leaf.shape[1:])[:, offset]
        return found.reshape(-1, *leaf.shape[1:])

    def real_rows(self) -> jax.Array:
        """Returns which positions hold a real row."""
        return self._real(jnp.arange(self.length))

    def _real(self, offset: jax.Array) -> jax.Array:
        """Returns which of these offsets hold a real row, for every shard."""
        inside = jnp.minimum(offset, self.length - 1)
        count = jnp.full(self.shards.count, self.length) if self.count is None else self.count
        real = (offset < count[:, None]).reshape(-1)
        if self.real is not None:
            real &= self.of_shards(self.real, inside)
        if self.indices is not None:
            # An index out of range is padding: clamped into range, it would count a row twice.
            row = self.of_shards(self.indices, inside)
            real &= (row >= 0) & (row < leading_size("data", self.data) // self.shards.count)
        return real

    def all(self) -> Chunk:
        """Returns every position as one chunk, without a gather if row = position."""
        if self.indices is not None:
            return self.take(0)
        number = jnp.arange(self.size) if self.numbers is None else self.numbers
        return Chunk(self.shards.pinned(self.data), self.real_rows(), number, self.shards)

    def _gather(self, index: jax.Array) -> chex.ArrayTree:
        """Returns these rows of the data, each from its own shard."""
        rows = leading_size("data", self.data) // self.shards.count
        index = jnp.clip(index, 0, rows - 1)
        if self.shards.count == 1:
            return jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], self.data)
        of_shard = index.reshape(self.shards.count, -1)

        def gathered(leaf: chex.Array) -> jax.Array:
            leaf = jnp.asarray(leaf)
            parts = leaf.reshape(self.shards.count, rows, *leaf.shape[1:])
            return jax.vmap(lambda part, own: part[own])(parts, of_shard).reshape(
                index.shape + leaf.shape[1:]
            )

        return jax.tree.map(gathered, self.data)


def loss_arguments(chunk: Chunk, key: jax.Array | None) -> tuple[chex.ArrayTree, ...]:
    """Returns the loss's arguments after the parameters: the examples, and a key for each if given.

    An example's key is `key` folded with its row number.
    """
    if key is None:
        return (chunk.examples,)
    return chunk.examples, jax.vmap(lambda row: jax.random.fold_in(key, row))(chunk.row)


def batch_rows(
    batch: chex.ArrayTree,
    mask: chex.Array | None,
    chunk: int | None,
    sharding: NamedSharding | None = None,
) -> BatchRows:
    """Returns the rows of a batch; `mask` is (B,), nonzero for real rows."""
    size = leading_size("batch", batch)
    batch = jax.tree.map(jnp.asarray, batch)  # a traced number cannot index a NumPy array
    real = None
    if mask is not None:
        try:
            mask = jnp.asarray(mask)
        except TypeError as error:
            raise TypeError(f"mask = {mask!r}: expected {size} numbers, 0 for padding") from error
        if mask.shape != (size,):
            raise ValueError(f"mask has shape {mask.shape}: expected ({size},), one per row")
        real = mask > 0
    shards = Shards.of(batch, size, sharding)
    return BatchRows(batch, size, _chunk_size(chunk, size, shards), real=real, shards=shards)


def drawn_rows(
    data: chex.ArrayTree, drawn: Drawn, chunk: int | None, sharding: NamedSharding | None = None
) -> BatchRows:
    """Returns the drawn rows of `data`, which must be the rows that were drawn from."""
    if (rows := leading_size("data", data)) != drawn.length:
        raise ValueError(
            f"data has {rows} rows: expected the {drawn.length} that {drawn.sampling!r} drew from"
        )
    shards = Shards.of(data, rows, drawn.sharding or sharding)
    if drawn.sharding is None:
        drawn = _by_shard(drawn, shards.count)
    elif drawn.indices.shape[0] != shards.count:
        raise ValueError(
            f"a batch drawn in {len(drawn.indices)} parts with data in {shards.count}: expected "
            "data that was put on the mesh by jax.device_put, and a step inside jax.jit"
        )
    count, most = drawn.indices.shape
    numbers = drawn.indices.reshape(-1)
    local = (drawn.indices - drawn.start[:, None]).reshape(-1)
    dataset_size = drawn.sampling.dataset_size or rows
    expected = drawn.sampling.rate * rows / count
    # There is a position for every row, but few are drawn: one chunk holds 999 of 1000 batches.
    spare = 3 if count == 1 else 4
    usual = count * math.ceil(expected + spare * math.sqrt(expected))
    return BatchRows(
        data,
        count * most,
        _chunk_size(usual if chunk is None else chunk, count * most, shards),
        indices=local,
        count=jnp.clip(drawn.size, 0, most),
        numbers=numbers,
        share=drawn.sampling.likely_rows(rows // count),
        batch=drawn.sampling.likely_rows(dataset_size),
        parts=-(-dataset_size // rows),
        shards=shards,
    )


def _by_shard(drawn: Drawn, shards: int) -> Drawn:
    """Splits a batch drawn from all rows by shard; this relies on increasing row numbers."""
    length = drawn.length // shards
    most = min(drawn.indices.shape[0], length)
    start = drawn.start + length * jnp.arange(shards, dtype=jnp.int32)
    if shards == 1:
        return replace(drawn, indices=drawn.indices[None], size=drawn.size[None], start=start)
    taken = jnp.arange(drawn.indices.shape[0]) < drawn.size
    below = (drawn.indices < start[:, None]) & taken
    first = jnp.sum(below, axis=1, dtype=jnp.int32)
    size = jnp.append(first[1:], drawn.size) - first
    places = jnp.minimum(first[:, None] + jnp.arange(most), drawn.indices.shape[0] - 1)
    return replace(drawn, indices=drawn.indices[places], size=size, start=start)


def packed_rows(
    rows: chex.ArrayTree, packed: Packed, chunk: int | None, sharding: NamedSharding | None = None
) -> BatchRows:
    """Returns the rows of a batch that was gathered elsewhere."""
    size = packed.indices.shape[0]
    if (given := leading_size("rows", rows)) != size:
        raise ValueError(f"rows has {given} rows: expected {size}, one for each packed index")
    shards = Shards.of(rows, size, sharding)
    length = size // shards.count
    # Real rows come first, so they lie on the first devices.
    count = jnp.clip(packed.size - length * jnp.arange(shards.count), 0, length)
    batch = packed.sampling.likely_rows(packed.sampling.dataset_size or size)
    return BatchRows(
        rows,
        size,
        _chunk_size(chunk, size, shards),
        count=count,
        numbers=packed.indices,
        share=min(batch, length),
        batch=batch,
        parts=-(-batch // size),
        shards=shards,
    )


def leading_size(field: str, tree: chex.ArrayTree) -> int:
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


def _chunk_size(chunk: int | None, size: int, shards: Shards) -> int:
    """Returns the rows per chunk: the same number from each shard, and at least one."""
    return size if chunk is None else min(shards.count * -(-chunk // shards.count), size)
