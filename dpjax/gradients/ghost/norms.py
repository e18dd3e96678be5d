"""Norms of a parameter's gradients that are not formed, never less than the true ones.

The gradient ``g = sum_t a_t b_t^T`` has ``|g|^2 = sum_{t,s} (a_t . a_s) (b_t . b_s)``, which costs
T^2 (K + C) instead of T K C. In floating point this can come out too small, even negative, where
the terms cancel: near-constant a_t and b_t with zero mean. Both this sum and the weighted sum that
is taken later are off by at most ``gamma q``, with ``q = (sum_t |a_t| |b_t|)^2``; it is added, so
that no example is longer than its norm says. Where that matters the gradient is formed instead.

Matrix units that round float32 factors to p bits are given factors of p bits. Norm and sum are then
those of one gradient, ``sum_t r(a_t) r(b_t)^T``, whose products are exact in float32: with p <= 12
they have 2p <= 24 bits. The sum multiplies ``w r(b_t)``, of up to p + 24 bits, taken in two parts
of p bits: each entry is off by at most ``2^-2p w |r(b_t)|`` beside float32's own rounding, and the
sum by ``2^-2p w sqrt(q)``. That is part of gamma.

The gradient by a table has rows only where it was looked up, and its norm is that of those rows.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.gradients.ghost.contractions import (
    Given,
    Site,
    blocks_product,
    lookup_axis,
    precision_of,
    wide,
)
from dpjax.gradients.ghost.trace import Meeting
from dpjax.gradients.norms import power_of_two, row_squares
from dpjax.gradients.platforms import Platform

__all__ = [
    "Square",
    "gram_square",
    "is_large",
    "lookup_norm",
    "rounding",
    "scaled",
    "scaled_norm",
    "unscaled",
]

# An example with fewer positions and less work than this is not worth a turn of a loop.
_POSITIONS = 64
_MULTIPLY_ADDS = 1e6


class Square(NamedTuple):
    """A squared norm that is not too small, and what may be too much of it.

    Attributes:
        value: never below the squared norm, unless numbers vanished.
        doubt: the allowance for rounding in it, and a bound on what was lost as entries too small
            to be squared.
    """

    value: jax.Array
    doubt: jax.Array


def gram_square(platform: Platform, site: Site, given: Given) -> Square:
    """Returns the squared norm of one example's gradient by a contraction, from inner products."""
    own = site.arithmetic(platform)
    a, b = site.factors(platform, site.rounded(platform, given))
    positions = site.sizes[1]
    if positions == 1:  # |a|^2 |b|^2
        squares = [jnp.sum(x * x, axis=(1, 2)) for x in (a, b)]
        square = jnp.sum(squares[0] * squares[1])
        return _allowed(own, site, square, square, jnp.sum(squares[0]) + jnp.sum(squares[1]))
    products = [
        blocks_product(f"{layout},{layout.replace('t', 's')}->gts", x, x, precision_of(own))
        for layout, x in zip(site.layouts, (a, b), strict=True)
    ]
    squares = [jnp.diagonal(p, axis1=1, axis2=2) for p in products]
    q = jnp.sum(jnp.square(jnp.sum(jnp.sqrt(squares[0]) * jnp.sqrt(squares[1]), axis=1)))
    total = jnp.sum(squares[0]) + jnp.sum(squares[1])
    return _allowed(own, site, jnp.sum(products[0] * products[1]), q, total)


def _allowed(
    platform: Platform, site: Site, square: jax.Array, q: jax.Array, squares: jax.Array
) -> Square:
    square = jnp.maximum(square, 0)
    allowance = _gamma(platform, site, q.dtype) * q
    if cut := _cut(platform, q.dtype):  # (sqrt(square + allowance) + cut sqrt(q))^2
        allowance += 2 * cut * jnp.sqrt((square + allowance) * q) + cut**2 * q
    vanished = math.prod(site.sizes) * jnp.finfo(q.dtype).tiny * squares
    return Square(square + allowance, allowance + vanished)


def rounding(platform: Platform, site: Site, given: Given) -> jax.Array:
    """Returns how much longer than its gradient an example may be in a weighted sum.

    That is ``(gamma / 2 + 2^-2p) sum_t |a_t| |b_t|``, the latter with factors of p bits: the sum is
    not taken from the gradient that was formed.
    """
    a, b = site.factors(platform, site.rounded(platform, given))
    total = jnp.sum(_lengths(a, site.layouts[0].index("k")) * _lengths(b, 2))
    own, dtype = site.arithmetic(platform), total.dtype
    return (_gamma(own, site, dtype) / 2 + _cut(own, dtype)) * total


