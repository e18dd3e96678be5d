"""Norms of gradients from the inner products of their factors.

The gradient ``sum_t a_t b_t^T`` has ``|g|^2 = sum_{t,s} (a_t . a_s) (b_t . b_s)``, which costs
T^2 (K + C) instead of T K C. In floating point this can come out too small, even negative, where
the terms cancel: near-constant a_t and b_t with zero mean. Both this sum and the weighted sum that
is taken later are off by at most ``gamma q``, with ``q = (sum_t |a_t| |b_t|)^2``; it is added, so
that no example is longer than its norm says. Where that matters the gradient is formed instead.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.mapping import over_examples
from dpjax.gradients.ghost.sites import Given, Site, blocks_product, wide
from dpjax.gradients.norms import power_of_two

__all__ = ["gram_norms", "rounding"]

# Below this, squares of single entries may have vanished.
_LEAST = 1e-20
# How much of a squared norm may be the allowance for rounding before it is looked at again.
_MOST_ALLOWED = 1e-2


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
        formed: from one example's `given` to the norm of its gradient, formed: for rows whose
            norm cannot be had from inner products.
    """

    def squares(given: Given) -> _Square:
        return over_examples(partial(_square, site), given, [site])

    found = squares(given)
    fine = found.allowance + found.vanished <= _MOST_ALLOWED * found.value
    fine &= jnp.isfinite(found.value) & (found.value >= _LEAST)

    # The branches are for speed. Which of the norms a row has is its own affair: another row must
    # not change it, or one example would move the contributions of all.
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
