"""ResNet-9 with group normalisation, and ScaleNorm."""

from collections.abc import Sequence

import jax
from flax import nnx

from dpjax import _checks
from dpjax.models.activations import Activation
from dpjax.models.activations import activation as activation_of
from dpjax.models.layers import GroupNorm, conv, dense, scale_norm_of
from dpjax.models.pooling import adaptive_max_pool, max_pool
from dpjax.models.shapes import image_shape, window_output

__all__ = ["ConvNormBlock", "resnet9"]


class ConvNormBlock(nnx.Module):
    """A 3x3 convolution without bias, a group normalisation, and the activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        groups: int,
        activation: Activation,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes the layers."""
        self.conv = conv(inputs, outputs, 3, padding=1, bias=False, rngs=rngs)
        self.norm = GroupNorm(outputs, groups)
        self.activation = activation_of(activation)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the block to one example."""
        return self.activation(self.norm(self.conv(x)))


class resnet9(nnx.Module):
    """ResNet-9: 2,447,946 parameters for three channels and ten classes.

    conv 64, conv 128 and pool, residual of two conv 128, conv 256 and pool, conv 256 and pool,
    residual of two conv 256, maximum over 2x2 cells, dense. Automatic Clipping and DP-PSASC use
    a "ResNet9" with GroupNorm on Imagenette and CelebA, the former in the setup of Klause et al.;
    layers, Mish and 32 groups are those of Klause et al.'s own program. ScaleNorm is one more
    normalisation after each of the two additions.

    Args:
        shape: (height, width, channels) of one example, at least 8x8.
        classes: the number of logits.
        rngs: draws the initial parameters.
        width: the channels of the first convolution.
        groups: the groups of each normalisation, at most one per channel.
        scale_norm: whether to normalise after the additions.
        activation: a spec for `dpjax.models.activation`.

    Reference: Klause et al., Differentially private training of residual networks with scale
    normalisation, 2022.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        rngs: nnx.Rngs,
        width: int = 64,
        groups: int = 32,
        scale_norm: bool = False,
        activation: Activation = "mish",
    ) -> None:
        """Makes the layers."""
        height, side, channels = image_shape(shape)
        window_output("shape", min(height, side), window=8, stride=8)  # three poolings
        one = _checks.integer("width", width, at_least=1)
        groups = _checks.integer("groups", groups, at_least=1)

        def block(inputs: int, outputs: int) -> ConvNormBlock:
            return ConvNormBlock(inputs, outputs, groups=groups, activation=activation, rngs=rngs)

        def residual(channels: int) -> nnx.List[ConvNormBlock]:
            return nnx.List([block(channels, channels), block(channels, channels)])

        self.conv1, self.conv2 = block(channels, one), block(one, 2 * one)
        self.residual1 = residual(2 * one)
        self.conv3, self.conv4 = block(2 * one, 4 * one), block(4 * one, 4 * one)
        self.residual2 = residual(4 * one)
        self.scale_norm1 = scale_norm_of(2 * one, groups, scale_norm)
        self.scale_norm2 = scale_norm_of(4 * one, groups, scale_norm)
        self.dense = dense(4 * 4 * one, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits of one example."""
        x = max_pool(self.conv2(self.conv1(x)), 2, 2)
        x = _add(x, self.residual1, self.scale_norm1)
        x = max_pool(self.conv3(x), 2, 2)
        x = max_pool(self.conv4(x), 2, 2)
        x = _add(x, self.residual2, self.scale_norm2)
        return self.dense(adaptive_max_pool(x, 2).reshape(-1))


def _add(x: jax.Array, branch: nnx.List[ConvNormBlock], norm: GroupNorm | None) -> jax.Array:
    total = branch[1](branch[0](x)) + x
    return total if norm is None else norm(total)