def _lengths(x: jax.Array, axis: int) -> jax.Array:
    """Returns norms along an axis whose squares neither overflow nor vanish."""
    largest = jnp.max(jnp.abs(x), axis=axis, keepdims=True, initial=0.0)
    squares = jnp.sum(jnp.square(x / jnp.where(largest > 0, largest, 1)), axis=axis)
    return jnp.squeeze(largest, axis) * jnp.sqrt(squares)


def _gamma(platform: Platform, site: Site, dtype: jnp.dtype) -> float:
    """Bounds the relative error of sums over T positions, and of products over K and C entries.

    T terms one after the other are off by at most T eps / 2. A product of matrices adds up many
    entries side by side: an error of K eps / 16 was not seen, for constant entries up to K =
    50,000, where it is largest. Matrix units may cut off where they add, instead of rounding: twice
    that.
    """
    _, positions, k, c = site.sizes
    entries = (k + c) / (16 if platform.bits is None else 8) if positions > 1 else 0
    return (positions + entries + 16) * float(jnp.finfo(dtype).eps)


def _cut(platform: Platform, dtype: jnp.dtype) -> float:
    """Bounds what two parts of p bits leave out of a weighted factor, relative to it."""
    return 0.0 if platform.bits is None or dtype != jnp.float32 else 2.0 ** (-2 * platform.bits)


def scaled(given: Given) -> tuple[Given, tuple[jax.Array, jax.Array]]:
    """Returns one example's operands near 1, and the powers of two that they were divided by."""
    (operand,), (cotangent,) = given.kept, given.cotangents
    near, powers = zip(*(_near_one(wide(x)) for x in (operand, cotangent)), strict=True)
    return Given((near[0],), (near[1],)), (powers[0], powers[1])


def unscaled(norm: jax.Array, powers: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns ``norm * powers[0] * powers[1]``, in the order in which nothing overflows."""
    low, high = jnp.minimum(*powers), jnp.maximum(*powers)
    first = norm * high
    return jnp.where(jnp.isfinite(first), first * low, norm * low * high)


def scaled_norm(x: jax.Array) -> jax.Array:
    """Returns the norm of an array, which neither overflows nor vanishes; +inf if not finite.

    >>> float(scaled_norm(jnp.array([3 * 2.0**100, 4 * 2.0**100]))) / 2.0**100
    5.0
    """
    near, power = _near_one(x)
    norm = jnp.sqrt(row_squares(near[None])[0]) * power
    return jnp.where(jnp.isnan(norm), jnp.inf, norm)


def _near_one(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns an array divided by the power of two below its largest entry, and that power.

    From the bits of a float: `frexp` is many operations, which compilers repeat where it is used.
    """
    largest = jnp.max(jnp.abs(x), initial=0.0)
    info = jnp.finfo(x.dtype)
    whole = jnp.uint32 if info.bits == 32 else jnp.uint64
    mantissa = (1 << info.nmant) - 1
    bits = jax.lax.bitcast_convert_type(largest, whole) & whole(~np.array(mantissa, whole))
    power = jax.lax.bitcast_convert_type(bits, x.dtype)
    power = jnp.where(power > 0, power, info.tiny)
    return x / power, power


def lookup_norm(site: Site, given: Given) -> jax.Array:
    """Returns the norm of one example's gradient by a table, from the rows that it looks up.

    The gradient's row r is the sum of the cotangents at the positions that look r up. There are at
    most as many such rows as positions; they are all that is formed.

    The weighted sum adds them up in another order: ``eps / 2 sum_t (m_t - 1) |b_t|`` is added, with
    m_t the number of positions that share the row of position t.
    """

    index, b = _rows(site, given)
    scale, exponent = power_of_two(jnp.max(jnp.abs(b), initial=0.0))
    b = b * scale
    sums, count = jax.vmap(_distinct)(index, b)
    lengths = jnp.linalg.norm(b, axis=-1)
    off = jnp.finfo(b.dtype).eps / 2 * jnp.sum(jnp.maximum(count - 1, 0) * lengths)
    return jnp.ldexp(scaled_norm(sums) + off, exponent)


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


def is_large(site: Site) -> bool:
    """Says whether an example's product here is faster by itself than in a batch, on a CPU.

    Its factors stay in the cache, and a product of matrices is several times as fast as the same
    one in a batch of products.
    """
    if site.product is None:
        return False
    g, t, k, c = site.sizes
    return t > 1 and (t >= _POSITIONS or g * t * k * c >= _MULTIPLY_ADDS)
