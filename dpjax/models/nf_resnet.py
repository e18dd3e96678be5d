"""Residual networks without normalisation: standardised weights and known variances."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from dpjax import _checks
from dpjax.models.layers import dense
from dpjax.models.resnet import stages
from dpjax.models.standardised import StandardisedConv, scaled_relu
from dpjax.models.stem import check_stem, pooled, stem_conv

__all__ = ["BottleneckBlock", "NormaliserFreeBlock", "nf_resnet18", "nf_resnet50"]


class NormaliserFreeBlock(nnx.Module):
    """``shortcut(x) + alpha conv2(act(conv1(act(x) beta)))``, with `scaled_relu` as act.

    beta is the inverse of x's standard deviation at initialisation. Where the shape changes, the
    shortcut is a 1x1 convolution of ``act(x) beta``, which resets the variance to 1.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        *,
        alpha: float,
        beta: float,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the convolutions."""
        self.alpha, self.beta = alpha, beta
        self.conv1 = StandardisedConv(inputs, outputs, 3, stride=stride, padding=1, rngs=rngs)
        self.conv2 = StandardisedConv(outputs, outputs, 3, padding=1, rngs=rngs)
        same = inputs == outputs and stride == 1
        self.shortcut = (
            None if same else StandardisedConv(inputs, outputs, 1, stride=stride, rngs=rngs)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the block to one example."""
        active = scaled_relu(x) * self.beta
        residual = self.conv2(scaled_relu(self.conv1(active)))
        return (x if self.shortcut is None else self.shortcut(active)) + self.alpha * residual


class nf_resnet18(nnx.Module):
    """A ResNet-18 without normalisation.

    Pre-activation blocks ``x + alpha f(x / std)``, whose variance is known in advance: each block
    adds alpha^2, and a change of shape resets it to ``1 + alpha^2``. It is a small relative of the
    NFNets that Auto DP-SGD fine-tunes; widths and depth are ResNet-18's. The learned gain that
    starts each branch at zero (SkipInit) is left out, as in the first paper.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        rngs: draws the initial parameters.
        width: the channels of the first stage.
        alpha: the scale of what each block adds, > 0.
        stem: "imagenet" (7x7 stride 2, max 3x3 stride 2) or "cifar" (3x3, no pooling).

    Reference: Brock et al. 2021; De et al., Unlocking high-accuracy differentially private image
    classification through scale, 2022, for weight standardisation under DP-SGD.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        rngs: nnx.Rngs,
        width: int = 64,
        alpha: float = 0.2,
        stem: str = "imagenet",
    ) -> None:
        """Makes the blocks, each with its beta."""
        width = _checks.integer("width", width, at_least=1)
        alpha = _checks.positive("alpha", alpha)
        self.stem = check_stem(stem)
        self.conv1 = stem_conv(functools.partial(StandardisedConv, rngs=rngs), shape, stem, width)
        plan, blocks, variance = stages([2, 2, 2, 2], width), [], 1.0
        for inputs, outputs, stride in plan:
            sizes = (inputs, outputs, stride)
            beta = variance**-0.5
            blocks.append(NormaliserFreeBlock(*sizes, alpha=alpha, beta=beta, rngs=rngs))
            variance = (variance if inputs == outputs else 1.0) + alpha**2
        self.blocks = nnx.List(blocks)
        self.dense = dense(plan[-1][1], classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits of one example."""
        x = pooled(self.conv1(x), self.stem)
        for block in self.blocks:
            x = block(x)
        return self.dense(jnp.mean(scaled_relu(x), axis=(0, 1)))


class BottleneckBlock(nnx.Module):
    """``shortcut(x) + alpha gain y``, where y is three convolutions of ``act(x) beta``.

    1x1 to a quarter of the outputs, 3x3, 1x1 to the outputs; the gain starts at one. Where the
    shape changes, the shortcut is a 1x1 convolution of ``act(x) beta``.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        *,
        alpha: float,
        beta: float,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the convolutions."""
        self.alpha, self.beta = alpha, beta
        inner = outputs // 4
        self.conv1 = StandardisedConv(inputs, inner, 1, rngs=rngs)
        self.conv2 = StandardisedConv(inner, inner, 3, stride=stride, padding="SAME", rngs=rngs)
        self.conv3 = StandardisedConv(inner, outputs, 1, rngs=rngs)
        self.gain = nnx.Param(jnp.ones(()))
        same = inputs == outputs and stride == 1
        self.shortcut = (
            None if same else StandardisedConv(inputs, outputs, 1, stride=stride, rngs=rngs)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the block to one example."""
        active = scaled_relu(x) * self.beta
        y = self.conv2(scaled_relu(self.conv1(active)))
        y = self.conv3(scaled_relu(y))
        skipped = x if self.shortcut is None else self.shortcut(active)
        return skipped + (self.alpha * self.gain[...]) * y


class nf_resnet50(nnx.Module):
    """NF-ResNet-50, which De et al. train on ImageNet from scratch under DP-SGD.

    3, 4, 6 and 3 blocks of 256, 512, 1024 and 2048 channels after a 7x7 convolution and pooling:
    25.6 million parameters for 1000 classes. The gain of a branch (SkipInit) starts at one, as in
    their configuration for private training.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        rngs: draws the initial parameters.
        width: the channels of the first stage.
        alpha: the scale of what each block adds, > 0.

    Reference: Brock et al. 2021; De et al. 2022. https://arxiv.org/abs/2204.13650
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        rngs: nnx.Rngs,
        width: int = 256,
        alpha: float = 0.2,
    ) -> None:
        """Makes the blocks, each with its beta."""
        width = _checks.integer("width", width, at_least=4)
        alpha = _checks.positive("alpha", alpha)
        inputs, blocks, variance = width // 4, [], 1.0
        made = functools.partial(StandardisedConv, rngs=rngs)
        self.conv1 = stem_conv(made, shape, "imagenet", inputs)
        for stage, depth in enumerate((3, 4, 6, 3)):
            for place in range(depth):
                outputs, stride = width * 2**stage, 2 if stage and not place else 1
                beta = variance**-0.5
                sizes = (inputs, outputs, stride)
                blocks.append(BottleneckBlock(*sizes, alpha=alpha, beta=beta, rngs=rngs))
                variance = (variance if place else 1.0) + alpha**2
                inputs = outputs
        self.blocks = nnx.List(blocks)
        normal = jax.nn.initializers.normal(0.01)
        self.dense = nnx.Linear(inputs, classes, kernel_init=normal, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits of one example."""
        x = pooled(self.conv1(x), "imagenet")
        for block in self.blocks:
            x = block(x)
        return self.dense(jnp.mean(scaled_relu(x), axis=(0, 1)))
