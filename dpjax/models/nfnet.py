"""NFNet-F0 and F1."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from dpjax import _checks
from dpjax.models.pooling import avg_pool
from dpjax.models.shapes import image_shape
from dpjax.models.standardised import SqueezeExcite, StandardisedConv, scaled_gelu

__all__ = ["NFNetBlock", "nfnet_f0", "nfnet_f1"]

_WIDTHS = (256, 512, 1536, 1536)
_DEPTHS = {"f0": (1, 2, 6, 3), "f1": (2, 4, 12, 6)}
_GROUP = 128  # channels of a group in the 3x3 convolutions
_ALPHA = 0.2


class NFNetBlock(nnx.Module):
    """``shortcut(x) + alpha gain 2 se(y) y``, where y is four convolutions of ``act(x) beta``.

    1x1 to half of the outputs, two grouped 3x3, 1x1 to the outputs; se are squeeze-and-excite
    weights; the gain starts at zero (SkipInit). Where the shape changes, the shortcut is a 1x1
    convolution of ``act(x) beta``, averaged over 2x2 first if the stride is 2.
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int, *, beta: float, group: int, rngs: nnx.Rngs
    ) -> None:
        """Makes the layers."""
        self.stride, self.beta = stride, beta
        inner = outputs // 2
        grouped: dict[str, Any] = {"padding": "SAME", "groups": max(1, inner // group)}
        grouped["rngs"] = rngs
        self.conv1 = StandardisedConv(inputs, inner, 1, rngs=rngs)
        self.conv2 = StandardisedConv(inner, inner, 3, stride=stride, **grouped)
        self.conv2b = StandardisedConv(inner, inner, 3, **grouped)
        self.conv3 = StandardisedConv(inner, outputs, 1, rngs=rngs)
        self.excite = SqueezeExcite(outputs, outputs // 2, rngs=rngs)
        self.gain = nnx.Param(jnp.zeros(()))
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else StandardisedConv(inputs, outputs, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the block to one example."""
        active = scaled_gelu(x) * self.beta
        if self.shortcut is not None:
            small = avg_pool(active, 2, 2) if self.stride > 1 else active
            x = self.shortcut(small)
        y = self.conv1(active)
        for conv in (self.conv2, self.conv2b, self.conv3):
            y = conv(scaled_gelu(y))
        return x + (_ALPHA * 2 * self.gain[...]) * (self.excite(y) * y)


class NFNet(nnx.Module):
    """An NFNet for one image; parameters are ``stem/<i>``, ``blocks/<i>``, ``final``, ``dense``.

    Args:
        shape: (height, width, channels) of one example; sides divisible by 32.
        classes: the number of logits.
        depths: the blocks of each stage.
        widths: the channels of each stage.
        group: the channels of a group in the 3x3 convolutions.
        rngs: draws the initial parameters.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        depths: Sequence[int],
        widths: Sequence[int],
        group: int,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the stem, the blocks and the last layers."""
        height, width, channels = image_shape(shape)
        if height % 32 or width % 32:
            raise ValueError(f"shape = {tuple(shape)}: expected sides that 32 divides")
        inputs, stem = channels, []
        for outputs, stride in zip((8, 4, 2, 1), (2, 1, 1, 2), strict=True):
            outputs = widths[0] // 2 // outputs  # noqa: PLW2901
            options: dict[str, Any] = {"stride": stride, "padding": "SAME", "rngs": rngs}
            stem.append(StandardisedConv(inputs, outputs, 3, **options))
            inputs = outputs
        self.stem = nnx.List(stem)
        blocks, variance = [], 1.0
        for stage, (depth, outputs) in enumerate(zip(depths, widths, strict=True)):
            for place in range(depth):
                stride = 2 if stage and not place else 1
                sizes = (inputs, outputs, stride)
                beta = variance**-0.5
                blocks.append(NFNetBlock(*sizes, beta=beta, group=group, rngs=rngs))
                variance = (variance if place else 1.0) + _ALPHA**2
                inputs = outputs
        self.blocks = nnx.List(blocks)
        self.final = StandardisedConv(inputs, 2 * inputs, 1, rngs=rngs)
        normal = jax.nn.initializers.normal(0.01)
        self.dense = nnx.Linear(2 * inputs, classes, kernel_init=normal, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits of one example."""
        for place, conv in enumerate(self.stem):
            x = conv(x if place == 0 else scaled_gelu(x))
        for block in self.blocks:
            x = block(x)
        return self.dense(jnp.mean(scaled_gelu(self.final(x)), axis=(0, 1)))


def nfnet_f0(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    widths: Sequence[int] = _WIDTHS,
    group: int = _GROUP,
) -> NFNet:
    """NFNet-F0: 71.49 million parameters for 1000 classes; Auto DP-SGD fine-tunes it on CIFAR-10.

    Convolutions with standardised weights, squeeze-and-excite, no normalisation. Dropout and
    stochastic depth are left out: noise and clipping regularise enough.

    Args:
        shape: (height, width, channels) of one example; sides divisible by 32.
        classes: the number of logits.
        rngs: draws the initial parameters.
        widths: the channels of the four stages.
        group: the channels of a group in the 3x3 convolutions.

    Reference: Brock et al., High-performance large-scale image recognition without normalization,
    2021. https://arxiv.org/abs/2102.06171
    """
    return _nfnet("f0", shape, classes, widths, group, rngs)


def nfnet_f1(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    widths: Sequence[int] = _WIDTHS,
    group: int = _GROUP,
) -> NFNet:
    """NFNet-F1: twice F0's blocks, 132.63 million parameters for 1000 classes.

    Auto DP-SGD fine-tunes it on CIFAR-100. The arguments are those of `nfnet_f0`.

    Reference: Brock et al., High-performance large-scale image recognition without normalization,
    2021. https://arxiv.org/abs/2102.06171
    """
    return _nfnet("f1", shape, classes, widths, group, rngs)


def _nfnet(
    variant: str,
    shape: Sequence[int],
    classes: int,
    widths: Sequence[int],
    group: int,
    rngs: nnx.Rngs,
) -> NFNet:
    sizes = [_checks.integer("widths", width, at_least=16) for width in widths]
    if len(sizes) != len(_WIDTHS):
        raise ValueError(f"widths = {list(widths)}: expected four numbers")
    group = _checks.integer("group", group, at_least=1)
    depths = _DEPTHS[variant]
    return NFNet(shape, classes, depths=depths, widths=sizes, group=group, rngs=rngs)
