"""Convolutions with standardised weights, and activations that keep the variance at 1."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

__all__ = ["SqueezeExcite", "StandardisedConv", "scaled_gelu", "scaled_relu"]

_RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
_GELU_GAIN = 1.7015043497085571  # Brock et al.'s, found by simulation


def scaled_relu(x: jax.Array) -> jax.Array:
    """Returns ``sqrt(2 / (1 - 1/pi)) max(x, 0)``, of variance 1 for a standard normal x.

    >>> float(scaled_relu(1.0))
    1.71285...
    """
    return _RELU_GAIN * jax.nn.relu(x)


def scaled_gelu(x: jax.Array) -> jax.Array:
    """Returns ``1.7015 gelu(x)``, of variance 1 for a standard normal x.

    >>> round(float(scaled_gelu(1.0)), 4)
    1.4313
    """
    return _GELU_GAIN * jax.nn.gelu(x, approximate=True)


class StandardisedConv(nnx.Module):
    """A convolution with scaled weight standardisation, and a bias.

    The weights are ``gain (W - mean) / sqrt(max(N variance, 1e-4))``, where mean and variance are
    over the N = inputs window^2 / groups weights of an output channel. On average, the output has
    the variance of the input.

    Args:
        inputs: channels of the input.
        outputs: channels of the output.
        window: the side of the kernel.
        stride: the step between windows.
        padding: the padding on each side; or "SAME", for an output side of the input's over the
            stride, rounded up, with an odd pixel of padding at the end.
        groups: the number of groups of channels that are convolved separately.
        rngs: draws the initial parameters.

    Reference: Brock et al., Characterizing signal propagation to close the performance gap in
    unnormalized ResNets, 2021. https://arxiv.org/abs/2101.08692
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        window: int,
        *,
        stride: int = 1,
        padding: int | str = 0,
        groups: int = 1,
        rngs: nnx.Rngs,
    ) -> None:
        """Makes kernel, gain and bias."""
        self.stride, self.padding, self.groups = stride, padding, groups
        init = jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal")
        shape = (window, window, inputs // groups, outputs)
        self.kernel = nnx.Param(init(rngs.params(), shape, jnp.float32))
        self.gain = nnx.Param(jnp.ones(outputs))
        self.bias = nnx.Param(jnp.zeros(outputs))

    def standardised(self) -> jax.Array:
        """Returns the standardised weights."""
        kernel = self.kernel[...]
        centred = kernel - jnp.mean(kernel, axis=(0, 1, 2))
        squares = jnp.sum(centred**2, axis=(0, 1, 2))  # N variance
        return centred * (self.gain[...] * jax.lax.rsqrt(jnp.maximum(squares, 1e-4)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Convolves one example."""
        own = self.padding
        y = jax.lax.conv_general_dilated(
            x[None],
            self.standardised(),
            (self.stride, self.stride),
            own if isinstance(own, str) else [(own, own)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=self.groups,
        )
        return y[0] + self.bias[...]


class SqueezeExcite(nnx.Module):
    """A weight in (0, 1) for each channel, from the channels' means by two dense layers.

    Args:
        channels: the channels of the input.
        hidden: the width between the two layers.
        rngs: draws the initial parameters.

    Reference: Hu et al., Squeeze-and-Excitation Networks, 2018. https://arxiv.org/abs/1709.01507
    """

    def __init__(self, channels: int, hidden: int, *, rngs: nnx.Rngs) -> None:
        """Makes both layers."""
        self.reduce = nnx.Linear(channels, hidden, rngs=rngs)
        self.expand = nnx.Linear(hidden, channels, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the weights, (channels,)."""
        squeezed = jax.nn.relu(self.reduce(jnp.mean(x, axis=(0, 1))))
        return jax.nn.sigmoid(self.expand(squeezed))
