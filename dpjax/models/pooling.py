"""Pooling over small windows, as sums and maxima of shifted slices.

The gradient of a window reduction is a scatter, which is slow on CPUs; the gradient of slices pads
and adds. The values are the same. If several inputs of a window are the largest, each maximum
splits the gradient equally between its two sides, instead of giving it to the first.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

__all__ = ["adaptive_avg_pool", "adaptive_max_pool", "avg_pool", "max_pool"]


def max_pool(x: jax.Array, window: int, stride: int, padding: int = 0) -> jax.Array:
    """Takes the largest input of each ``window x window`` square.

    Args:
        x: (..., height, width, channels).
        window: the square's side.
        stride: the distance from one square to the next.
        padding: rows and columns of minus infinity around the image, fewer than `window`.

    Example:
        >>> max_pool(jnp.arange(9.0).reshape(3, 3, 1), window=2, stride=1)[..., 0].tolist()
        [[4.0, 5.0], [7.0, 8.0]]
    """
    if padding:
        around = [(0, 0)] * (x.ndim - 3) + [(padding, padding)] * 2 + [(0, 0)]
        x = jnp.pad(x, around, constant_values=-jnp.inf)
    return _over_windows(jnp.maximum, x, window, stride)


def avg_pool(x: jax.Array, window: int, stride: int) -> jax.Array:
    """Averages each ``window x window`` square of (..., height, width, channels)."""
    return _over_windows(jnp.add, x, window, stride) / window**2


def adaptive_max_pool(x: jax.Array, size: int) -> jax.Array:
    """Takes the largest input of each of ``size x size`` cells that cover the image."""
    return _over_cells(jnp.max, x, size)


def adaptive_avg_pool(x: jax.Array, size: int) -> jax.Array:
    """Averages each of ``size x size`` cells that cover the image.

    Cell i spans the rows ``floor(i H / size)`` to ``ceil((i + 1) H / size)``, as in PyTorch; cells
    overlap if `size` does not divide H.
    """
    return _over_cells(jnp.mean, x, size)


def _over_windows(
    combine: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array, window: int, stride: int
) -> jax.Array:
    # Rows first, then columns: 2 (window - 1) operations instead of window^2 - 1.
    for axis in (x.ndim - 3, x.ndim - 2):
        last = x.shape[axis] - window
        x = functools.reduce(
            combine,
            [
                jax.lax.slice_in_dim(x, shift, last + shift + 1, stride, axis)
                for shift in range(window)
            ],
        )
    return x


def _over_cells(reduce: Callable[..., jax.Array], x: jax.Array, size: int) -> jax.Array:
    for axis in (x.ndim - 3, x.ndim - 2):
        cells = []
        for cell in range(size):
            start = cell * x.shape[axis] // size
            stop = math.ceil((cell + 1) * x.shape[axis] / size)
            part = jax.lax.slice_in_dim(x, start, stop, 1, axis)
            cells.append(reduce(part, axis=axis, keepdims=True))
        x = jnp.concatenate(cells, axis)
    return x
