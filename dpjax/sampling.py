"""How a batch is drawn. What is drawn here is what the accounting means by the same record."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

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


class Sampling(Record):
    """Draws batches. Subclasses are frozen dataclasses."""

    role: ClassVar[str] = "sampling"

    def draw(self, key: jax.Array, dataset_size: int) -> Drawn:
        """Draws one batch out of `dataset_size` rows; jit-able, of a fixed shape."""
        raise NotImplementedError


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
        indices = jnp.nonzero(taken, size=dataset_size, fill_value=dataset_size)[0]
        return Drawn(indices, jnp.sum(taken, dtype=jnp.int32))


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
        tickets = _tickets(key, dataset_size)
        taken = jnp.sum(tickets < _limit(self.rate), dtype=jnp.int32)
        # The smallest tickets are a uniform choice among those that were drawn.
        order = jnp.argsort(tickets)[: self.max_size]
        return Drawn(order, jnp.minimum(taken, self.max_size))


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
        order = jax.random.permutation(key, dataset_size)
        return Drawn(order[: self.size], jnp.asarray(self.size, jnp.int32))


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Takes every example, every time: no amplification."""

    def draw(self, key: jax.Array, dataset_size: int) -> Drawn:
        """Returns all rows."""
        del key
        return Drawn(jnp.arange(dataset_size), jnp.asarray(dataset_size, jnp.int32))


def _tickets(key: jax.Array, dataset_size: int) -> jax.Array:
    return jax.random.bits(key, (dataset_size,), jnp.uint32)


def _limit(rate: float) -> Any:
    # At rate 1 the one ticket 2^32 - 1 stays out: conservative, by 2^-32.
    return jnp.uint32(min(int(rate * 2**32), 2**32 - 1))


def _same_size(expected: int, given: int) -> None:
    if expected != given:
        raise ValueError(f"dataset_size = {given}: expected {expected}, as the sampling says")
