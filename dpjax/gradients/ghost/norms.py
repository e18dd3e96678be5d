"""Norms of a parameter's gradients without forming them, never less than the true ones.

The gradient ``g = sum_t a_t b_t^T`` has ``|g|^2 = sum_{t,s} (a_t . a_s) (b_t . b_s)``, which costs
T^2 (K + C) instead of T K C. In floating point this can come out too small, even negative, where
the terms cancel: near-constant a_t and b_t with zero mean. Both this sum and the later weighted sum
are off by at most ``gamma q``, with ``q = (sum_t |a_t| |b_t|)^2``. This allowance is added, so that
no example is longer than its norm says. Where it would matter, the gradient is formed instead.

Matrix units that round float32 factors to p bits are given factors of p bits. Norm and sum then
belong to the same gradient, ``sum_t r(a_t) r(b_t)^T``, whose products are exact in float32: with
p <= 12 they have 2p <= 24 bits. The sum multiplies ``w r(b_t)``, of up to p + 24 bits, split into
two parts of p bits. Each entry is then off by at most ``2^-2p w |r(b_t)|`` in addition to float32's
own rounding, and the sum by ``2^-2p w sqrt(q)``. That is part of gamma.

The gradient of a table is zero except in the rows that were looked up, so its norm is theirs.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.devices import mesh_of
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
    "Gram",
    "Square",
    "gram",
    "gram_squares",
    "is_large",
    "lookup_norm",
    "power_below",
    "rounding",
    "scaled_norm",
    "scaled_norms",
    "scaled_site_norms",
]

# An example with fewer positions and less work than this is not worth a loop iteration.
_POSITIONS = 64
_MULTIPLY_ADDS = 1e6


class Square(NamedTuple):
    """A squared norm that is never too small, and by how much it may be too large.

    Attributes:
        value: never below the squared norm, unless numbers underflowed.
        doubt: the allowance for rounding included in it, plus a bound on what was lost in squaring
            entries that are too small.
    """

    value: jax.Array
    doubt: jax.Array


class Gram(NamedTuple):
    """One example's gradient of a contraction, as seen by inner products.

    Attributes:
        square: its squared norm, as computed.
        q: ``(sum_t |a_t| |b_t|)^2``.
        squares: the sum of the squares of both factors.
    """

    square: jax.Array
    q: jax.Array
    squares: jax.Array


def gram(platform: Platform, site: Site, given: Given) -> Gram:
    """Returns the inner products of one example's gradient of a contraction."""
    own = site.arithmetic(platform)
    a, b = site.factors(platform, site.rounded(platform, given))
    positions = site.sizes[1]
    if positions == 1:  # |a|^2 |b|^2
        squares = [jnp.sum(x * x, axis=(1, 2)) for x in (a, b)]
        square = jnp.sum(squares[0] * squares[1])
        return Gram(square, square, jnp.sum(squares[0]) + jnp.sum(squares[1]))
    products = [
        blocks_product(f"{layout},{layout.replace('t', 's')}->gts", x, x, precision_of(own))
        for layout, x in zip(site.layouts, (a, b), strict=True)
    ]
    squares = [jnp.diagonal(p, axis1=1, axis2=2) for p in products]
    q = jnp.sum(jnp.square(jnp.sum(jnp.sqrt(squares[0]) * jnp.sqrt(squares[1]), axis=1)))
    total = jnp.sum(squares[0]) + jnp.sum(squares[1])
    return Gram(jnp.sum(products[0] * products[1]), q, total)


def gram_squares(platform: Platform, sites: Sequence[Site], found: Sequence[Gram]) -> Square:
    """Returns the squared norms at several sites in one array, allowances included.

    Args:
        platform: where it runs.
        sites: contractions.
        found: one example's inner products at each.
    """
    platforms = [site.arithmetic(platform) for site in sites]
    dtypes = [each.q.dtype for each in found]
    kinds = list(zip(platforms, sites, dtypes, strict=True))
    square, q, squares = (jnp.stack(parts) for parts in zip(*found, strict=True))
    gamma = np.array([_gamma(*kind) for kind in kinds], q.dtype)
    cut = np.array([_cut(own, dtype) for own, _, dtype in kinds], q.dtype)
    tiny = [math.prod(site.sizes) * float(jnp.finfo(dtype).tiny) for _, site, dtype in kinds]
    square = jnp.maximum(square, 0)
    allowance = gamma * q
    if np.any(cut):  # (sqrt(square + allowance) + cut sqrt(q))^2
        allowance += 2 * cut * jnp.sqrt((square + allowance) * q) + cut**2 * q
    return Square(square + allowance, allowance + np.array(tiny, q.dtype) * squares)


