"""Which rows are drawn: 64-bit random tickets are compared with a rate or with each other."""

from collections.abc import Callable
from fractions import Fraction

import jax
import jax.numpy as jnp

from dpjax import noise

__all__ = ["below_rate", "chosen", "count", "every_row", "in_front", "ticket_words"]

_PARTS = 4


def every_row(dataset_size: int, like: jax.Array) -> jax.Array:
    """Returns all row numbers; inside `shard_map` they vary over the same axes as `like`."""
    return jnp.arange(dataset_size, dtype=jnp.int32) + (like[0] ^ like[0])


def ticket_words(key: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns 64 random bits for each row, as two words."""
    # The first counter word is 1: blocks that begin with 0 are the keys made by `noise.fold`.
    return noise.random_words(key, jnp.uint32(1), rows.astype(jnp.uint32))


def _by_row(fn: Callable[[jax.Array], jax.Array], rows: jax.Array) -> jax.Array:
    """Returns ``fn(rows)``, for an elementwise `fn` that draws tickets."""

    def in_parts(rows: jax.Array) -> jax.Array:
        # Otherwise XLA's CPU compiler draws the tickets again wherever `fn(rows)` is read.
        parts = jnp.pad(rows, (0, -len(rows) % _PARTS)).reshape(_PARTS, -1)
        return jax.lax.map(fn, parts).reshape(-1)[: len(rows)]

    return jax.lax.platform_dependent(rows, cpu=in_parts, default=fn)


def below_rate(key: jax.Array, rows: jax.Array, rate: float) -> jax.Array:
    """Returns a mask of the rows whose 64 bits are below ``floor(rate 2^64)``."""
    return _below_limit(key, rows, int(Fraction(rate) * 2**64))


def _below_limit(key: jax.Array, rows: jax.Array, limit: int) -> jax.Array:
    first, second = jnp.uint32(limit >> 32 & 0xFFFFFFFF), jnp.uint32(limit & 0xFFFFFFFF)

    def below(rows: jax.Array) -> jax.Array:
        high, low = ticket_words(key, rows)
        if limit == 2**64:
            return high >= 0
        return (high < first) | ((high == first) & (low < second))

    return _by_row(below, rows)


def chosen(key: jax.Array, among: jax.Array, size: int) -> jax.Array:
    """Keeps `size` of the marked rows, uniformly without replacement, or all if there are fewer.

    The rows with the smallest tickets are kept; rows that tie for the last places draw again among
    themselves. The choice is therefore exactly uniform, and nothing is drawn if all rows may stay.
    """
    choice = noise.stream(key, "choice")
    rows = jnp.arange(among.shape[0], dtype=jnp.int32)

    def too_many(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        kept, _, _ = state
        return count(kept) > size

    def draw_again(
        state: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        kept, tied, turn = state
        own = noise.fold(choice, turn)
        tickets = _by_row(lambda rows: ticket_words(own, rows)[0], rows)
        last = _order_statistic(tickets, tied, size - count(kept & ~tied))
        return kept & (~tied | (tickets <= last)), tied & (tickets == last), turn + 1

    kept, _, _ = jax.lax.while_loop(too_many, draw_again, (among, among, jnp.int32(0)))
    return kept


def _order_statistic(tickets: jax.Array, among: jax.Array, rank: jax.Array) -> jax.Array:
    """Returns the ticket of this rank, from 1, among the marked rows, found bit by bit."""

    def next_bit(i: jax.Array, found: jax.Array) -> jax.Array:
        trial = found | (jnp.uint32(2**31) >> i.astype(jnp.uint32))
        return jnp.where(count(among & (tickets < trial)) < rank, trial, found)

    # Inside `shard_map` it must vary over the same axes as the tickets and marks.
    zero = (tickets[0] ^ tickets[0]) * among[0].astype(jnp.uint32)
    return jax.lax.fori_loop(0, 32, next_bit, zero)


def in_front(marked: jax.Array, values: jax.Array, length: int, fill: int) -> jax.Array:
    """Returns the marked values in order, followed by `fill`."""
    # On a CPU, this scan takes a third of the time of `jnp.cumsum`.
    place = jax.lax.associative_scan(jnp.add, marked.astype(jnp.int32)) - 1
    filled = jnp.full(length, fill, values.dtype)
    return filled.at[jnp.where(marked, place, length)].set(values, mode="drop")


def count(marked: jax.Array) -> jax.Array:
    """Returns how many are marked, int32."""
    return jnp.sum(marked, dtype=jnp.int32)
