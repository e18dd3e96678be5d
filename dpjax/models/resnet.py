"""ResNet-18 and ResNet-34 with group normalisation, and ScaleNorm."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from dpjax import _checks
from dpjax.models.layers import GroupNorm, conv, dense, scale_norm_of
from dpjax.models.stem import check_stem, pooled, stem_conv

__all__ = ["BasicBlock", "ResNet", "resnet18", "resnet34", "stages"]

# torchvision's: normal, of variance 2 / fan_out.
_he_fan_out = jax.nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def stages(blocks: Sequence[int], width: int) -> list[tuple[int, int, int]]:
    """Returns (inputs, outputs, stride) of each block; a new stage doubles and halves.

    >>> stages([1, 2], width=64)
    [(64, 64, 1), (64, 128, 2), (128, 128, 1)]
    """
    plan, inputs = [], width
    for stage, count in enumerate(blocks):
        for block in range(count):
            outputs = width * 2**stage
            plan.append((inputs, outputs, 2 if stage and not block else 1))
            inputs = outputs
    return plan


class Shortcut(nnx.Module):
    """A 1x1 convolution and a normalisation, where a block changes its input's shape."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int, rngs: nnx.Rngs) -> None:
        """Makes both layers."""
        self.conv = _conv(inputs, outputs, 1, stride=stride, rngs=rngs)
        self.norm = GroupNorm(outputs, groups)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies both."""
        return self.norm(self.conv(x))


class BasicBlock(nnx.Module):
    """``relu(scale_norm(norm2(conv2(relu(norm1(conv1(x))))) + shortcut(x)))``.

    ScaleNorm is one more group normalisation, after the addition (Klause et al. 2022): the sum's
    two branches have different scales, which it evens out.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        *,
        groups: int,
        scale_norm: bool,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the layers."""
        self.conv1 = _conv(inputs, outputs, 3, stride=stride, padding=1, rngs=rngs)
        self.norm1 = GroupNorm(outputs, groups)
        self.conv2 = _conv(outputs, outputs, 3, padding=1, rngs=rngs)
        self.norm2 = GroupNorm(outputs, groups)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else Shortcut(inputs, outputs, stride, groups, rngs)
        self.scale_norm = scale_norm_of(outputs, groups, scale_norm)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the block to one example."""
        residual = self.norm2(self.conv2(jax.nn.relu(self.norm1(self.conv1(x)))))
        total = residual + (x if self.shortcut is None else self.shortcut(x))
        return jax.nn.relu(total if self.scale_norm is None else self.scale_norm(total))


class ResNet(nnx.Module):
    """A residual network of basic blocks, in four stages, for one image.

    Parameters are ``conv1``, ``norm1``, ``blocks/<i>/conv1/kernel`` ... and ``dense``.

    Args:
        shape: (height, width, channels) of one example.
        classes: how many logits.
        blocks: how many, for each stage.
        width: channels of the first stage.
        groups: of each normalisation, capped at one per channel.
        scale_norm: whether each block normalises after its addition.
        stem: "imagenet" or "cifar".
        rngs: where the initial parameters come from.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        blocks: Sequence[int],
        width: int,
        groups: int,
        scale_norm: bool,
        stem: str,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the stem, the blocks and the last layer."""
        width = _checks.integer("width", width, at_least=1)
        groups = _checks.integer("groups", groups, at_least=1)
        self.stem = check_stem(stem)
        self.conv1 = stem_conv(functools.partial(_conv, rngs=rngs), shape, stem, width)
        self.norm1 = GroupNorm(width, groups)
        options: dict[str, Any] = {"groups": groups, "scale_norm": scale_norm, "rngs": rngs}
        plan = stages(blocks, width)
        self.blocks = nnx.List([BasicBlock(*sizes, **options) for sizes in plan])
        self.dense = dense(plan[-1][1], classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits of one example."""
        x = pooled(jax.nn.relu(self.norm1(self.conv1(x))), self.stem)
        for block in self.blocks:
            x = block(x)
        return self.dense(jnp.mean(x, axis=(0, 1)))


def resnet18(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    width: int = 64,
    groups: int = 32,
    scale_norm: bool = False,
    stem: str = "imagenet",
) -> ResNet:
    """ResNet-18 with GroupNorm in place of BatchNorm, which has as many parameters.

    11,689,512 for 1000 classes, torchvision's number: DC-SGD prints "about 12M" and follows
    PyTorch's defaults, hence its stem is the default here; with its ten classes the network has
    11,181,642. Lin et al. removed BatchNorm and put nothing in its place; Automatic Clipping cites
    results with this network.

    Args:
        shape: (height, width, channels) of one example.
        classes: how many logits.
        rngs: where the initial parameters come from.
        width: channels of the first stage.
        groups: of each normalisation, capped at one per channel. The papers give none: 32 is the
            group normalisation paper's.
        scale_norm: whether each block normalises after its addition (Klause et al. 2022).
        stem: "imagenet" (7x7 stride 2, max 3x3 stride 2) or "cifar" (3x3, no pooling).

    Reference: He et al. 2016; Wu and He 2018; Klause et al. 2022.
    """
    return _resnet(shape, classes, [2, 2, 2, 2], width, groups, scale_norm, stem, rngs)


def resnet34(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    width: int = 64,
    groups: int = 32,
    scale_norm: bool = False,
    stem: str = "imagenet",
) -> ResNet:
    """ResNet-34 with GroupNorm: 21,797,672 parameters for 1000 classes, DC-SGD's "about 22M".

    With ten classes 21,289,802. The arguments are those of `resnet18`.

    Reference: He et al. 2016; Wu and He 2018; Klause et al. 2022.
    """
    return _resnet(shape, classes, [3, 4, 6, 3], width, groups, scale_norm, stem, rngs)


def _resnet(
    shape: Sequence[int],
    classes: int,
    blocks: Sequence[int],
    width: int,
    groups: int,
    scale_norm: bool,
    stem: str,
    rngs: nnx.Rngs,
) -> ResNet:
    return ResNet(
        shape,
        classes,
        blocks=blocks,
        width=width,
        groups=groups,
        scale_norm=scale_norm,
        stem=stem,
        rngs=rngs,
    )


_conv: Callable[..., nnx.Conv] = functools.partial(conv, bias=False, kernel_init=_he_fan_out)
