"""Sums held as two floats, so that adding an example does not change how the others are rounded.

A float32 sum over B rows has a relative error of about ``sqrt(B) 2^-24``, which depends on every
row: one more example, even a zero, changes it. A pair hi + lo holds the sum to about 2^-46.

Rows are added as integers: each product is rounded to a grid of 2^-46 of the largest and held as
two int32 limbs, whose sums are exact in any order. Chunks and parts are added by `two_sum`, whose
additions compilers must not rearrange. XLA does not, but code generators fuse ``w * x + y`` into
one rounding, so the arguments of `two_sum` must not be products computed in the same program.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

__all__ = [
    "TwoFloat",
    "accumulation_dtype",
    "added",
    "of_integer",
    "pair_sum",
    "row_sum",
    "two_sum",
    "weighted_row_sum",
]

# Rows are added in blocks of this many, and then the blocks are added. The integer sums of a block
# fit their dtype, and the low half of a float, which is rounded at each addition, is rounded less
# often.
_BLOCK = 128
_UNROLLED = 8


class TwoFloat(NamedTuple):
    """An unevaluated sum of two pytrees.

    Attributes:
        hi: the sum rounded to its dtype.
        lo: the rounding error; zero for float64 and for integers.
    """

    hi: chex.ArrayTree
    lo: chex.ArrayTree


def accumulation_dtype(leaf: jax.Array) -> jnp.dtype:
    """Returns the dtype in which sums over `leaf` are computed: float32, or float64 for float64."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns ``(s, e)`` with ``s = fl(a + b)`` and ``s + e = a + b`` exactly, barring overflow.

    Neither argument may be a product computed in the same program; see the module docstring.

    >>> two_sum(jnp.float32(1), jnp.float32(2**-30))
    (Array(1., dtype=float32), Array(9.313226e-10, dtype=float32))

    Reference: Knuth, The Art of Computer Programming 2, theorem 4.2.2B.
    """
    s = a + b
    from_b = s - a
    return s, (a - (s - from_b)) + (b - from_b)


def added(x: TwoFloat, y: TwoFloat) -> TwoFloat:
    """Returns x + y, leaf by leaf, with a relative error of a few 2^-48.

    >>> x = TwoFloat(jnp.float32(1), jnp.float32(2**-30))
    >>> added(x, x)
    TwoFloat(hi=Array(2., dtype=float32), lo=Array(1.8626451e-09, dtype=float32))
    """
    pairs = jax.tree.map(lambda *parts: _normalised(*_added(*parts)), *x, *y)
    return TwoFloat(*_unzipped(pairs, x.hi))


def of_integer(limb: jax.Array, unit: chex.Numeric) -> TwoFloat:
    """Returns ``limb * unit`` for an int32 and a power of two, as a pair that holds all 31 bits.

    >>> [float(half) for half in of_integer(jnp.int32(2**24 + 1), 0.5)]
    [8388608.0, 0.5]
    """
    low = limb & 0xFFFF
    parts = ((limb - low).astype(jnp.float32) * unit, low.astype(jnp.float32) * unit)
    return TwoFloat(*two_sum(*parts))


def weighted_row_sum(weights: jax.Array, rows: jax.Array, most: jax.Array) -> TwoFloat:
    """Returns ``sum_i weights[i] rows[i]`` over the weights other than 0, in float32 or wider.

    Args:
        weights: (k,).
        rows: (k, ...), finite where the weight is not 0; other rows may hold anything.
        most: at least the largest absolute value of a product; the error is at most 2^-46 of it per
            row.

    Example:
        >>> rows = jnp.array([[1e8], [1.0], [-1e8]])
        >>> weighted_row_sum(jnp.ones(3), rows, jnp.float32(1e8)).hi.tolist()
        [1.0]
    """
    wide = accumulation_dtype(rows)
    columns = weights.astype(wide).reshape((-1,) + (1,) * (rows.ndim - 1))
    if wide != jnp.float32:
        return row_sum(_products(columns, rows.astype(wide)))
    scale = jnp.ldexp(jnp.float32(1), jnp.clip(jnp.frexp(most)[1], -100, 126))
    blocks, rest = divmod(rows.shape[0], _BLOCK)
    split = blocks * _BLOCK
    found = []
    if blocks:
        w, x = (leaf[:split].reshape(blocks, _BLOCK, *leaf.shape[1:]) for leaf in (columns, rows))
        found.append(_of_limbs(_limb_sums(w, x, scale), scale))
    if rest or not blocks:
        found.append(_of_limbs(_limb_sums(columns[None, split:], rows[None, split:], scale), scale))
    pair = [jnp.concatenate(halves) for halves in zip(*found, strict=True)]
    if pair[0].shape[0] == 1:
        return TwoFloat(pair[0][0], pair[1][0])
    return TwoFloat(*_normalised(*_reduced(pair, axis=0)))


def _products(columns: jax.Array, rows: jax.Array) -> jax.Array:
    return jnp.where(columns == 0, 0, columns * rows)  # also if a row with weight 0 is not finite


def _limb_sums(
    columns: jax.Array, rows: jax.Array, scale: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns integers A, B such that ``A 2^-23 + B 2^-46`` are the block sums divided by scale.

    A row adds at most 2^23 to each, and a block has at most 2^7 rows, so no sum overflows.
    Everything except the product itself is exact. Eight rows are added at a time, which vectorises,
    then the rest.
    """

    def limbs(columns: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Divide by `scale` first, so that a product near the limits of float32 stays in range.
        x = _products(columns, rows.astype(jnp.float32)) / scale * 2.0**23
        a = jnp.round(x)
        return a.astype(jnp.int32), jnp.round((x - a) * 2.0**23).astype(jnp.int32)

    blocks, size = rows.shape[:2]
    groups, rest = divmod(size, _UNROLLED)
    split = groups * _UNROLLED
    found = []
    if rest or not groups:
        last = limbs(columns[:, split:], rows[:, split:])
        found.append([jnp.sum(x, axis=1, dtype=jnp.int32) for x in last])
    if groups:
        w, x = (
            leaf[:, :split].reshape(blocks, groups, _UNROLLED, *leaf.shape[2:])
            for leaf in (columns, rows)
        )
        parts = [limbs(w[:, :, i], x[:, :, i]) for i in range(_UNROLLED)]
        eight = tuple(sum(part[1:], start=part[0]) for part in zip(*parts, strict=True))
        zero = jnp.zeros((), jnp.int32)
        add = lambda x, y: (x[0] + y[0], x[1] + y[1])  # noqa: E731
        found.append(jax.lax.reduce(eight, (zero, zero), add, (1,)))
    a, b = (sum(limb[1:], start=limb[0]) for limb in zip(*found, strict=True))
    return a, b


def _of_limbs(limbs: tuple[jax.Array, jax.Array], scale: jax.Array) -> TwoFloat:
    coarse, fine = (of_integer(x, 2.0**e) for x, e in zip(limbs, (-23, -46), strict=True))
    total = added(coarse, fine)
    return TwoFloat(*_normalised(total.hi * scale, total.lo * scale))


def row_sum(rows: jax.Array) -> TwoFloat:
    """Returns the sum over the leading axis; float64 and integers are summed plainly.

    `rows` must not be a product computed in the same program; see the module docstring.
    """
    if rows.dtype != jnp.float32:
        total = jnp.sum(rows, axis=0)
        return TwoFloat(total, jnp.zeros_like(total))
    pair = (rows, jnp.zeros_like(rows))
    while (size := pair[0].shape[0]) > _BLOCK:
        blocks, rest = divmod(size, _BLOCK)
        split = size - rest
        totals = _reduced([x[:split].reshape(blocks, _BLOCK, *x.shape[1:]) for x in pair], axis=1)
        if rest:
            last = _reduced([x[split:] for x in pair], axis=0)
            totals = [jnp.append(t, x[None], axis=0) for t, x in zip(totals, last, strict=True)]
        pair = (totals[0], totals[1])
    return TwoFloat(*_normalised(*_reduced(pair, axis=0)))


def pair_sum(pairs: TwoFloat) -> TwoFloat:
    """Returns the sum over the leading axis of every leaf, itself a pair.

    >>> pairs = TwoFloat(jnp.float32([1, 2**30]), jnp.float32([2**-30, 0]))
    >>> [float(half) for half in pair_sum(pairs)]
    [1073741824.0, 1.0]
    """

    def summed(hi: jax.Array, lo: jax.Array) -> TwoFloat:
        if hi.dtype != jnp.float32:
            return row_sum(hi)
        return TwoFloat(*_normalised(*_reduced((hi, lo), axis=0)))

    return TwoFloat(*_unzipped(jax.tree.map(lambda *pair: tuple(summed(*pair)), *pairs), pairs.hi))


def _reduced(pair: chex.ArrayTree, axis: int) -> chex.ArrayTree:
    # One reduction of both halves: under automatic SPMD each device reduces its rows, and the
    # devices' pairs are then gathered and reduced in the same way.
    zero = jnp.zeros((), jnp.float32)
    return jax.lax.reduce(
        tuple(pair), (zero, zero), lambda x, y: _added(x[0], x[1], y[0], y[1]), (axis,)
    )


def _added(
    x_hi: jax.Array, x_lo: jax.Array, y_hi: jax.Array, y_lo: jax.Array
) -> tuple[jax.Array, jax.Array]:
    s, e = two_sum(x_hi, y_hi)
    return s, e + (x_lo + y_lo)


def _normalised(hi: jax.Array, lo: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the pair with hi = fl(hi + lo); an infinite hi stays infinite even if lo is NaN."""
    if not jnp.issubdtype(hi.dtype, jnp.floating):
        return hi, lo
    s, e = two_sum(hi, jnp.where(jnp.isfinite(lo), lo, 0))
    return s, jnp.where(jnp.isfinite(s), e, 0)


def _unzipped(pairs: chex.ArrayTree, like: chex.ArrayTree) -> tuple[chex.ArrayTree, chex.ArrayTree]:
    return jax.tree.transpose(jax.tree.structure(like), jax.tree.structure((0, 0)), pairs)
