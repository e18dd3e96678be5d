"""How a batch is drawn. What is drawn here is what the accounting means by the same record."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks
from dpjax._record import Record

__all__ = ["Drawn", "FixedSize", "FullBatch", "Poisson", "Sampling", "TruncatedPoisson"]


class Drawn(NamedTuple):
    """A batch, as `dpjax.per_example_grads` takes it: ``grads_of(params, data, **drawn.rows)``.

    Attributes:
        indices: rows of the data, in front those that were drawn, then padding.
        size: how many were drawn; private.
    """

    indices: jax.Array
    size: jax.Array

    @property
    def rows(self) -> dict[str, jax.Array]:
        """The keyword arguments of `per_example_grads`."""
        return {"indices": self.indices, "count": self.size}

    def local(self, start: Any, rows: int) -> "Drawn":
        """Returns the part of the batch in the rows ``start, ..., start + rows - 1``.

        Each device of a mesh draws the whole batch from the same key and keeps what falls into its
        own shard of the data: together they hold exactly the batch that one device would draw.

        Args:
            start: the first row of the shard, possibly traced, as from `jax.lax.axis_index`.
            rows: the number of rows of the shard.

        Returns:
            Indices that count from `start`, padded with `rows`, and how many there are.

        Example:
            >>> drawn = Drawn(indices=jnp.array([1, 4, 5, 7, 9, 10, 10]), size=jnp.array(5))
            >>> indices, size = drawn.local(start=4, rows=4)
            >>> indices.tolist(), int(size)
            ([0, 1, 3, 4], 3)
        """
        offset = self.indices - start
        drawn = jnp.arange(self.indices.shape[0]) < self.size
        inside = drawn & (offset >= 0) & (offset < rows)
        length = min(rows, self.indices.shape[0])
        return Drawn(_in_front(inside, offset, length, fill=rows), _count(inside))


class Sampling(Record):
    """Draws batches. Subclasses are frozen dataclasses."""

    role: ClassVar[str] = "sampling"

    def draw(self, key: jax.Array, dataset_size: int) -> Drawn:
        """Draws one batch out of `dataset_size` rows; jit-able, of a fixed shape.

        The rows come in increasing order. Inside `shard_map`, a key that all devices share draws
        the same batch on all of them; see `Drawn.local`.
        """
        raise NotImplementedError

    def draw_on_host(self, key: jax.Array, dataset_size: int) -> np.ndarray:
        """Draws the batch that `draw` gives for the same key, as NumPy indices without padding.

        It runs on the CPU whatever the default device, and compiles once per sampling and size.

        Example:
            >>> FixedSize(3, 3).draw_on_host(jax.random.key(0), 3)
            array([0, 1, 2], dtype=int32)
        """
        host = jax.local_devices(backend="cpu")[0]
        drawn = _compiled_draw(self, dataset_size)(jax.device_put(key, host))
        return np.asarray(drawn.indices)[: int(drawn.size)]


@dataclass(frozen=True)
class Poisson(Sampling):
    """Takes every example independently with the same probability.

    An example is in when 32 random bits are below ``floor(rate 2^32)``, so that it is never drawn
    with more than the accounted probability, and with less by at most 2^-32.

    Args:
        rate: the probability, in (0, 1]; B / N for an expected batch size of B.

    Example:
        >>> indices, size = Poisson(rate=2**-33).draw(jax.random.key(0), 4)  # none, in effect
        >>> indices.tolist(), int(size)  # 4 is no row: padding
        ([4, 4, 4, 4], 0)
    """

    rate: float

    def __post_init__(self) -> None:
        """Checks the rate."""
        self._set(rate=_checks.fraction("rate", self.rate, one=True))

    def draw(self, key: jax.Array, dataset_size: int) -> Drawn:
        """Draws one batch."""
        taken = _tickets(key, dataset_size) < _limit(self.rate)
        return _drawn(taken, dataset_size)


@dataclass(frozen=True)
class TruncatedPoisson(Sampling):
    """Poisson sampling that drops examples at random when more than `max_size` were drawn.

    Args:
        rate: the probability of each example before truncation, in (0, 1].
        max_size: the largest batch.
        dataset_size: N, which the accounting of the truncation needs.
    """

    rate: float
    max_size: int
    dataset_size: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            rate=_checks.fraction("rate", self.rate, one=True),
            max_size=_checks.integer("max_size", self.max_size, at_least=1),
            dataset_size=_checks.integer("dataset_size", self.dataset_size, at_least=1),
        )
        if self.max_size > self.dataset_size:
            raise ValueError(
                f"max_size = {self.max_size}: expected at most dataset_size = {self.dataset_size}"
            )

    def draw(self, key: jax.Array, dataset_size: int) -> Drawn:
        """Draws one batch; `dataset_size` must be the record's own."""
        _same_size(self.dataset_size, dataset_size)
        key, choice = jax.random.split(key)
        taken = _tickets(key, dataset_size) < _limit(self.rate)
        return _drawn(_chosen(choice, taken, self.max_size), self.max_size)


