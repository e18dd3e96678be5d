"""Samplings: records that draw batches and tell the accountant how they were drawn."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import _checks, noise
from dpjax._record import Record
from dpjax.spmd import leading_axes

__all__ = ["Drawn", "FixedSize", "FullBatch", "Packed", "Poisson", "Sampling", "TruncatedPoisson"]

_MOST_ROWS = 2**31 - 1  # row numbers are int32
_PARTS = 4


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("indices", "size", "start"),
    meta_fields=("sampling", "length", "sharding"),
)
@dataclass(frozen=True)
class Drawn:
    """A batch, or the part of it in some range of rows: ``grads_of(params, data, drawn)``.

    Attributes:
        indices: row numbers in the whole data set, increasing, followed by padding; private.
        size: the number of rows drawn; private.
        start: the first row of the range; 0 for the whole data set.
        sampling: the sampling that drew it.
        length: the number of rows in the range, which is also that of the data it is used with.
        sharding: how the rows are split over devices; the arrays above then have a leading axis
            that is split in the same way. None if it was not given.

    Privacy:
        Which rows were drawn, and how many, must stay secret: amplification by sampling relies on
        it.
    """

    indices: jax.Array
    size: jax.Array
    start: jax.Array
    sampling: "Sampling"
    length: int
    sharding: NamedSharding | None = None

    def rows(self) -> np.ndarray:
        """Returns the row numbers as a NumPy array, without padding; outside `jit` only.

        Example:
            >>> FullBatch(3).draw(jax.random.key(0), step=0).rows()
            array([0, 1, 2], dtype=int32)
        """
        parts = np.atleast_2d(np.asarray(self.indices))
        sizes = np.atleast_1d(np.asarray(self.size))
        return np.concatenate([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def packed(self) -> "Packed":
        """Returns the batch for use with rows gathered elsewhere, in the order of `rows`.

        Raises:
            ValueError: if the batch was drawn with a sharding, because its rows are on the devices.

        Example:
            >>> FullBatch(3).draw(jax.random.key(0), step=0).packed().indices.tolist()
            [0, 1, 2]
        """
        if self.sharding is not None:
            raise ValueError(
                "a batch drawn with a sharding is gathered on its devices: expected one drawn "
                "without, for rows that were gathered elsewhere"
            )
        return Packed(self.indices, self.size, self.sampling)


@partial(
    jax.tree_util.register_dataclass, data_fields=("indices", "size"), meta_fields=("sampling",)
)
@dataclass(frozen=True)
class Packed:
    """A batch whose rows were gathered elsewhere: ``grads_of(params, rows, drawn.packed())``.

    Attributes:
        indices: the row number in the whole data set of each row; private.
        size: the number of real rows, the others being padding; private.
        sampling: the sampling that drew it.
    """

    indices: jax.Array
    size: jax.Array
    sampling: "Sampling"

    def part(self, begin: int, length: int) -> "Packed":
        """Returns the part of the batch at positions ``begin, ..., begin + length - 1``.

        Args:
            begin: the first position.
            length: the number of positions; those beyond the end are padding.

        Example:
            >>> packed = FullBatch(5).draw(jax.random.key(0), step=0).packed()
            >>> last = packed.part(3, 3)
            >>> last.indices.tolist(), int(last.size)
            ([3, 4, 0], 2)
        """
        indices = self.indices[begin : begin + length]
        padded = jnp.pad(indices, (0, length - indices.shape[0]))
        return Packed(padded, jnp.clip(self.size - begin, 0, length), self.sampling)


class Sampling(Record):
    """Draws batches: `Poisson`, `TruncatedPoisson`, `FixedSize` or `FullBatch`.

    Attributes:
        rate: the probability that an example is drawn, before any truncation.
        batch_size: B, the expected batch size, before any truncation.
        dataset_size: N, the number of examples; None if it is not needed.
    """

    role: ClassVar[str] = "sampling"

    if TYPE_CHECKING:  # at run time, dataclasses would take these properties for default values

        @property
        def rate(self) -> float:
            """The probability that an example is drawn."""

        @property
        def batch_size(self) -> float | None:
            """B."""

        @property
        def dataset_size(self) -> int | None:
            """N."""

    def draw(
        self,
        key: chex.PRNGKey,
        step: chex.Numeric,
        part: tuple[chex.Numeric, int] | None = None,
        sharding: NamedSharding | None = None,
    ) -> Drawn:
        """Draws the batch of a step. Works under `jit`: the shape is fixed.

        Whether row i is in the batch of step t depends on (key, t, i) and, where the size is
        capped, on the random numbers of the other rows; never on devices, processes or parts.

        Args:
            key: the key of the run, the same at every step. It may be the key given to `privatize`:
                each derives its own stream.
            step: t, from 0; possibly traced.
            part: ``(start, rows)`` for the same batch restricted to the rows
                ``start, ..., start + rows - 1``. `start` may be traced, as from
                `jax.lax.axis_index`. `Poisson` draws only for these rows; the others draw for all N
                and keep the part.
            sharding: how the rows of the data are split over a mesh, ``data.sharding``: each device
                then draws for the rows that it holds. Every device holds the same number of rows,
                so the data may have a few rows more than N at the end, which are never drawn.

        Returns:
            The batch, of a fixed number of rows, some of which may be padding; see `Drawn`.

        Raises:
            TypeError: if `key` is not a JAX key.
            ValueError: if the number of rows is unknown or does not fit int32, or both `part` and
                `sharding` are given.

        Example:
            >>> sampling = Poisson(batch_size=2, dataset_size=4)
            >>> key = jax.random.key(0)
            >>> whole = sampling.draw(key, step=7)
            >>> first, last = (sampling.draw(key, 7, part=(start, 2)) for start in (0, 2))
            >>> whole.rows().tolist() == [*first.rows().tolist(), *last.rows().tolist()]
            True
        """
        if self.dataset_size is None:
            raise ValueError("dataset_size = None: expected the number of rows to draw from")
        if self.dataset_size > _MOST_ROWS:
            raise ValueError(
                f"dataset_size = {self.dataset_size}: expected at most 2^31 - 1 rows to draw from"
            )
        if sharding is not None:
            if part is not None:
                raise ValueError(f"part = {part!r} with a sharding: expected one of them")
            return _drawn_by_shard(self, noise.checked_key(key), jnp.asarray(step), sharding)
        start, length = (0, self.dataset_size) if part is None else part
        length = _checks.integer("part[1]", length, at_least=1)
        if isinstance(start, int | np.integer):
            start = _checks.integer("part[0]", start, at_least=0)
        return _drawn(self, noise.checked_key(key), jnp.asarray(step), jnp.int32(start), length)

    def _taken(self, key: jax.Array, rows: jax.Array) -> jax.Array:
        """Returns a mask of the rows, all below N, that are in the batch of a step's key."""
        raise NotImplementedError

    def most_rows(self, length: int) -> int:
        """Returns the size of the largest batch that can be drawn from `length` rows.

        Args:
            length: how many rows of the data are drawn from.

        Returns:
            At most `length`; public, like the sampling.

        Example:
            >>> FixedSize(3, 10).most_rows(10), Poisson(3, 10).most_rows(10)
            (3, 10)
        """
        return length

    def likely_rows(self, length: int) -> int:
        """Returns a bound on the rows that are drawn from `length` rows, not exceeded in practice.

        ``m + t`` with m the expected number and ``t^2 = 2 ln(1e20) (m + t / 3)``. By Bernstein's
        inequality, more are drawn with a probability below 1e-20.

        Args:
            length: how many rows of the data are drawn from.

        Returns:
            At most `most_rows`; public, like the sampling.

        Example:
            >>> Poisson(256, 60_000).likely_rows(60_000)
            426

        Reference: Boucheron, Lugosi and Massart, Concentration Inequalities, 2013, section 2.8.
        """
        mean = self.rate * length
        third = math.log(1e20) / 3
        above = third + math.sqrt(third**2 + 6 * third * mean)
        return min(self.most_rows(length), math.ceil(mean + above))


