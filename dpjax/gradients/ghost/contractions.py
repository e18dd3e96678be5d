"""Products of a parameter with data, all brought to one shape.

The gradient of such a parameter is ``sum_t a_t b_t^T`` over positions t, with a_t in R^K from the
data and b_t in R^C from the cotangent, for each of G blocks that do not mix:

- a `dot_general`: K contracted, C free in the parameter, t free in the data, G batched in both;
- a `conv_general_dilated`: K a window of the image, C the channels out, t the pixels out, G groups.

In a loop, turns are positions if the parameter is the same in all of them, else blocks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.analysis import Meeting
from dpjax.gradients.jaxprs import is_float

__all__ = ["Contraction", "contraction"]

Factors = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class Contraction:
    """How one meeting is a contraction, in one turn of its loops.

    Attributes:
        factors: from the data operand and the cotangent to the data's and the cotangent's factor.
        layout: of the data's factor, "gtk" or "gkt", whichever it is copied in faster; that of the
            cotangent is "gtc".
        assembled: from the gradient (G, K, C) to the parameter's shape.
        sizes: G, T, K, C.
        copies: how often a number of the data appears in the first factor.
    """

    factors: Callable[[jax.Array, jax.Array], Factors]
    layout: str
    assembled: Callable[[jax.Array], jax.Array]
    sizes: tuple[int, int, int, int]
    copies: float


def contraction(meeting: Meeting) -> Contraction | None:
    """Returns a meeting as a contraction with its one parameter; None if it is none."""
    if len(meeting.nodes) != 1 or not all(map(is_float, meeting.avals)):
        return None
    (position,) = meeting.nodes
    if meeting.name == "dot_general":
        return _dot(meeting.eqn, position)
    if meeting.name == "conv_general_dilated" and position == 1:
        return _conv(meeting.eqn)
    return None


def _dot(eqn: Any, position: int) -> Contraction:
    contracted, batched = eqn.params["dimension_numbers"]
    own, other = position, 1 - position
    rank, data_rank = (eqn.invars[i].aval.ndim for i in (own, other))
    free = _without(rank, *contracted[own], *batched[own])
    positions = _without(data_rank, *contracted[other], *batched[other])
    shape, data = eqn.invars[own].aval.shape, eqn.invars[other].aval.shape
    sizes = (
        math.prod(shape[i] for i in batched[own]),
        math.prod(data[i] for i in positions),
        math.prod(shape[i] for i in contracted[own]),
        math.prod(shape[i] for i in free),
    )
    g, t, k, c = sizes
    order = (*batched[own], *contracted[own], *free)

    def factors(operand: jax.Array, cotangent: jax.Array) -> Factors:
        axes = (*batched[other], *positions, *contracted[other])
        a = jnp.transpose(operand, axes).reshape(g, t, k)
        if own == 1:
            return a, cotangent.reshape(g, t, c)
        return a, jnp.swapaxes(cotangent.reshape(g, c, t), 1, 2)

    def assembled(gradient: jax.Array) -> jax.Array:
        blocks = gradient.reshape([shape[i] for i in order])
        return jnp.transpose(blocks, [order.index(i) for i in range(rank)])

    return Contraction(factors, "gtk", assembled, sizes, 1.0)


def _conv(eqn: Any) -> Contraction | None:
    parameters = eqn.params
    if parameters["batch_group_count"] != 1:
        return None
    (batch, features, *space), (to, source, *window), out = parameters["dimension_numbers"]
    image, kernel = (var.aval.shape for var in eqn.invars)
    groups = parameters["feature_group_count"]
    offsets = [kernel[i] for i in window]
    rows = [eqn.outvars[0].aval.shape[i] for i in out[2:]]
    per_group, channels = kernel[source], kernel[to] // groups
    t = image[batch] * math.prod(rows)
    k = math.prod(offsets) * per_group
    padding = [
        (lo, hi, dilation - 1)
        for (lo, hi), dilation in zip(
            parameters["padding"], parameters["lhs_dilation"], strict=True
        )
    ]

    def windows(operand: jax.Array) -> jax.Array:
        """Returns (G, K, T): for every pixel out its window, axis by axis, channels in front.

        Copying runs of pixels is faster than copying a few channels at a time.
        """
        x = jnp.transpose(operand, (features, batch, *space))
        x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * 2 + padding)
        for i, (count, size) in enumerate(zip(offsets, rows, strict=True)):
            stride, dilation = parameters["window_strides"][i], parameters["rhs_dilation"][i]
            axis = i + 2 + i  # behind as many axes of offsets
            # Without a pixel out, a window may begin beyond the image.
            begins = [offset * dilation if size else 0 for offset in range(count)]
            span = (size - 1) * stride + 1 if size else 0
            x = jnp.stack(
                [jax.lax.slice_in_dim(x, begin, begin + span, stride, axis) for begin in begins],
                axis=i,
            )
        x = x.reshape(math.prod(offsets), groups, per_group, t)
        return jnp.swapaxes(x, 0, 1).reshape(groups, k, t)

    def factors(operand: jax.Array, cotangent: jax.Array) -> Factors:
        b = jnp.transpose(cotangent, (out[0], *out[2:], out[1])).reshape(t, groups, channels)
        return windows(operand), jnp.swapaxes(b, 0, 1)

    def assembled(gradient: jax.Array) -> jax.Array:
        blocks = gradient.reshape(groups, *offsets, per_group, channels)
        blocks = jnp.moveaxis(blocks, 0, -2)  # a channel out is (group, channel in the group)
        whole = blocks.reshape(*offsets, per_group, groups * channels)
        places = {**{axis: i for i, axis in enumerate(window)}, source: len(window)}
        places[to] = len(window) + 1
        return jnp.transpose(whole, [places[i] for i in range(len(kernel))])

    copies = t * k * groups / max(1, math.prod(image))
    return Contraction(factors, "gkt", assembled, (groups, t, k, channels), copies)


def _without(rank: int, *taken: int) -> Sequence[int]:
    return [i for i in range(rank) if i not in taken]
