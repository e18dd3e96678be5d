"""The stem of a residual network: the layers before its blocks."""

from collections.abc import Callable, Sequence

import jax
from flax import nnx

from dpjax import _checks
from dpjax.models.pooling import max_pool
from dpjax.models.shapes import image_shape

__all__ = ["STEMS", "check_stem", "pooled", "stem_conv"]

# Side, stride and padding of the first convolution.
STEMS = {
    "imagenet": {"window": 7, "stride": 2, "padding": 3},
    "cifar": {"window": 3, "stride": 1, "padding": 1},
}


def check_stem(stem: str) -> str:
    """Returns the stem's name: "imagenet" (7x7 stride 2, max 3x3 stride 2) or "cifar" (3x3)."""
    return _checks.choice("stem", stem, STEMS)


def stem_conv(
    conv: Callable[..., nnx.Module], shape: Sequence[int], stem: str, width: int
) -> nnx.Module:
    """Makes the first convolution of (height, width, channels) images."""
    return conv(image_shape(shape)[2], width, **STEMS[check_stem(stem)])


def pooled(x: jax.Array, stem: str) -> jax.Array:
    """Applies the stem's pooling, if it has one."""
    return max_pool(x, 3, 2, padding=1) if stem == "imagenet" else x