def rounding(platform: Platform, site: Site, given: Given) -> jax.Array:
    """Returns how much longer than its gradient an example may be in a weighted sum.

    The weighted sum does not use the gradient that was formed, and is off by at most
    ``(gamma / 2 + 2^-2p) sum_t |a_t| |b_t|``, where the term 2^-2p applies to factors of p bits. In
    each block, ``|a| |b|`` is at least ``sum_t |a_t| |b_t|``.
    """
    a, b = site.factors(platform, site.rounded(platform, given))
    return _of_lengths(platform, site, a.dtype) * jnp.sum(_lengths(a) * _lengths(b))


def _lengths(factor: jax.Array) -> jax.Array:
    """Returns the norm of each block of a factor, without overflow or underflow of squares."""
    near, powers = _near_one([factor], rows=True)
    return jnp.sqrt(row_squares(near[0])) * powers


def _of_lengths(platform: Platform, site: Site, dtype: jnp.dtype) -> float:
    """Returns the factor of ``|a| |b|`` in `rounding`, with room for that product's rounding."""
    own = site.arithmetic(platform)
    g, t, k, c = site.sizes
    room = 1 + g * t * (k + c) * float(jnp.finfo(dtype).eps)
    return (_gamma(own, site, dtype) / 2 + _cut(own, dtype)) * room


def _gamma(platform: Platform, site: Site, dtype: jnp.dtype) -> float:
    """Bounds the relative error of sums over T positions, and of products over K and C entries.

    A sum of T terms, one after another, is off by at most T eps / 2. A matrix product adds many
    entries side by side: its error stayed below K eps / 16 for constant entries, the worst case, up
    to K = 50,000. Matrix units may truncate instead of rounding when they add, which doubles it.
    """
    _, positions, k, c = site.sizes
    entries = (k + c) / (16 if platform.bits is None else 8) if positions > 1 else 0
    return (positions + entries + 16) * float(jnp.finfo(dtype).eps)


def _cut(platform: Platform, dtype: jnp.dtype) -> float:
    """Bounds, relatively, what splitting a weighted factor into two parts of p bits leaves out."""
    return 0.0 if platform.bits is None or dtype != jnp.float32 else 2.0 ** (-2 * platform.bits)


def scaled_site_norms(
    platform: Platform, sites: Sequence[Site], given: Sequence[Given]
) -> jax.Array:
    """Returns one example's norms at several contractions, of gradients formed from scaled numbers.

    They are never below the lengths of what a weighted sum adds for the example.

    Args:
        platform: where it runs.
        sites: contractions.
        given: what the pass returned at each of them for this example.
    """
    numbers = [wide(x) for own in given for x in (own.kept[0], own.cotangents[0])]
    near, powers = _near_one(numbers)
    gradients, lengths = [], []
    for site, x, cotangent in zip(sites, near[::2], near[1::2], strict=True):
        own = site.rounded(platform, Given((x,), (cotangent,)))
        a, b = site.factors(platform, own)
        gradients.append(site.of_factors(platform, own, (a, b)))
        if len(a) == 1:  # entries are near one, so no square that matters underflows
            lengths.append(jnp.sqrt(jnp.sum(a * a)) * jnp.sqrt(jnp.sum(b * b)))
        else:
            lengths.append(jnp.sum(_lengths(a) * _lengths(b)))
    most = jnp.stack(lengths)
    pairs = zip(sites, gradients, strict=True)
    off = np.array([_of_lengths(platform, site, x.dtype) for site, x in pairs], most.dtype)
    norms = scaled_norms(gradients) + off * most
    low, high = (fn(powers[::2], powers[1::2]) for fn in (jnp.minimum, jnp.maximum))
    first = norms * high  # this order of products does not overflow
    return jnp.where(jnp.isfinite(first), first * low, norms * low * high)


