"""Convolutions, dense layers and group normalisation of one example, and their initialisers."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dpjax import _checks

__all__ = ["STARTS", "GroupNorm", "conv", "dense", "scale_norm_of", "uniform"]

Initialiser = Callable[..., jax.Array]


def uniform(fan_in: int) -> Initialiser:
    """Returns PyTorch's default initialiser, uniform in ``+- 1 / sqrt(fan_in)``."""
    limit = 1 / math.sqrt(fan_in)

    def init(
        key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32, **kwargs: Any
    ) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -limit, limit, **kwargs)

    return init


def _pytorch(fan_in: int) -> tuple[Initialiser, Initialiser]:
    return uniform(fan_in), uniform(fan_in)


def _lecun(fan_in: int) -> tuple[Initialiser, Initialiser]:
    del fan_in  # the initialiser reads it from the kernel's shape
    return jax.nn.initializers.lecun_normal(), jax.nn.initializers.zeros


# The initialisers of a layer's kernel and bias, from fan_in. "pytorch" is uniform in
# +- 1 / sqrt(fan_in) for both; "lecun", Flax's default, is a normal kernel with variance
# 1 / fan_in, three times as large, and a zero bias.
STARTS = {"lecun": _lecun, "pytorch": _pytorch}


def _start(name: str, fan_in: int) -> tuple[Initialiser, Initialiser]:
    return STARTS[_checks.choice("start", name, STARTS)](fan_in)


def conv(
    inputs: int,
    outputs: int,
    window: int,
    *,
    stride: int = 1,
    padding: int = 0,
    bias: bool = True,
    kernel_init: Initialiser | None = None,
    start: str = "pytorch",
    rngs: nnx.Rngs,
) -> nnx.Conv:
    """Makes a ``window x window`` convolution over (height, width, channels)."""
    kernel_start, bias_start = _start(start, inputs * window**2)
    return nnx.Conv(
        inputs,
        outputs,
        (window, window),
        strides=stride,
        padding=padding,
        use_bias=bias,
        kernel_init=kernel_init or kernel_start,
        bias_init=bias_start,
        rngs=rngs,
    )


def dense(inputs: int, outputs: int, *, start: str = "pytorch", rngs: nnx.Rngs) -> nnx.Linear:
    """Makes a dense layer."""
    kernel_start, bias_start = _start(start, inputs)
    return nnx.Linear(inputs, outputs, kernel_init=kernel_start, bias_init=bias_start, rngs=rngs)


class GroupNorm(nnx.Module):
    """Group normalisation of ONE example: ``(x - mean) / sqrt(variance + 1e-5) * scale + bias``.

    The mean and the variance are over a group of channels and all positions. (Flax's own GroupNorm
    treats the first axis of its input as a batch.)

    Args:
        channels: the channels of the input, (height, width, channels).
        groups: the number of groups, at most one per channel.

    Reference: Wu and He, Group Normalization, 2018.
    """

    def __init__(self, channels: int, groups: int) -> None:
        """Initialises the scale to 1 and the bias to 0."""
        self.groups = min(groups, channels)
        if channels % self.groups:
            raise ValueError(f"groups = {groups}: expected a divisor of {channels} channels")
        self.scale = nnx.Param(jnp.ones(channels))
        self.bias = nnx.Param(jnp.zeros(channels))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises (height, width, channels)."""
        grouped = x.reshape(*x.shape[:-1], self.groups, -1)
        centred = grouped - jnp.mean(grouped, axis=(0, 1, 3), keepdims=True)
        variance = jnp.mean(centred**2, axis=(0, 1, 3), keepdims=True)
        normal = centred * jax.lax.rsqrt(variance + 1e-5)
        return normal.reshape(x.shape) * self.scale[...] + self.bias[...]


def scale_norm_of(channels: int, groups: int, wanted: bool) -> GroupNorm | None:
    """Makes the normalisation after a residual block's addition (ScaleNorm), if wanted.

    Reference: Klause et al., Differentially private training of residual networks with scale
    normalisation, 2022.
    """
    if not isinstance(wanted, bool):
        raise TypeError(f"scale_norm = {wanted!r}: expected true or false")
    return GroupNorm(channels, groups) if wanted else None