@dataclass(frozen=True)
class Poisson(Sampling):
    """Includes each example independently with probability ``rate = batch_size / dataset_size``.

    An example is included if its 64 random bits are below ``floor(rate 2^64)``. The probability is
    thus never above the accounted rate, and at most 2^-64 below it.

    Args:
        batch_size: B, the expected batch size, in [1, N].
        dataset_size: N, the number of examples.
        rate: B / N, derived from the two; if you only know the rate, use `with_rate`.

    Raises:
        ValueError: if a number is outside its range, or `rate` contradicts the sizes.

    Privacy:
        Relation: add or remove one example ("pld" also supports replace-one). Event: a
            Poisson-sampled release per step. Shuffled batches of fixed size are *not* Poisson
            samples.

    Example:
        >>> sampling = Poisson(batch_size=256, dataset_size=60_000)
        >>> round(sampling.rate, 6)
        0.004267
    """

    batch_size: float | None = None
    dataset_size: int | None = None
    rate: float = field(default=None, kw_only=True)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Checks the fields and derives the rate."""
        if self.rate is None:
            size = _dataset_size(self.dataset_size)  # type: ignore[unreachable]
            batch = _batch_size("batch_size", self.batch_size, size)
            self._set(batch_size=batch, dataset_size=size, rate=batch / size)
            return
        rate = _checks.fraction("rate", self.rate, one=True)
        self._set(rate=rate)
        if self.dataset_size is None:
            if self.batch_size is not None:
                raise ValueError(f"batch_size = {self.batch_size!r}: expected a dataset_size too")
            return
        size = _dataset_size(self.dataset_size)
        asked = rate * size if self.batch_size is None else self.batch_size
        batch = _batch_size("batch_size", asked, size)
        if not abs(batch - rate * size) <= 1e-9 * batch:
            raise ValueError(
                f"rate = {rate!r}: expected batch_size / dataset_size = {batch / size}"
            )
        self._set(batch_size=batch, dataset_size=size)

    @classmethod
    def with_rate(cls, rate: float, dataset_size: int | None = None) -> Self:
        """Returns the sampling with this rate; without `dataset_size` it is for accounting only.

        Args:
            rate: the probability of each example, in (0, 1].
            dataset_size: N, needed to draw batches.

        Example:
            >>> Poisson.with_rate(0.01).rate
            0.01
        """
        return cls(None, dataset_size, rate=rate)

    def replace(self, **changes: object) -> Self:
        """Returns a copy with some fields changed.

        Args:
            **changes: new values. A new size changes the rate; a new rate changes the batch size.

        Example:
            >>> Poisson(10, 100).replace(batch_size=20).rate
            0.2
        """
        if "rate" in changes:
            changes.setdefault("batch_size", None)
        elif changes and self.batch_size is not None:
            changes["rate"] = None
        return super().replace(**changes)

    def _taken(self, key: jax.Array, rows: jax.Array) -> jax.Array:
        return _below_rate(key, rows, self.rate)

    def __repr__(self) -> str:
        """Shows the constructor call that makes it."""
        if self.dataset_size is None:
            return f"Poisson.with_rate({self.rate!r})"
        return f"Poisson(batch_size={self.batch_size!r}, dataset_size={self.dataset_size!r})"


@dataclass(frozen=True)
class TruncatedPoisson(Sampling):
    """Poisson sampling that drops examples at random if more than `max_size` were drawn.

    Use it where memory sets a hard limit on the batch.

    Args:
        batch_size: B, the expected batch size before truncation, in [1, N].
        dataset_size: N, the number of examples.
        max_size: the size of the largest batch, in [1, N].

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Relation: add or remove one example ("pld" also supports replace-one). Event: a
            `TruncatedSubsampledGaussianDpEvent` per step. It costs a little more than `Poisson`,
            because one example can displace another.

    Example:
        >>> sampling = TruncatedPoisson(batch_size=3, dataset_size=6, max_size=4)
        >>> max(len(sampling.draw(jax.random.key(0), t).rows()) for t in range(20))
        4
    """

    batch_size: float
    dataset_size: int
    max_size: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        size = _dataset_size(self.dataset_size)
        self._set(
            dataset_size=size,
            batch_size=_batch_size("batch_size", self.batch_size, size),
            max_size=_checks.integer("max_size", self.max_size, at_least=1),
        )
        if self.max_size > size:
            raise ValueError(f"max_size = {self.max_size}: expected at most dataset_size = {size}")

    @property
    def rate(self) -> float:
        """The probability of each example before truncation."""
        return self.batch_size / self.dataset_size

    def _taken(self, key: jax.Array, rows: jax.Array) -> jax.Array:
        among = _below_rate(key, _every_row(self.dataset_size, rows), self.rate)
        return _chosen(key, among, self.max_size)[rows]

    def most_rows(self, length: int) -> int:
        """Returns the size of the largest batch that can be drawn from `length` rows."""
        return min(self.max_size, length)


@dataclass(frozen=True)
class FixedSize(Sampling):
    """Draws a fixed number of examples uniformly without replacement, independently at every step.

    Args:
        size: B, the batch size, in [1, N].
        dataset_size: N, the number of examples.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Relation: replace one example, which can change the sum by twice the bound; adding or
            removing one is not defined for batches of fixed size. Event: a release per step,
            sampled without replacement.
        Accountants: "rdp" and "tcdp".

    Example:
        >>> sampling = FixedSize(size=2, dataset_size=6)
        >>> [len(sampling.draw(jax.random.key(0), t).rows()) for t in range(3)]
        [2, 2, 2]
    """

    size: int
    dataset_size: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            size=_checks.integer("size", self.size, at_least=1),
            dataset_size=_dataset_size(self.dataset_size),
        )
        if self.size > self.dataset_size:
            raise ValueError(
                f"size = {self.size}: expected at most dataset_size = {self.dataset_size}"
            )

    @property
    def batch_size(self) -> float:
        """The batch size."""
        return float(self.size)

    @property
    def rate(self) -> float:
        """The fraction of the examples in a batch, B / N."""
        return self.size / self.dataset_size

    def _taken(self, key: jax.Array, rows: jax.Array) -> jax.Array:
        everyone = _every_row(self.dataset_size, rows)
        # Not `jnp.ones`: inside `shard_map` it must vary over the same axes as the key.
        among = _tickets(key, everyone)[0] >= 0
        return _chosen(key, among, self.size)[rows]

    def most_rows(self, length: int) -> int:
        """Returns the size of the largest batch that can be drawn from `length` rows."""
        return min(self.size, length)


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Uses every example at every step.

    Args:
        dataset_size: N, the number of examples; may be None for accounting only.

    Raises:
        ValueError: if `dataset_size` is below 1.

    Privacy:
        Relation: add or remove one example, or replace one. Event: a plain release per step,
        without amplification by sampling.

    Example:
        >>> FullBatch(100).rate
        1.0
    """

    dataset_size: int | None = None

    def __post_init__(self) -> None:
        """Checks the field."""
        if self.dataset_size is not None:
            self._set(dataset_size=_dataset_size(self.dataset_size))

    @property
    def batch_size(self) -> float | None:
        """N, if it is known."""
        return None if self.dataset_size is None else float(self.dataset_size)

    @property
    def rate(self) -> float:
        """1."""
        return 1.0

    def _taken(self, key: jax.Array, rows: jax.Array) -> jax.Array:
        del key
        return rows >= 0


