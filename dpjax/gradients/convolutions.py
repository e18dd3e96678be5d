"""Convolutions rewritten, on a CPU, to the one layout that XLA's CPU compiler runs fast.

Inside a loop (a chunk loop, a scan over steps), that compiler leaves a convolution in the layout it
was written in, and runs every layout but channels-last as plain nested loops: the gradients of a
small CNN took four times as long in a loop as outside
(https://github.com/jax-ml/jax/issues/12868). The derivative of a channels-last convolution is not
channels-last; this module makes it so.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax.extend import core

from dpjax.gradients.jaxprs import called_program, evaluate
from dpjax.gradients.platforms import Platform, by_platform

__all__ = ["channels_last_convolutions"]


def channels_last_convolutions(fn: Callable[..., chex.ArrayTree]) -> Callable[..., chex.ArrayTree]:
    """Returns the same function with its convolutions written channels last on a CPU.

    Other platforms keep them as they are. Operands and results are transposed around each
    convolution; values are the same except for the order of summation. Convolutions inside loops
    and branches of `fn` itself are not changed.

    Args:
        fn: a function of pytrees of arrays.

    Example:
        >>> x, kernel = jnp.ones((1, 2, 5)), jnp.ones((3, 2, 2))  # channels first
        >>> conv = lambda x, kernel: jax.lax.conv(x, kernel, (1,), "VALID")
        >>> bool(jnp.all(channels_last_convolutions(conv)(x, kernel) == conv(x, kernel)))
        True
    """

    def rewritten(*args: chex.ArrayTree) -> chex.ArrayTree:
        traced, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        if not _convolves(traced.jaxpr):
            return fn(*args)
        out = _evaluated(traced.jaxpr, traced.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), out)

    return rewritten


def _convolves(jaxpr: core.Jaxpr) -> bool:
    def inside(eqn: core.JaxprEqn) -> bool:
        called = called_program(eqn)
        return called is not None and _convolves(called[0])

    return any(eqn.primitive.name == "conv_general_dilated" or inside(eqn) for eqn in jaxpr.eqns)


def _evaluated(
    jaxpr: core.Jaxpr, consts: Sequence[jax.Array], args: Sequence[jax.Array]
) -> list[jax.Array]:
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: core.Var | core.Literal) -> jax.Array:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for eqn in jaxpr.eqns:
        values = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name == "conv_general_dilated":
            found: Sequence[jax.Array] = [by_platform(partial(_written, eqn), *values)]
        elif (called := called_program(eqn)) is not None and _convolves(called[0]):
            found = _evaluated(*called, values)
        else:
            found = evaluate(eqn, values)
        known.update(zip(eqn.outvars, found, strict=True))
    return [jnp.asarray(read(atom)) for atom in jaxpr.outvars]


def _written(
    eqn: core.JaxprEqn, platform: Platform, image: jax.Array, kernel: jax.Array
) -> jax.Array:
    if platform.name == "cpu":
        return _channels_last(image, kernel, **eqn.params)
    return evaluate(eqn, [image, kernel])[0]


def _channels_last(
    image: jax.Array,
    kernel: jax.Array,
    *,
    dimension_numbers: jax.lax.ConvDimensionNumbers,
    **parameters: object,
) -> jax.Array:
    (batch, features, *space), (to, source, *window), out = dimension_numbers
    rank = image.ndim
    image = jnp.transpose(image, (batch, *space, features))
    kernel = jnp.transpose(kernel, (*window, source, to))
    inner = tuple(range(1, rank - 1))
    last = jax.lax.ConvDimensionNumbers(
        (0, rank - 1, *inner), (rank - 1, rank - 2, *range(rank - 2)), (0, rank - 1, *inner)
    )
    result = _convolved(image, kernel, last, _arguments(parameters))
    places = [0] * rank
    for place, axis in zip(out, (0, rank - 1, *inner), strict=True):
        places[place] = axis
    return jnp.transpose(result, places)


def _convolved(
    image: jax.Array,
    kernel: jax.Array,
    last: jax.lax.ConvDimensionNumbers,
    arguments: dict[str, Any],
) -> jax.Array:
    """Convolves in the channels-last layout `last`; in float64, one group after another.

    The compiler turns batch groups, and in float64 all groups, into one dense kernel padded with
    zeros. A non-finite value in one group (under vmap, one example) would then become NaN in all
    groups. So batch groups are written as feature groups, and float64 loops over the groups.
    """
    if (count := arguments["batch_group_count"]) > 1:
        image = _behind(_in_front(image, count, 0), image.ndim - 1)
        arguments = {**arguments, "batch_group_count": 1, "feature_group_count": count}
    count = arguments["feature_group_count"]
    if count == 1 or image.dtype != jnp.float64:
        return jax.lax.conv_general_dilated(image, kernel, dimension_numbers=last, **arguments)
    alone = {**arguments, "feature_group_count": 1}

    def one(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jax.lax.conv_general_dilated(pair[0], pair[1], dimension_numbers=last, **alone)

    axis = image.ndim - 1
    found = jax.lax.map(one, (_in_front(image, count, axis), _in_front(kernel, count, axis)))
    return _behind(found, axis)


def _in_front(x: jax.Array, parts: int, axis: int) -> jax.Array:
    """Splits `x` into parts along an axis and stacks them along a new leading axis."""
    shape = (*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis, 0)


def _behind(parts: jax.Array, axis: int) -> jax.Array:
    """Concatenates stacked parts along an axis; the inverse of `_in_front`."""
    x = jnp.moveaxis(parts, 0, axis)
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def _arguments(parameters: Mapping[str, object]) -> dict[str, Any]:
    names = (
        *("window_strides", "padding", "lhs_dilation", "rhs_dilation"),
        *("feature_group_count", "batch_group_count", "precision", "preferred_element_type"),
    )
    return {name: parameters[name] for name in names}
