"""The samplings: records of how batches are drawn, for the draws and for the accountant."""

from dataclasses import dataclass, field
from typing import Self

import jax

from dpjax import _checks
from dpjax.sampling.base import Sampling
from dpjax.sampling.draws import below_rate, chosen, every_row, ticket_words

__all__ = ["FixedSize", "FullBatch", "Poisson", "TruncatedPoisson"]


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
        return below_rate(key, rows, self.rate)

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
        among = below_rate(key, every_row(self.dataset_size, rows), self.rate)
        return chosen(key, among, self.max_size)[rows]

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
        everyone = every_row(self.dataset_size, rows)
        # Not `jnp.ones`: inside `shard_map` it must vary over the same axes as the key.
        among = ticket_words(key, everyone)[0] >= 0
        return chosen(key, among, self.size)[rows]

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