@dataclass(frozen=True)
class FixedSize(Sampling):
    """Takes a fixed number of examples, uniformly without replacement.

    Args:
        size: the batch size.
        dataset_size: N.
    """

    size: int
    dataset_size: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            size=_checks.integer("size", self.size, at_least=1),
            dataset_size=_checks.integer("dataset_size", self.dataset_size, at_least=1),
        )
        if self.size > self.dataset_size:
            raise ValueError(
                f"size = {self.size}: expected at most dataset_size = {self.dataset_size}"
            )

    def draw(self, key: jax.Array, dataset_size: int) -> Drawn:
        """Draws one batch; `dataset_size` must be the record's own."""
        _same_size(self.dataset_size, dataset_size)
        # Not `jnp.ones`: inside `shard_map` it must differ by device where the key does.
        everyone = _tickets(key, dataset_size) >= 0
        return _drawn(_chosen(key, everyone, self.size), self.size)


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Takes every example, every time: no amplification."""

    def draw(self, key: jax.Array, dataset_size: int) -> Drawn:
        """Returns all rows."""
        del key
        return Drawn(jnp.arange(dataset_size, dtype=jnp.int32), jnp.int32(dataset_size))


def _tickets(key: jax.Array, dataset_size: int) -> jax.Array:
    return jax.random.bits(key, (dataset_size,), jnp.uint32)


def _limit(rate: float) -> Any:
    # At rate 1 the one ticket 2^32 - 1 stays out: conservative, by 2^-32.
    return jnp.uint32(min(int(rate * 2**32), 2**32 - 1))


def _chosen(key: jax.Array, among: jax.Array, size: int) -> jax.Array:
    """Marks `size` of the marked rows, uniformly without replacement; all, where there are fewer.

    Those with the smallest tickets win, and rows that tie for the last places draw again among
    themselves. So the choice is exactly uniform, and nothing is drawn where all may stay.
    """

    def too_many(state: tuple[Any, ...]) -> jax.Array:
        kept, _, _ = state
        return _count(kept) > size

    def draw_again(state: tuple[Any, ...]) -> tuple[Any, ...]:
        kept, tied, turn = state
        tickets = _tickets(jax.random.fold_in(key, turn), among.shape[0])
        last = _order_statistic(tickets, tied, size - _count(kept & ~tied))
        return kept & (~tied | (tickets <= last)), tied & (tickets == last), turn + 1

    kept, _, _ = jax.lax.while_loop(too_many, draw_again, (among, among, jnp.int32(0)))
    return kept


def _order_statistic(tickets: jax.Array, among: jax.Array, rank: jax.Array) -> jax.Array:
    """Returns the ticket of this rank, from 1, among the marked rows: bit by bit from the top."""

    def next_bit(i: jax.Array, found: jax.Array) -> jax.Array:
        trial = found | (jnp.uint32(2**31) >> i.astype(jnp.uint32))
        return jnp.where(_count(among & (tickets < trial)) < rank, trial, found)

    zero = tickets[0] ^ tickets[0]  # differs by device, for `shard_map`, as the tickets do
    return jax.lax.fori_loop(0, 32, next_bit, zero)


def _drawn(taken: jax.Array, length: int) -> Drawn:
    rows = jnp.arange(taken.shape[0], dtype=jnp.int32)
    return Drawn(_in_front(taken, rows, length, fill=taken.shape[0]), _count(taken))


def _in_front(marked: jax.Array, values: jax.Array, length: int, fill: int) -> jax.Array:
    """Returns the marked values in their order, then `fill`."""
    # On a CPU, this scan takes a third of the time of `jnp.cumsum`.
    place = jax.lax.associative_scan(jnp.add, marked.astype(jnp.int32)) - 1
    filled = jnp.full(length, fill, values.dtype)
    return filled.at[jnp.where(marked, place, length)].set(values, mode="drop")


def _count(marked: jax.Array) -> jax.Array:
    return jnp.sum(marked, dtype=jnp.int32)


@cache
def _compiled_draw(sampling: Sampling, dataset_size: int) -> Callable[[jax.Array], Drawn]:
    return jax.jit(lambda key: sampling.draw(key, dataset_size))


def _same_size(expected: int, given: int) -> None:
    if expected != given:
        raise ValueError(f"dataset_size = {given}: expected {expected}, as the sampling says")
