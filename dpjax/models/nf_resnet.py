"""A residual network without normalisation: standardised weights and known variances."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from dpjax import _checks
from dpjax.models.layers import dense
from dpjax.models.resnet import stages
from dpjax.models.stem import check_stem, pooled, stem_conv

__all__ = ["NormaliserFreeBlock", "StandardisedConv", "nf_resnet18", "scaled_relu"]

_GAMMA = math.sqrt(2 / (1 - 1 / math.pi))


def scaled_relu(x: jax.Array) -> jax.Array:
    """Returns ``sqrt(2 / (1 - 1/pi)) max(x, 0)``, of variance 1 for a standard normal x.

    >>> float(scaled_relu(1.0))
    1.71285...
    """
    return _GAMMA * jax.nn.relu(x)


class StandardisedConv(nnx.Module):
    """A convolution with scaled weight standardisation, and a bias.

    ``gain (W - mean) / sqrt(max(N variance, 1e-4))``, where the mean and the variance are those of
    an output channel's N = inputs window^2 weights. It keeps the variance of its input, on average.

    Reference: Brock et al., Characterizing signal propagation to close the performance gap in
    unnormalized ResNets, 2021.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        window: int,
        *,
        stride: int = 1,
        padding: int = 0,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes kernel, gain and bias."""
        self.stride, self.padding = stride, padding
        init = jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal")
        self.kernel = nnx.Param(init(rngs.params(), (window, window, inputs, outputs), jnp.float32))
        self.gain = nnx.Param(jnp.ones(outputs))
        self.bias = nnx.Param(jnp.zeros(outputs))

    def standardised(self) -> jax.Array:
        """Returns the weights that are used."""
        kernel = self.kernel[...]
        centred = kernel - jnp.mean(kernel, axis=(0, 1, 2))
        squares = jnp.sum(centred**2, axis=(0, 1, 2))  # N variance
        return centred * (self.gain[...] * jax.lax.rsqrt(jnp.maximum(squares, 1e-4)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Convolves one example."""
        padding = [(self.padding, self.padding)] * 2
        strides = (self.stride, self.stride)
        layout = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(
            x[None], self.standardised(), strides, padding, dimension_numbers=layout
        )
        return y[0] + self.bias[...]


class NormaliserFreeBlock(nnx.Module):
    """``shortcut(x) + alpha conv2(act(conv1(act(x) beta)))``, with `scaled_relu` as act.

    beta is one over the standard deviation that x has at the start. Where the shape changes, the
    shortcut is a 1x1 convolution of ``act(x) beta``, which sets the variance back to 1.
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
    """A ResNet-18 without normalisation: nothing in it ties the parts of an image together.

    Pre-activated blocks ``x + alpha f(x / std)``, whose variance is known beforehand: plus alpha^2
    with each block, back to ``1 + alpha^2`` where the shape changes. Auto DP-SGD fine-tunes
    pre-trained NFNets, which this is the small relative of; widths and depth are ResNet-18's. The
    learned gain that starts each branch at zero (SkipInit) is left out, as in the first paper.

    Args:
        shape: (height, width, channels) of one example.
        classes: how many logits.
        rngs: where the initial parameters come from.
        width: channels of the first stage.
        alpha: > 0, how much each block adds.
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