def _dataset_size(value: int | None) -> int:
    return _checks.integer("dataset_size", value, at_least=1)


def _batch_size(name: str, value: float | None, dataset_size: int) -> float:
    batch = _checks.finite(name, value)
    if not 1 <= batch <= dataset_size * (1 + 1e-9):
        raise ValueError(
            f"{name} = {value!r}: expected the number of examples in a batch, at least 1 and at "
            f"most dataset_size = {dataset_size}"
        )
    whole = float(round(batch))
    return whole if abs(batch - whole) <= 1e-9 * whole else batch


# Jitted, so that an eager loop compiles it once.
@partial(jax.jit, static_argnames=("sampling", "length"))
def _drawn(
    sampling: Sampling, key: jax.Array, step: jax.Array, start: jax.Array, length: int
) -> Drawn:
    size = sampling.dataset_size or 0  # known: `draw` has checked it
    own = noise.fold(noise.stream(key, "sampling"), step)
    rows = start + jnp.arange(length, dtype=jnp.int32)
    taken = sampling._taken(own, jnp.minimum(rows, size - 1)) & (rows < size)
    return Drawn(
        _in_front(taken, rows, sampling.most_rows(length), fill=size),
        _count(taken),
        start,
        sampling,
        length,
    )


def _drawn_by_shard(
    sampling: Sampling, key: jax.Array, step: jax.Array, sharding: NamedSharding
) -> Drawn:
    """Draws on each device for the rows it holds; no device learns of another's."""
    axes = leading_axes(sharding)
    context = jax.sharding.get_abstract_mesh()  # its axes may be automatic at the moment
    mesh = sharding.mesh if context.empty else context
    shards = math.prod(mesh.shape[axis] for axis in axes)
    length = -(-(sampling.dataset_size or 0) // shards)

    def of_device(key: jax.Array, step: jax.Array) -> tuple[jax.Array, ...]:
        shard = jax.lax.axis_index(axes) if axes else jnp.int32(0)
        own = _drawn(sampling, key, step, shard * length, length)
        return own.indices[None], own.size[None], own.start[None]

    everywhere, split = PartitionSpec(), PartitionSpec(axes)
    by_device = jax.shard_map(
        of_device, mesh=mesh, in_specs=(everywhere, everywhere), out_specs=split
    )
    indices, size, start = by_device(key, step)
    where = NamedSharding(sharding.mesh, split)
    return Drawn(indices, size, start, sampling, shards * length, where)


def _every_row(dataset_size: int, like: jax.Array) -> jax.Array:
    """Returns all row numbers; inside `shard_map` they vary over the same axes as `like`."""
    return jnp.arange(dataset_size, dtype=jnp.int32) + (like[0] ^ like[0])


def _tickets(key: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns 64 random bits for each row, as two words."""
    # The first counter word is 1: blocks that begin with 0 are keys that `noise.fold` makes.
    return noise.random_words(key, jnp.uint32(1), rows.astype(jnp.uint32))


def _by_row(fn: Callable[[jax.Array], jax.Array], rows: jax.Array) -> jax.Array:
    """Returns ``fn(rows)``, for a function of single rows that draws their tickets."""

    def in_parts(rows: jax.Array) -> jax.Array:
        # Else XLA's CPU compiler draws the tickets again wherever `fn(rows)` is read.
        parts = jnp.pad(rows, (0, -len(rows) % _PARTS)).reshape(_PARTS, -1)
        return jax.lax.map(fn, parts).reshape(-1)[: len(rows)]

    return jax.lax.platform_dependent(rows, cpu=in_parts, default=fn)


def _below_rate(key: jax.Array, rows: jax.Array, rate: float) -> jax.Array:
    return _below_limit(key, rows, int(Fraction(rate) * 2**64))


def _below_limit(key: jax.Array, rows: jax.Array, limit: int) -> jax.Array:
    first, second = jnp.uint32(limit >> 32 & 0xFFFFFFFF), jnp.uint32(limit & 0xFFFFFFFF)

    def below(rows: jax.Array) -> jax.Array:
        high, low = _tickets(key, rows)
        if limit == 2**64:
            return high >= 0
        return (high < first) | ((high == first) & (low < second))

    return _by_row(below, rows)


def _chosen(key: jax.Array, among: jax.Array, size: int) -> jax.Array:
    """Keeps `size` of the marked rows, uniformly without replacement, or all if there are fewer.

    The rows with the smallest tickets win, and rows that tie for the last places draw again among
    themselves. So the choice is exactly uniform, and nothing is drawn if all may stay.
    """
    choice = noise.stream(key, "choice")
    rows = jnp.arange(among.shape[0], dtype=jnp.int32)

    def too_many(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        kept, _, _ = state
        return _count(kept) > size

    def draw_again(
        state: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        kept, tied, turn = state
        own = noise.fold(choice, turn)
        tickets = _by_row(lambda rows: _tickets(own, rows)[0], rows)
        last = _order_statistic(tickets, tied, size - _count(kept & ~tied))
        return kept & (~tied | (tickets <= last)), tied & (tickets == last), turn + 1

    kept, _, _ = jax.lax.while_loop(too_many, draw_again, (among, among, jnp.int32(0)))
    return kept


def _order_statistic(tickets: jax.Array, among: jax.Array, rank: jax.Array) -> jax.Array:
    """Returns the ticket of this rank, from 1, among the marked rows, found bit by bit."""

    def next_bit(i: jax.Array, found: jax.Array) -> jax.Array:
        trial = found | (jnp.uint32(2**31) >> i.astype(jnp.uint32))
        return jnp.where(_count(among & (tickets < trial)) < rank, trial, found)

    # Inside `shard_map` it must vary over the same axes as the tickets and marks.
    zero = (tickets[0] ^ tickets[0]) * among[0].astype(jnp.uint32)
    return jax.lax.fori_loop(0, 32, next_bit, zero)


def _in_front(marked: jax.Array, values: jax.Array, length: int, fill: int) -> jax.Array:
    """Returns the marked values in order, followed by `fill`."""
    # On a CPU, this scan takes a third of the time of `jnp.cumsum`.
    place = jax.lax.associative_scan(jnp.add, marked.astype(jnp.int32)) - 1
    filled = jnp.full(length, fill, values.dtype)
    return filled.at[jnp.where(marked, place, length)].set(values, mode="drop")


def _count(marked: jax.Array) -> jax.Array:
    return jnp.sum(marked, dtype=jnp.int32)
