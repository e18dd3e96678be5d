"""Gaussian noise in float32, its keys, and the split of sigma between gradient and statistic."""

import itertools
import math
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _threefry

__all__ = ["SUPPORT", "add_gaussian", "checked_key", "sigma_gradient", "stream"]

SUPPORT = math.sqrt(2 * 97 * math.log(2))
"""The largest standard normal that can be drawn, 11.6: its radius comes from 2^-97."""

_PIECE = 2**20  # about how many numbers are drawn together


def checked_key(key: Any) -> jax.Array:
    """Returns `key` as a typed threefry key, or refuses it.

    Noise needs a key that somebody chose: there is no default. Other generators than threefry are
    refused because under vmap they need not give independent draws.

    >>> checked_key(None)
    Traceback (most recent call last):
    ...
    TypeError: key = None: expected a JAX random key, for instance jax.random.key(seed)
    """
    dtype = getattr(key, "dtype", None)
    if dtype == jnp.uint32 and key.shape[-1:] == (2,):
        return jax.random.wrap_key_data(key, impl="threefry2x32")
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise TypeError(
            f"key = {key!r}: expected a JAX random key, for instance jax.random.key(seed)"
        )
    if key.shape != ():
        raise ValueError(f"key has shape {key.shape}: expected a single key")
    if (name := str(jax.random.key_impl(key))) != "threefry2x32":
        raise ValueError(f"key is of the generator {name!r}: expected 'threefry2x32'")
    return key


def stream(key: jax.Array, name: str) -> jax.Array:
    """Returns the key of a named stream: sampling, initialisation, dropout, noise never share one.

    >>> import jax
    >>> root = jax.random.key(0)
    >>> bool(stream(root, "noise/gradient") == stream(root, "noise/statistic"))
    False
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def add_gaussian(key: jax.Array, tree: Any, std: Any) -> Any:
    """Returns ``tree + std * N(0, I)``, drawn in float32 or wider.

    One draw covers all leaves, end to end in the order of ``jax.tree.leaves``.

    Args:
        key: the key of this one release.
        tree: pytree of floating-point arrays.
        std: the standard deviation of every coordinate.
    """
    leaves, treedef = jax.tree.flatten(tree)
    dtype = jnp.result_type(jnp.float32, *leaves)
    draws = _standard_normal(key, [leaf.size for leaf in leaves], dtype)
    noisy = [
        leaf + std * draw.reshape(leaf.shape) for leaf, draw in zip(leaves, draws, strict=True)
    ]
    return jax.tree.unflatten(treedef, noisy)


def _standard_normal(key: jax.Array, sizes: Sequence[int], dtype: Any) -> list[jax.Array]:
    """Returns one draw, cut into parts.

    It is made in pieces of some leaves each: a draw per leaf would take many times longer to
    compile, and one for millions of parameters would be written to memory before it is added.
    """
    draws: list[jax.Array] = []
    done = 0
    while len(draws) < len(sizes):
        piece = _leading(sizes[len(draws) :], at_least=_PIECE)
        drawn = jax.random.normal(_threefry.fused(key, done), (sum(piece),), dtype)
        draws += jnp.split(drawn, list(itertools.accumulate(piece))[:-1])
        done += sum(piece)
    return draws


def _leading(sizes: Sequence[int], at_least: int) -> Sequence[int]:
    """Returns as many sizes from the front as reach a sum; all, if they do not.

    >>> _leading([2, 3, 4, 5], at_least=5)
    [2, 3]
    """
    enough = (i for i, end in enumerate(itertools.accumulate(sizes), 1) if end >= at_least)
    return sizes[: next(enough, len(sizes))]


def sigma_gradient(sigma: Any, sigma_statistic: float | None) -> jax.Array:
    """Returns the gradient's share of a joint release with total `sigma`.

    ``sigma_T = (sigma^-2 - sigma_S^-2)^(-1/2) = sigma / sqrt(1 - (sigma / sigma_S)^2)``; sigma
    itself when there is no statistic. NaN, and so a NaN release, when sigma > sigma_S.

    >>> round(float(sigma_gradient(3.0, 5.0)), 4)
    3.75
    """
    sigma = jnp.asarray(sigma, jnp.float32)
    if sigma_statistic is None:
        return sigma
    return sigma / jnp.sqrt(1.0 - jnp.square(sigma / sigma_statistic))
