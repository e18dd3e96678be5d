"""ResNet-18 and ResNet-34 with group normalisation or without any, and ScaleNorm."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from dpjax import _checks
from dpjax.models.activations import Activation
from dpjax.models.activations import activation as activation_of
from dpjax.models.layers import GroupNorm, conv, dense, scale_norm_of
from dpjax.models.stem import check_stem, pooled, stem_conv

__all__ = ["NORMS", "BasicBlock", "ResNet", "resnet18", "resnet34", "stages"]

NORMS = ("group", "none")
"""What replaces BatchNorm."""

# torchvision's initialiser: normal with variance 2 / fan_out.
_he_fan_out = jax.nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def stages(blocks: Sequence[int], width: int) -> list[tuple[int, int, int]]:
    """Returns (inputs, outputs, stride) of each block; a new stage doubles channels, halves sides.

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

    def __init__(
        self, inputs: int, outputs: int, stride: int, groups: int | None, rngs: nnx.Rngs
    ) -> None:
        """Makes both layers."""
        self.conv = _conv(inputs, outputs, 1, stride=stride, rngs=rngs)
        self.norm = _norm(outputs, groups)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies both."""
        return self.norm(self.conv(x))


class BasicBlock(nnx.Module):
    """``relu(scale_norm(norm2(conv2(relu(norm1(conv1(x))))) + shortcut(x)))``.

    ScaleNorm is one more group normalisation, after the addition (Klause et al. 2022). It evens out
    the different scales of the two branches.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        *,
        groups: int | None,
        scale_norm: bool,
        activation: Activation = "relu",
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the layers; without `groups` there is no normalisation."""
        self.activation = activation_of(activation)
        self.conv1 = _conv(inputs, outputs, 3, stride=stride, padding=1, rngs=rngs)
        self.norm1 = _norm(outputs, groups)
        self.conv2 = _conv(outputs, outputs, 3, padding=1, rngs=rngs)
        self.norm2 = _norm(outputs, groups)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else Shortcut(inputs, outputs, stride, groups, rngs)
        self.scale_norm = scale_norm_of(outputs, groups or outputs, scale_norm)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the block to one example."""
        residual = self.norm2(self.conv2(self.activation(self.norm1(self.conv1(x)))))
        total = residual + (x if self.shortcut is None else self.shortcut(x))
        return self.activation(total if self.scale_norm is None else self.scale_norm(total))


class ResNet(nnx.Module):
    """A residual network of basic blocks, in four stages, for one image.

    Parameters are ``conv1``, ``norm1``, ``blocks/<i>/conv1/kernel`` ... and ``dense``.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        blocks: the number of blocks in each stage.
        width: the channels of the first stage.
        groups: the groups of each normalisation, at most one per channel.
        scale_norm: whether each block also normalises after its addition.
        stem: "imagenet" or "cifar".
        norm: "group" or "none".
        activation: a spec for `dpjax.models.activation`.
        rngs: draws the initial parameters.
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
        norm: str = "group",
        activation: Activation = "relu",
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the stem, the blocks and the last layer."""
        width = _checks.integer("width", width, at_least=1)
        _checks.integer("groups", groups, at_least=1)
        own = groups if _checks.choice("norm", norm, NORMS) == "group" else None
        self.activation = activation_of(activation)
        self.stem = check_stem(stem)
        self.conv1 = stem_conv(functools.partial(_conv, rngs=rngs), shape, stem, width)
        self.norm1 = _norm(width, own)
        options: dict[str, Any] = {"groups": own, "scale_norm": scale_norm, "rngs": rngs}
        options["activation"] = activation
        plan = stages(blocks, width)
        self.blocks = nnx.List([BasicBlock(*sizes, **options) for sizes in plan])
        self.dense = dense(plan[-1][1], classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits of one example."""
        x = pooled(self.activation(self.norm1(self.conv1(x))), self.stem)
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
    norm: str = "group",
    activation: Activation = "relu",
) -> ResNet:
    """ResNet-18 with GroupNorm instead of BatchNorm, which has the same number of parameters.

    It has 11,689,512 parameters for 1000 classes, like torchvision's. DC-SGD prints "about 12M" and
    uses PyTorch's defaults, so its stem is the default here; with ten classes the network has
    11,181,642 parameters. Lin et al. removed BatchNorm without a replacement: ``norm="none"``, with
    11,172,042 parameters. Automatic Clipping cites results with this network.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        rngs: draws the initial parameters.
        width: the channels of the first stage.
        groups: the groups of each normalisation, at most one per channel. The papers give no
            number; 32 is from the paper on group normalisation.
        scale_norm: whether each block also normalises after its addition (Klause et al. 2022).
        stem: "imagenet" (7x7 stride 2, max 3x3 stride 2) or "cifar" (3x3, no pooling).
        norm: "group", or "none" for no normalisation at all.
        activation: a spec for `dpjax.models.activation`.

    Reference: He et al. 2016; Wu and He 2018; Klause et al. 2022.
    """
    return ResNet(
        shape,
        classes,
        blocks=[2, 2, 2, 2],
        width=width,
        groups=groups,
        scale_norm=scale_norm,
        stem=stem,
        norm=norm,
        activation=activation,
        rngs=rngs,
    )


def resnet34(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    width: int = 64,
    groups: int = 32,
    scale_norm: bool = False,
    stem: str = "imagenet",
    norm: str = "group",
    activation: Activation = "relu",
) -> ResNet:
    """ResNet-34 with GroupNorm: 21,797,672 parameters for 1000 classes, DC-SGD's "about 22M".

    With ten classes it has 21,289,802. The arguments are those of `resnet18`.

    Reference: He et al. 2016; Wu and He 2018; Klause et al. 2022.
    """
    return ResNet(
        shape,
        classes,
        blocks=[3, 4, 6, 3],
        width=width,
        groups=groups,
        scale_norm=scale_norm,
        stem=stem,
        norm=norm,
        activation=activation,
        rngs=rngs,
    )


class _Unchanged(nnx.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        return x


def _norm(channels: int, groups: int | None) -> GroupNorm | _Unchanged:
    return _Unchanged() if groups is None else GroupNorm(channels, groups)


_conv: Callable[..., nnx.Conv] = functools.partial(conv, bias=False, kernel_init=_he_fan_out)
