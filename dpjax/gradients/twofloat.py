"""Sums carried as two floats, so that adding an example does not round the others again.

A float32 sum over B rows is off by about ``sqrt(B) 2^-24`` of its size, and by how much depends on
every row: one more example, even a zero, moves it. A pair hi + lo holds the sum to about 2^-48.

Compilers must not rearrange these additions. XLA does not reassociate them, but code generators
contract ``w * x + y`` into one rounding, and `two_sum` of such a product is no longer exact. So a
product is first rounded to 23 bits by `jax.lax.reduce_precision`, which no compiler may look
through; that rounding depends on the row alone.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.gradients.norms import accumulation_dtype

__all__ = ["TwoFloat", "added", "row_sum", "two_sum", "weighted_row_sum"]

# Rows are added one after the other in blocks of this many, and then the blocks: the low half is
# itself rounded at each addition, and this keeps their number in a line small.
_BLOCK = 64


class TwoFloat(NamedTuple):
    """An unevaluated sum of two pytrees.

    Attributes:
        hi: the sum rounded to its dtype.
        lo: what that rounding left out; zero for float64 and for integers.
    """

    hi: Any
    lo: Any


def two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns ``(s, e)`` with ``s = fl(a + b)`` and ``s + e = a + b`` exactly, barring overflow.

    Neither argument may be a product that is computed in the same program; see above.

    >>> two_sum(jnp.float32(1), jnp.float32(2**-30))
    (Array(1., dtype=float32), Array(9.313226e-10, dtype=float32))

    Reference: Knuth, The Art of Computer Programming 2, theorem 4.2.2B.
    """
    s = a + b
    from_b = s - a
    return s, (a - (s - from_b)) + (b - from_b)


def added(x: TwoFloat, y: TwoFloat) -> TwoFloat:
    """Returns x + y, leaf by leaf, with an error of a few 2^-48 of the parts.

    >>> x = TwoFloat(jnp.float32(1), jnp.float32(2**-30))
    >>> added(x, x)
    TwoFloat(hi=Array(2., dtype=float32), lo=Array(1.8626451e-09, dtype=float32))
    """
    pairs = jax.tree.map(lambda *parts: _normalised(*_added(*parts)), *x, *y)
    return TwoFloat(*_unzipped(pairs, x.hi))


def weighted_row_sum(weights: jax.Array, rows: jax.Array) -> TwoFloat:
    """Returns ``sum_i weights[i] rows[i]``, in float32 or wider.

    Args:
        weights: (k,).
        rows: (k, ...), finite.

    Example:
        >>> rows = jnp.array([[1e8], [1.0], [-1e8]])
        >>> weighted_row_sum(jnp.ones(3), rows).hi.tolist()
        [1.0]
    """
    wide = accumulation_dtype(rows)
    columns = weights.astype(wide).reshape((-1,) + (1,) * (rows.ndim - 1))
    products = columns * rows.astype(wide)
    if wide == jnp.float32:
        products = jax.lax.reduce_precision(products, exponent_bits=8, mantissa_bits=22)
    return row_sum(products)


def row_sum(rows: jax.Array) -> TwoFloat:
    """Returns the sum over the leading axis; float64 and integers are summed plainly.

    `rows` must not be a product that is computed in the same program; see above.
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


def _reduced(pair: Any, axis: int) -> Any:
    # One reduction of both halves: under automatic SPMD each device reduces its rows, and the
    # devices' pairs are gathered and reduced likewise.
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
    """Returns the pair with hi = fl(hi + lo); an infinite hi stays so, though lo became NaN."""
    if not jnp.issubdtype(hi.dtype, jnp.floating):
        return hi, lo
    s, e = two_sum(hi, jnp.where(jnp.isfinite(lo), lo, 0))
    return s, jnp.where(jnp.isfinite(s), e, 0)


def _unzipped(pairs: Any, like: Any) -> tuple[Any, Any]:
    return jax.tree.transpose(jax.tree.structure(like), jax.tree.structure((0, 0)), pairs)
