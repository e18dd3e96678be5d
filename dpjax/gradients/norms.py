"""L2 norms of gradient rows that neither overflow nor vanish."""

import math
from collections.abc import Sequence
from functools import partial

import chex
import jax
import jax.numpy as jnp

from dpjax.devices import mesh_of
from dpjax.twofloat import accumulation_dtype

__all__ = [
    "combined_norm",
    "norms_of",
    "power_of_two",
    "row_norms",
    "row_squares",
    "settled",
]

# In this range a sum of squares is accurate: above it, overflow is near; below it, squares of
# single entries may have underflowed. Outside, the row is scaled by a power of two first.
_SAFE_SQUARES = (1e-20, 1e37)


def settled(tree: chex.ArrayTree) -> chex.ArrayTree:
    """Returns the tree with its half-precision arrays rounded once, the same for every use.

    XLA may skip the rounding to bfloat16 for one use of a value and not for another. A gradient's
    norm could then differ from the norm of what is summed by up to 2^-8 of its length.
    """

    def one(leaf: chex.Array) -> chex.Array:
        leaf = jnp.asarray(leaf)
        half = jnp.issubdtype(leaf.dtype, jnp.inexact) and leaf.dtype != accumulation_dtype(leaf)
        return jax.lax.optimization_barrier(leaf) if half else leaf

    return jax.tree.map(one, tree)


# Jitted, like the other helpers that branch: an eager caller would recompile a bare cond each time.
@partial(jax.jit, static_argnames=("group_of_leaf", "groups"))
def row_norms(
    leaves: Sequence[jax.Array], group_of_leaf: tuple[int, ...], groups: int, rows: jax.Array
) -> jax.Array:
    """Returns the norm of each row in each group; +inf in all groups if a row is not finite.

    ``norms[i, j] = sqrt(sum of squares of row i over the leaves of group j)``, computed from
    scaled entries where the plain sum would overflow or underflow. A norm beyond the largest float
    is reported as +inf too.

    Args:
        leaves: arrays with one row per example.
        group_of_leaf: the group of each leaf.
        groups: the number of groups G.
        rows: (k,) bool, the rows that matter; the others may hold anything.

    Returns:
        (k, G) norms.

    Example:
        >>> big = jnp.array([[1e20, 0.0], [3e-30, 4e-30], [1.0, jnp.nan]])
        >>> [f"{n:.4g}" for n in row_norms([big], (0,), 1, jnp.ones(3, bool))[:, 0]]
        ['1e+20', '5e-30', 'inf']
    """
    wide = [leaf.astype(accumulation_dtype(leaf)) for leaf in leaves]
    members = [[i for i, g in enumerate(group_of_leaf) if g == j] for j in range(groups)]

    def squares(scales: Sequence[jax.Array] | None) -> jax.Array:
        columns = []
        for j, mine in enumerate(members):
            rows_of = [wide[i] for i in mine]
            if scales is not None:
                rows_of = [x * _column(scales[j], x.ndim) for x in rows_of]
            columns.append(_pairwise_sum([row_squares(x) for x in rows_of]))
        return jnp.stack(columns, axis=-1)

    def scaled() -> jax.Array:
        largest = [
            jnp.max(
                jnp.stack(
                    [jnp.max(jnp.abs(x), axis=_all_but_first(x), initial=0.0) for x in rows_of]
                ),
                axis=0,
            )
            for rows_of in ([wide[i] for i in mine] for mine in members)
        ]
        powers = [power_of_two(x) for x in largest]
        norms = jnp.sqrt(squares([scale for scale, _ in powers]))
        norms = jnp.ldexp(norms, jnp.stack([exponent for _, exponent in powers], axis=-1))
        return jnp.where(jnp.isfinite(jnp.stack(largest, axis=-1)), norms, jnp.inf)

    plain = squares(None)
    low, high = _SAFE_SQUARES
    safe = (plain >= low) & (plain <= high)
    # The branch is for speed; a row's own norm does not depend on the other rows.
    norms = jax.lax.cond(
        jnp.all(safe | ~rows[:, None]),
        lambda: jnp.sqrt(plain),
        lambda: jnp.where(safe, jnp.sqrt(plain), scaled()),
    )
    return jnp.where(jnp.all(jnp.isfinite(norms), axis=1, keepdims=True), norms, jnp.inf)


def row_squares(rows: jax.Array) -> jax.Array:
    """Returns the sum of the squares of each row.

    A row's axes are flattened first, because one axis is the fastest to sum over. Not on a mesh:
    there the axes may be split over devices, and flattening would gather the rows.

    >>> row_squares(jnp.array([[[1.0, 2.0], [0.0, 2.0]]])).tolist()
    [9.0]
    """
    if mesh_of(rows) is None:
        rows = rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))
    return jnp.sum(rows * rows, axis=_all_but_first(rows))


def _all_but_first(leaf: jax.Array) -> tuple[int, ...]:
    return tuple(range(1, leaf.ndim))


def _column(values: jax.Array, ndim: int) -> jax.Array:
    return values.reshape((-1,) + (1,) * (ndim - 1))


def norms_of(gradients: Sequence[jax.Array]) -> jax.Array:
    """Returns the norm of each gradient of one example.

    >>> norms_of([jnp.array([3.0, 4.0]), jnp.array(2.0)]).tolist()
    [5.0, 2.0]
    """
    rows = [x[None] for x in gradients]
    return row_norms(rows, tuple(range(len(rows))), len(rows), jnp.ones(1, bool))[0]


def combined_norm(norms: jax.Array) -> jax.Array:
    """Returns the flat norm from the norms of groups along the last axis; +inf stays +inf.

    ``(sum_g norms[..., g]^2)^(1/2)``, without overflow.

    Args:
        norms: (..., G) norms.

    Returns:
        (...) norms.

    Example:
        >>> [f"{n:.4g}" for n in combined_norm(jnp.array([[3e30, 4e30], [0, 0], [jnp.inf, 1]]))]
        ['5e+30', '0', 'inf']
    """
    largest = jnp.max(norms, axis=-1, initial=0.0)
    scale, exponent = power_of_two(largest)
    squares = jnp.sum(jnp.square(norms * scale[..., None]), axis=-1)
    combined = jnp.ldexp(jnp.sqrt(squares), exponent)
    return jnp.where(jnp.isfinite(largest), combined, jnp.inf)


def power_of_two(largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns an exact scale that brings `largest` near 1, and the exponent that undoes it."""
    limits = jnp.finfo(largest.dtype)
    _, exponent = jnp.frexp(jnp.where(jnp.isfinite(largest), largest, 1.0))
    exponent = jnp.clip(exponent, int(limits.minexp) + 1, int(limits.maxexp) - 2)
    return jnp.ldexp(jnp.ones_like(largest), -exponent), exponent


def _pairwise_sum(terms: Sequence[jax.Array]) -> jax.Array:
    """Adds in pairs, so that the rounding error grows only with the logarithm of their number."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return _pairwise_sum(terms[:half]) + _pairwise_sum(terms[half:])
