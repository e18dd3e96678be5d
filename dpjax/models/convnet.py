"""Plain convolutional networks: convolutions and pooling, then dense layers, from a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from dpjax.models import pooling
from dpjax.models.activations import Activation
from dpjax.models.activations import activation as activation_of
from dpjax.models.layers import conv, dense
from dpjax.models.shapes import image_shape, window_output

__all__ = ["AdaptiveAvgPool", "AvgPool", "Conv", "ConvNet", "Layer", "MaxPool", "Repeated"]


@dataclass(frozen=True)
class Conv:
    """A square convolution, followed by the activation."""

    outputs: int
    window: int
    stride: int = 1
    padding: int = 0

    def size(self, size: int) -> int:
        """Returns the side of the output."""
        return window_output("shape", size, self.window, self.stride, self.padding)


@dataclass(frozen=True)
class MaxPool:
    """Maximum over squares."""

    window: int
    stride: int

    def size(self, size: int) -> int:
        """Returns the side of the output."""
        return window_output("shape", size, self.window, self.stride)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Pools (height, width, channels)."""
        return pooling.max_pool(x, self.window, self.stride)


@dataclass(frozen=True)
class AvgPool(MaxPool):
    """Average over squares."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Pools (height, width, channels)."""
        return pooling.avg_pool(x, self.window, self.stride)


@dataclass(frozen=True)
class AdaptiveAvgPool:
    """Average over a given number of cells, whatever the image's size."""

    cells: int

    def size(self, size: int) -> int:
        """Returns the side of the output."""
        del size
        return self.cells

    def __call__(self, x: jax.Array) -> jax.Array:
        """Pools (height, width, channels)."""
        return pooling.adaptive_avg_pool(x, self.cells)


@dataclass(frozen=True)
class Repeated:
    """Several equal channels made from a grey image."""

    outputs: int

    def size(self, size: int) -> int:
        """Returns the side of the output."""
        return size

    def __call__(self, x: jax.Array) -> jax.Array:
        """Repeats (height, width, 1)."""
        return jnp.repeat(x, self.outputs, axis=-1)


Layer = Conv | MaxPool | AdaptiveAvgPool | Repeated


class ConvNet(nnx.Module):
    """Convolutions and pooling from `layers`, then the `hidden` dense layers, then the logits.

    The activation follows every layer with parameters except the last. Parameters are
    ``convs/<i>/kernel``, ``convs/<i>/bias``, ``dense/<i>/kernel`` and ``dense/<i>/bias``.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        layers: `Conv`, `MaxPool`, `AvgPool`, `AdaptiveAvgPool`, `Repeated`, in order.
        hidden: the widths of the dense layers before the last.
        activation: a spec for `dpjax.models.activation`.
        start: how parameters are initialised, "lecun" or "pytorch".
        rngs: draws the initial parameters.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        layers: Sequence[Layer],
        hidden: Sequence[int] = (),
        activation: Activation = "relu",
        start: str = "lecun",
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the layers, each for the output size of the one before."""
        self.layers = tuple(layers)
        self.activation = activation_of(activation)
        height, width, channels = image_shape(shape)
        convs = []
        for layer in self.layers:
            height, width = layer.size(height), layer.size(width)
            if isinstance(layer, Conv):
                convs.append(_conv(channels, layer, start, rngs))
            if isinstance(layer, Conv | Repeated):
                channels = layer.outputs
        self.convs = nnx.List(convs)
        widths = [height * width * channels, *hidden, classes]
        self.dense = nnx.List([dense(a, b, start=start, rngs=rngs) for a, b in pairwise(widths)])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits of one example."""
        convs = iter(self.convs)
        for layer in self.layers:
            x = self.activation(next(convs)(x)) if isinstance(layer, Conv) else layer(x)
        x = x.reshape(-1)
        for hidden in self.dense[:-1]:
            x = self.activation(hidden(x))
        return self.dense[-1](x)


def _conv(channels: int, layer: Conv, start: str, rngs: nnx.Rngs) -> nnx.Conv:
    return conv(
        channels,
        layer.outputs,
        layer.window,
        stride=layer.stride,
        padding=layer.padding,
        start=start,
        rngs=rngs,
    )