def scaled_norms(arrays: Sequence[jax.Array]) -> jax.Array:
    """Returns the norm of each array, without overflow or underflow; +inf if not finite.

    >>> [float(n) for n in scaled_norms([jnp.array([3.0, 4.0]) * 2.0**100, jnp.array([jnp.nan])])]
    [6.338253001141147e+30, inf]
    """
    alike: dict[Hashable, list[int]] = {}
    for i, x in enumerate(arrays):
        alike.setdefault(i if mesh_of(x) is not None else (x.size, x.dtype), []).append(i)
    stacks = []
    for mine in alike.values():
        flat = [arrays[i] for i in mine]
        if mesh_of(flat[0]) is None:  # on a mesh, its axes may be split over devices
            flat = [x.reshape(x.size) for x in flat]
        stacks.append(jnp.stack(flat))
    near, powers = _near_one(stacks, rows=True)
    norms = jnp.concatenate([jnp.sqrt(row_squares(x)) for x in near]) * powers
    order = np.argsort([i for mine in alike.values() for i in mine])
    return jnp.where(jnp.isnan(norms), jnp.inf, norms)[order]


def scaled_norm(x: jax.Array) -> jax.Array:
    """Returns the norm of an array, without overflow or underflow; +inf if not finite.

    >>> float(scaled_norm(jnp.array([3 * 2.0**100, 4 * 2.0**100]))) / 2.0**100
    5.0
    """
    return scaled_norms([x])[0]


def _near_one(arrays: Sequence[jax.Array], rows: bool = False) -> tuple[list[jax.Array], jax.Array]:
    """Returns arrays divided by the power of two below the largest entry, and those powers.

    Uses the bits of a float: `frexp` is many operations, which compilers repeat at every use.

    Args:
        arrays: arrays of one dtype, or of float32 and float64.
        rows: whether each row has its own power.
    """
    dtype = jnp.result_type(*arrays)
    near, powers = [], []
    for x in arrays:
        stack = x if rows else x[None]
        # Of each array by itself: the loops of arrays of one shape are then the same, and compiled
        # once.
        power = power_below(jnp.max(jnp.abs(stack), axis=tuple(range(1, stack.ndim)), initial=0.0))
        near.append(x / (power.reshape((-1,) + (1,) * (x.ndim - 1)) if rows else power[0]))
        powers.append(power.astype(dtype))
    return near, jnp.concatenate(powers)


def power_below(x: jax.Array) -> jax.Array:
    """Returns the power of two below each number; the smallest normal number if there is none."""
    info = jnp.finfo(x.dtype)
    whole = jnp.uint32 if info.bits == 32 else jnp.uint64
    mantissa = (1 << info.nmant) - 1
    bits = jax.lax.bitcast_convert_type(x, whole) & whole(~np.array(mantissa, whole))
    power = jax.lax.bitcast_convert_type(bits, x.dtype)
    return jnp.where(power > 0, power, info.tiny)


def lookup_norm(site: Site, given: Given) -> jax.Array:
    """Returns the norm of one example's gradient of a table, from the rows that it looks up.

    Row r of the gradient is the sum of the cotangents at the positions that look r up. Only these
    rows are formed, at most one per position.

    The weighted sum adds them in another order, so ``eps / 2 sum_t (m_t - 1) |b_t|`` is added to
    the norm, where m_t is the number of positions that share the row of position t.
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

    The cotangent of a position outside the table is 0, unless the lookup clips indices.
    """
    meeting = site.meeting
    axis = lookup_axis(meeting) or 0
    rows = site.node.aval.shape[axis]
    entries = math.prod(site.node.aval.shape) // max(1, rows)
    of: Callable[..., tuple[jax.Array, jax.Array]]
    of = partial(_gathered, meeting) if meeting.name == "gather" else _sliced
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
    """Returns the sums of `b` over equal indices, and how many positions share each index.

    The sums fill some of T places; the others stay zero.
    """
    order = jnp.argsort(index)
    ordered = index[order]
    is_new = jnp.concatenate([jnp.ones_like(ordered[:1], bool), ordered[1:] != ordered[:-1]])
    place = jnp.cumsum(is_new) - 1
    sums = jnp.zeros_like(b).at[place].add(b[order])
    count = jnp.zeros(index.shape, jnp.int32).at[place].add(1)
    return sums, jnp.zeros_like(count).at[order].set(count[place])


def is_large(site: Site) -> bool:
    """Returns whether, on a CPU, an example's product here is faster alone than in a batch.

    Its factors then stay in the cache, and a matrix product is several times as fast alone as in a
    batch of products.
    """
    if site.product is None:
        return False
    g, t, k, c = site.sizes
    return t > 1 and (t >= _POSITIONS or g * t * k * c >= _MULTIPLY_ADDS)
