"""Checks of the shape of one example, for which a network is built."""

from collections.abc import Sequence

from dpjax import _checks

__all__ = ["example_shape", "feature_count", "image_shape", "token_count", "window_output"]


def example_shape(shape: object) -> tuple[int, ...]:
    """Returns the shape of ONE example as a tuple of positive integers.

    >>> example_shape([28, 28, 1])
    (28, 28, 1)
    """
    if not isinstance(shape, Sequence) or isinstance(shape, str) or not shape:
        raise TypeError(f"shape = {shape!r}: expected one example's shape, such as (28, 28, 1)")
    return tuple(
        _checks.integer(f"shape[{axis}]", size, at_least=1) for axis, size in enumerate(shape)
    )


def image_shape(shape: object) -> tuple[int, int, int]:
    """Returns (height, width, channels), or raises ValueError for other shapes."""
    sizes = example_shape(shape)
    if len(sizes) != 3:
        raise ValueError(f"shape = {sizes}: expected an image, (height, width, channels)")
    return sizes[0], sizes[1], sizes[2]


def token_count(shape: object) -> int:
    """Returns the length of a token sequence, or raises ValueError for other shapes."""
    sizes = example_shape(shape)
    if len(sizes) != 1:
        raise ValueError(f"shape = {sizes}: expected a sequence of tokens, (length,)")
    return sizes[0]


def feature_count(shape: object) -> int:
    """Returns the number of entries of one example; any shape is flattened."""
    count = 1
    for size in example_shape(shape):
        count *= size
    return count


def window_output(field: str, size: int, window: int, stride: int, padding: int = 0) -> int:
    """Returns ``floor((size + 2 padding - window) / stride) + 1``; raises if that is below 1.

    >>> window_output("conv", 28, window=8, stride=2, padding=3)
    14
    """
    output = (size + 2 * padding - window) // stride + 1
    if output < 1:
        raise ValueError(
            f"{field}: a side of {size} is too small for a window of {window}: "
            "expected a larger image"
        )
    return output
