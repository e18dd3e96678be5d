"""Norms of a parameter's gradients that are not formed, never less than the true ones.

The gradient ``sum_t a_t b_t^T`` has ``|g|^2 = sum_{t,s} (a_t . a_s) (b_t . b_s)``, which costs
T^2 (K + C) instead of T K C. In floating point this can come out too small, even negative, where
the terms cancel: near-constant a_t and b_t with zero mean. Both this sum and the weighted sum that
is taken later are off by at most ``gamma q``, with ``q = (sum_t |a_t| |b_t|)^2``; it is added, so
that no example is longer than its norm says. Where that matters the gradient is formed instead.

The gradient by a table has rows only where it was looked up, and its norm is that of those rows.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.contractions import Given, Site, blocks_product, lookup_axis, wide
from dpjax.gradients.ghost.trace import Meeting
from dpjax.gradients.norms import norms_of, power_of_two

__all__ = ["gram_norms", "lookup_norms", "one_at_a_time", "over_examples", "rounding"]

# Below this, squares of single entries may have vanished.
_LEAST = 1e-20
# How much of a squared norm may be the allowance for rounding before it is looked at again.
_MOST_ALLOWED = 1e-2
# An example with fewer positions and less work than this is not worth a turn of a loop.
_POSITIONS = 64
_MULTIPLY_ADDS = 1e6


class _Square(NamedTuple):
    value: jax.Array  # squared norm, with the allowance
    q: jax.Array
    allowance: jax.Array
    vanished: jax.Array  # at most so much was lost as entries too small to be squared


def gram_norms(
    site: Site, given: Given, real: jax.Array, formed: Callable[[Given], jax.Array]
) -> jax.Array:
    """Returns (N,) norms of the gradients by a site's node, never less than the true ones.

    Args:
        site: a contraction.
        given: what the pass left for all examples.
        real: (N,) bool, the rows that matter.
        formed: from one example's `given` to the norm of its gradient, which is formed: for rows
            whose inner products are not accurate enough.
    """

    def squares(given: Given) -> _Square:
        return over_examples(partial(_square, site), given, [site])

    found = squares(given)
    fine = found.allowance + found.vanished <= _MOST_ALLOWED * found.value
    fine &= jnp.isfinite(found.value) & (found.value >= _LEAST)

    # The branches are for speed. The choice is made per row: if another row could change it, one
    # example would move the contributions of all.
    def careful() -> jax.Array:
        scaled, exponent, zero = _scaled(given)
        again = squares(scaled)
        enough = (again.allowance <= _MOST_ALLOWED * again.value) & (again.value >= _LEAST)
        # A row that is not finite stays so, whatever is done with it.
        enough |= zero | ~jnp.isfinite(again.value)
        off = _gamma(site, again.q.dtype) / 2 * jnp.sqrt(again.q)
        norms = jax.lax.cond(
            jnp.all(enough | fine | ~real),
            lambda: jnp.sqrt(again.value),
            lambda: jnp.where(enough, jnp.sqrt(again.value), jax.lax.map(formed, scaled) + off),
        )
        return jnp.where(fine, jnp.sqrt(found.value), jnp.ldexp(norms, exponent))

    return jax.lax.cond(jnp.all(fine | ~real), lambda: jnp.sqrt(found.value), careful)


def rounding(site: Site, given: Given) -> jax.Array:
    """Returns how much longer than its gradient an example may be in a weighted sum.

    That is ``gamma / 2 sum_t |a_t| |b_t|``: the sum is not taken from the gradient that was formed.
    """
    factors = site.factors(given)
    powers = [power_of_two(jnp.max(jnp.abs(x), initial=0.0)) for x in factors]
    a, b = (x * scale for x, (scale, _) in zip(factors, powers, strict=True))
    entries = site.layouts[0].index("k")
    total = jnp.sum(jnp.linalg.norm(a, axis=entries) * jnp.linalg.norm(b, axis=2))
    exponent = powers[0][1] + powers[1][1]
    return jnp.ldexp(_gamma(site, total.dtype) / 2 * total, exponent)


def _gamma(site: Site, dtype: Any) -> float:
    """Bounds the relative error of sums over T positions, and of products over K and C entries.

    T terms one after the other are off by at most T eps / 2. A product of matrices adds up many
    entries side by side: an error of K eps / 16 was not seen, for constant entries up to K =
    50,000, where it is largest.
    """
    _, positions, k, c = site.sizes
    entries = (k + c) / 16 if positions > 1 else 0
    return (positions + entries + 16) * float(jnp.finfo(dtype).eps)


def _square(site: Site, given: Given) -> _Square:
    """Returns the squared norm of one example's gradient."""
    a, b = site.factors(given)
    positions = site.sizes[1]
    if positions == 1:  # |a|^2 |b|^2
        own = [jnp.sum(x * x, axis=(1, 2)) for x in (a, b)]
        square = jnp.sum(own[0] * own[1])
        return _allowed(site, square, square, jnp.sum(own[0]) + jnp.sum(own[1]))
    products = [
        blocks_product(f"{layout},{layout.replace('t', 's')}->gts", x, x)
        for layout, x in zip(site.layouts, (a, b), strict=True)
    ]
    squares = [jnp.diagonal(p, axis1=1, axis2=2) for p in products]
    q = jnp.sum(jnp.square(jnp.sum(jnp.sqrt(squares[0]) * jnp.sqrt(squares[1]), axis=1)))
    total = jnp.sum(squares[0]) + jnp.sum(squares[1])
    return _allowed(site, jnp.sum(products[0] * products[1]), q, total)


