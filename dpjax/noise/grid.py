"""The release of noisy sums on a public grid, and how sigma is split between two releases."""

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import chex
import jax
import jax.numpy as jnp

from dpjax._record import Record
from dpjax.noise.gaussian import draws_of
from dpjax.twofloat import two_sum

__all__ = ["grid_unit", "on_grid", "release", "sigma_gradient", "white"]

Tree = TypeVar("Tree")


def grid_unit(std: chex.Numeric) -> jax.Array:
    """Returns the spacing of the public grid: the largest power of two not above ``std / 16``.

    Args:
        std: the standard deviation of the noise, > 0.

    Example:
        >>> [float(grid_unit(std)) for std in (16.0, 31.0, 0.5)]
        [1.0, 1.0, 0.03125]
    """
    std = jnp.asarray(std)
    std = std if std.dtype == jnp.float64 else std.astype(jnp.float32)
    _, exponent = jnp.frexp(std / 16)
    return jnp.ldexp(jnp.ones_like(std), exponent - 1)


def on_grid(high: jax.Array, low: jax.Array, noise: jax.Array, unit: chex.Numeric) -> jax.Array:
    """Returns ``high + low + noise`` rounded to a multiple of `unit`, in two-float arithmetic.

    The error of sum and rounding is below 1e-6 of a unit. The result is thus the multiple nearest
    to the exact sum, unless the sum is that close to the midpoint between two multiples.

    Args:
        high: the high half of the sum.
        low: the low half of the sum; ``high + low`` is exact.
        noise: the noise to add.
        unit: the spacing of the grid, a power of two.

    Example:
        >>> on_grid(jnp.float32(1e6), jnp.float32(0.3), jnp.float32(0.3), 1.0).item()
        1000001.0
    """
    # Exact, because unit is a power of two; fusing products and sums changes nothing.
    a, b = high / unit, noise / unit
    total, error = two_sum(a, b)
    whole = jnp.round(total)
    rest = jnp.round((total - whole) + (error + low / unit))
    multiple = whole + rest
    return jnp.where(multiple == 0, 0, multiple * unit)  # no -0: the sign would reveal more


def release(key: jax.Array, high: Tree, low: Tree, std: chex.Numeric) -> Tree:
    """Returns ``high + low + std z``, z standard normal, rounded to the public grid of `std`.

    The grid does not depend on the data. Without it, float32 would round each sum to a lattice that
    depends on the sum, and some outputs would be possible for only one of two data sets. Rounding
    is post-processing of the noisy sum; it adds at most ``unit^2 / 12``, 0.03%, to the variance.

    Args:
        key: the key of this release; never use it for another.
        high: the high halves of the exact sum, a pytree of floating-point arrays.
        low: the low halves of the exact sum.
        std: the standard deviation in every coordinate; 0 releases the sum itself, without a grid.

    Privacy:
        Event: a Gaussian of standard deviation `std`, for sums that differ by a bounded amount
        between neighbouring data sets. Two differences from it remain. The probability of a cell is
        Gaussian times ``1 + r``, where r is 2e-7 to 2e-6 for most of the mass; this is not
        accounted (docs/noise.md). Outputs beyond SUPPORT times `std` have probability 0;
        `dpjax.accounting` adds the possible cost of this to delta.

    Example:
        >>> out = release(jax.random.key(0), jnp.zeros(2), jnp.zeros(2), 16.0)
        >>> bool(jnp.all(out == jnp.round(out)))
        True
    """

    def noisy(z: jax.Array, total: jax.Array, rest: jax.Array) -> jax.Array:
        scale = jnp.asarray(std, z.dtype)
        unit = jnp.where(scale > 0, grid_unit(scale), 1)
        rounded = on_grid(total, rest, scale * z, unit)
        # If sum / noise overflows, the noise is too small to count as noise: there is no grid.
        return jnp.where((scale > 0) & jnp.isfinite(rounded), rounded, total + (rest + scale * z))

    highs, treedef = jax.tree.flatten(high)
    sums = [highs, jax.tree.leaves(low)]
    released: dict[int, jax.Array] = {}
    for draw in draws_of(highs):
        if draw.mesh is None:
            together = [draw.together(half) for half in sums]
            released.update(draw.apart(draw.with_normals(key, noisy, *together)))
        else:  # on a mesh, where each leaf stays in place
            normals = draw.apart(draw.with_normals(key, lambda z: z))
            released.update({i: noisy(z, *(half[i] for half in sums)) for i, z in normals.items()})
    return jax.tree.unflatten(treedef, [released[i] for i in range(len(highs))])


class _NoiseRecord(Record):
    role: ClassVar[str] = "noise"


@dataclass(frozen=True)
class white(_NoiseRecord):
    """Independent Gaussian noise in every coordinate and at every step.

    Privacy:
        Event: one Gaussian per step; see `release`. Steps compose as independent releases.

    Example:
        >>> out = white().release(jax.random.key(0), jnp.zeros(2), jnp.zeros(2), 1.0)
        >>> out.shape
        (2,)
    """

    def release(self, key: jax.Array, high: Tree, low: Tree, std: chex.Numeric) -> Tree:
        """Returns the noisy sum on its public grid; the arguments are those of `release`.

        Args:
            key: the key of this release; never use it for another.
            high: the high halves of the exact sum.
            low: the low halves of the exact sum.
            std: the standard deviation in every coordinate.
        """
        return release(key, high, low, std)


def sigma_gradient(sigma: chex.Numeric, sigma_statistic: float | None) -> jax.Array:
    """Returns sigma_T, the noise multiplier of the gradient in a joint release of total `sigma`.

    ``sigma_T = (sigma^-2 - sigma_S^-2)^(-1/2) = sigma / sqrt(1 - (sigma / sigma_S)^2)``.

    Args:
        sigma: the total, accounted noise multiplier.
        sigma_statistic: sigma_S, the noise multiplier of the statistic; None without one.

    Returns:
        sigma_T; `sigma` itself without a statistic, and NaN if sigma > sigma_S.

    Example:
        >>> round(float(sigma_gradient(3.0, 5.0)), 4)
        3.75
    """
    sigma = jnp.asarray(sigma, jnp.float32)
    if sigma_statistic is None:
        return sigma
    return sigma / jnp.sqrt(1.0 - jnp.square(sigma / sigma_statistic))
