"""Evaluates a JAX function with NumPy: nothing is compiled, and no device is started."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import chex
import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

__all__ = ["traced"]

Params: TypeAlias = Mapping[str, Any]
"""The parameters of an equation; their types depend on its primitive."""


def traced(
    function: Callable[..., chex.ArrayTree], *like: chex.ArrayTree
) -> Callable[..., chex.ArrayTree]:
    """Traces a function once and returns a NumPy version for arrays of these shapes and dtypes.

    Primitives without a NumPy version here (loops, sorts, special functions) are evaluated by JAX.

    Args:
        function: a function of arrays and pytrees of arrays.
        *like: example arguments: arrays, or `jax.ShapeDtypeStruct`.

    Example:
        >>> import jax.numpy as jnp
        >>> clip = traced(lambda n: jnp.minimum(1.0, 2.0 / n), np.zeros(2, np.float32))
        >>> clip(np.array([1.0, 4.0], np.float32))
        array([1. , 0.5], dtype=float32)
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*like)
    treedef = jax.tree.structure(shape)

    def evaluate(*arguments: chex.ArrayTree) -> chex.ArrayTree:
        # Primitives left to JAX must not become part of an enclosing trace.
        with np.errstate(all="ignore"), jax.ensure_compile_time_eval():
            found = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(treedef, found)

    return evaluate


def _evaluate(
    jaxpr: Jaxpr, consts: Sequence[np.ndarray], arguments: Sequence[np.ndarray]
) -> list[np.ndarray]:
    values: dict[Var, np.ndarray] = {}

    def value(atom: Var | Literal) -> np.ndarray:
        return np.asarray(atom.val) if isinstance(atom, Literal) else values[atom]

    values.update(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for eqn in jaxpr.eqns:
        found = _apply(eqn, [value(atom) for atom in eqn.invars])
        values.update(zip(eqn.outvars, found, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _apply(eqn: JaxprEqn, inputs: list[np.ndarray]) -> list[np.ndarray]:
    name, params = eqn.primitive.name, eqn.params
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    if name in _CALLS and isinstance(inner, ClosedJaxpr):
        return _evaluate(inner.jaxpr, inner.consts, inputs)
    out = cast(jax.ShapeDtypeStruct, eqn.outvars[0].aval)
    if name in _ELEMENTWISE and jax.numpy.issubdtype(inputs[0].dtype, np.inexact):
        return [np.asarray(_ELEMENTWISE[name](*inputs), out.dtype)]
    if name in _OF_ANY_TYPE:
        return [np.asarray(_OF_ANY_TYPE[name](*inputs), out.dtype)]
    if name in _SHAPED:
        return [_SHAPED[name](inputs[0] if inputs else np.empty(0), out, params)]
    found = eqn.primitive.bind(*map(jax.numpy.asarray, inputs), **params)
    return [np.asarray(x) for x in (found if eqn.primitive.multiple_results else [found])]


def _converted(x: np.ndarray, out: jax.ShapeDtypeStruct, _: Params) -> np.ndarray:
    """Converts as XLA does: integers saturate, and NaN becomes 0."""
    if np.issubdtype(out.dtype, np.integer) and not np.issubdtype(x.dtype, np.integer):
        limits = np.iinfo(out.dtype)
        wide = np.nan_to_num(np.asarray(x, np.float64), nan=0.0)
        # The largest int64 is not a float64; values that round up to it are set afterwards.
        inside = np.clip(wide, limits.min, np.nextafter(float(limits.max) + 1, 0)).astype(out.dtype)
        return np.where(wide > limits.max, limits.max, inside).astype(out.dtype)
    return np.asarray(x).astype(out.dtype)


def _broadcast(x: np.ndarray, out: jax.ShapeDtypeStruct, params: Params) -> np.ndarray:
    shape = [1] * len(out.shape)
    for axis, place in enumerate(params["broadcast_dimensions"]):
        shape[place] = x.shape[axis]
    return np.broadcast_to(np.reshape(x, shape), out.shape)


def _iota(_: np.ndarray, out: jax.ShapeDtypeStruct, params: Params) -> np.ndarray:
    axis = params["dimension"]
    shape = [-1 if i == axis else 1 for i in range(len(out.shape))]
    return np.broadcast_to(np.arange(out.shape[axis], dtype=out.dtype).reshape(shape), out.shape)


def _selected(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    if len(cases) == 2:
        return np.where(which, cases[1], cases[0])
    return np.choose(which, cases)


_CALLS = {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"}

_ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide},
    **{"max": np.maximum, "min": np.minimum, "neg": np.negative, "abs": np.abs, "pow": np.power},
    **{"exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "tanh": np.tanh},
    **{"sqrt": np.sqrt, "square": np.square, "floor": np.floor, "ceil": np.ceil, "sign": np.sign},
    **{"is_finite": np.isfinite, "rsqrt": lambda x: 1 / np.sqrt(x)},
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}

_OF_ANY_TYPE: dict[str, Callable[..., np.ndarray]] = {
    **{"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal},
    **{"eq": np.equal, "ne": np.not_equal, "select_n": _selected, "stop_gradient": np.asarray},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert, "copy": np.asarray},
}

_SHAPED: dict[str, Callable[[np.ndarray, jax.ShapeDtypeStruct, Params], np.ndarray]] = {
    "convert_element_type": _converted,
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "reshape": lambda x, out, _: np.reshape(x, out.shape),
    "squeeze": lambda x, out, _: np.reshape(x, out.shape),
    "integer_pow": lambda x, out, params: np.asarray(x ** params["y"], out.dtype),
    "reduce_sum": lambda x, out, params: np.sum(x, params["axes"], dtype=out.dtype),
    "reduce_max": lambda x, _, params: np.max(x, params["axes"]),
    "reduce_min": lambda x, _, params: np.min(x, params["axes"]),
}