def _allowed(site: Site, square: jax.Array, q: jax.Array, squares: jax.Array) -> _Square:
    allowance = _gamma(site, q.dtype) * q
    vanished = math.prod(site.sizes) * jnp.finfo(q.dtype).tiny * squares
    return _Square(jnp.maximum(square, 0) + allowance, q, allowance, vanished)


def _scaled(given: Given) -> tuple[Given, jax.Array, jax.Array]:
    """Returns operands near 1, by powers of two, the exponent that undoes it, and which are 0."""
    exponents: list[jax.Array] = []
    zeros: list[jax.Array] = []

    def scaled(x: jax.Array) -> jax.Array:
        x = wide(x)
        largest = jnp.max(jnp.abs(x), axis=tuple(range(1, x.ndim)), initial=0.0)
        scale, exponent = power_of_two(largest)
        exponents.append(exponent)
        zeros.append(largest == 0)
        return x * scale.reshape((-1,) + (1,) * (x.ndim - 1))

    operands = jax.tree.map(scaled, given)
    return operands, exponents[0] + exponents[1], zeros[0] | zeros[1]


def lookup_norms(site: Site, given: Given) -> jax.Array:
    """Returns (N,) norms of the gradients by a table, from the rows that were looked up.

    The gradient's row r is the sum of the cotangents at the positions that look r up. There are at
    most as many such rows as positions; they are all that is formed.

    The weighted sum adds them up in another order: ``eps / 2 sum_t (m_t - 1) |b_t|`` is added, with
    m_t the number of positions that share the row of position t.
    """

    def one(given: Given) -> jax.Array:
        index, b = _rows(site, given)
        scale, exponent = power_of_two(jnp.max(jnp.abs(b), initial=0.0))
        b = b * scale
        sums, count = jax.vmap(_distinct)(index, b)
        lengths = jnp.linalg.norm(b, axis=-1)
        off = jnp.finfo(b.dtype).eps / 2 * jnp.sum(jnp.maximum(count - 1, 0) * lengths)
        return jnp.ldexp(norms_of([sums])[0] + off, exponent)

    return jax.vmap(one)(given)


def _rows(site: Site, given: Given) -> tuple[jax.Array, jax.Array]:
    """Returns the row at each position, (G, T), and its cotangent, (G, T, C).

    A position outside the table adds nothing, unless the lookup clips indices: its cotangent is 0.
    """
    meeting = site.meeting
    axis = lookup_axis(meeting) or 0
    rows = site.node.aval.shape[axis]
    entries = math.prod(site.node.aval.shape) // max(1, rows)
    of: Any = partial(_gathered, meeting) if meeting.name == "gather" else _sliced
    for _ in meeting.loops:
        of = jax.vmap(of)
    indices = given.kept[0 if meeting.name == "gather" else axis]
    index, b = of(indices, wide(given.cotangents[0]))
    index, b = site.merged(index, "gt"), site.merged(b, "gtc")
    if jnp.iinfo(index.dtype).bits < 32:
        index = index.astype(jnp.int32)  # a narrow dtype could not hold the number of rows
    if meeting.name != "gather" or meeting.eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, rows - 1)
    inside = (index >= 0) & (index < rows)
    return index, jnp.where(inside[..., None], b, 0).reshape(*index.shape, entries)


def _gathered(
    meeting: Meeting, indices: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    offsets = meeting.eqn.params["dimension_numbers"].offset_dims
    order = [i for i in range(cotangent.ndim) if i not in offsets]
    entries = math.prod(cotangent.shape[i] for i in offsets)
    rows = jnp.transpose(cotangent, (*order, *offsets))
    return indices.reshape(1, -1), rows.reshape(1, indices.size, entries)


def _sliced(index: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    return index.reshape(1, 1), cotangent.reshape(1, 1, cotangent.size)


def _distinct(index: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the sums of `b` over equal indices, in T places of which some stay zero.

    And, for each position, how many share its index.
    """
    order = jnp.argsort(index)
    ordered = index[order]
    is_new = jnp.concatenate([jnp.ones_like(ordered[:1], bool), ordered[1:] != ordered[:-1]])
    place = jnp.cumsum(is_new) - 1
    sums = jnp.zeros_like(b).at[place].add(b[order])
    count = jnp.zeros(index.shape, jnp.int32).at[place].add(1)
    return sums, jnp.zeros_like(count).at[order].set(count[place])


def over_examples(fn: Callable[[Any], Any], given: Any, sites: Sequence[Site]) -> Any:
    """Applies `fn` to every example's part of `given`.

    On a CPU one example at a time if its products are large: its factors stay in the cache, and a
    product of matrices is several times as fast as the same one in a batch of products.

    Args:
        fn: a function of one example's part.
        given: pytree with a leading axis of examples.
        sites: what is multiplied in `fn`, if anything.
    """
    return jax.lax.map(fn, given) if one_at_a_time(sites) else jax.vmap(fn)(given)


def one_at_a_time(sites: Sequence[Site]) -> bool:
    """Says whether products at these sites are faster one example at a time."""
    large = any(_is_large(site) for site in sites if site.product is not None)
    return large and jax.default_backend() == "cpu"


def _is_large(site: Site) -> bool:
    g, t, k, c = site.sizes
    return t > 1 and (t >= _POSITIONS or g * t * k * c >= _MULTIPLY_ADDS)
