"""Helpers to analyse and evaluate the equations of a traced program."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

__all__ = [
    "aval_of",
    "called_program",
    "evaluate",
    "has_linear_derivative",
    "inner_programs",
    "is_differentiable",
    "is_float",
    "needed_inside",
    "needed_values",
]

# Calls that change neither values nor derivatives, under their names in various JAX versions.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat2", "remat", "checkpoint")


def called_program(eqn: core.JaxprEqn) -> tuple[core.Jaxpr, Sequence[jax.Array]] | None:
    """Returns the program and constants of an equation that is a plain call; None for others."""
    if eqn.primitive.name not in _CALLS:
        return None
    called = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
    return (called.jaxpr, called.consts) if hasattr(called, "consts") else (called, ())


def inner_programs(eqn: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    """Yields every program inside an equation: branches, loop bodies, calls."""
    for value in eqn.params.values():
        for one in value if isinstance(value, list | tuple) else (value,):
            jaxpr = getattr(one, "jaxpr", one)
            if isinstance(jaxpr, core.Jaxpr):
                yield jaxpr


def evaluate(
    eqn: core.JaxprEqn, values: Sequence[jax.Array], parameters: Mapping[str, object] | None = None
) -> Sequence[jax.Array]:
    """Evaluates one equation of any primitive; `parameters` override some of its own."""
    own = eqn.params if parameters is None else {**eqn.params, **parameters}
    bound = eqn.primitive.get_bind_params(own)
    functions, bindable = bound if isinstance(bound, tuple) else ((), bound)  # up to jax 0.9
    with eqn.ctx.manager:  # settings that were in force where the equation was traced
        found = eqn.primitive.bind(*functions, *values, **bindable)
    return found if eqn.primitive.multiple_results else [found]


def aval_of(atom: core.Var | core.Literal) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of a value, which JAX's static type for it does not expose."""
    return cast(jax.ShapeDtypeStruct, atom.aval)


def is_differentiable(aval: object) -> bool:
    """Returns whether a value has a gradient: a floating-point or complex array."""
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.inexact)


def is_float(aval: object) -> bool:
    """Returns whether a value is a floating-point array."""
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.floating)


def needed_values(jaxpr: core.Jaxpr, needed: Sequence[bool]) -> set[core.Var]:
    """Returns the variables of a program that its needed results depend on.

    Args:
        jaxpr: the program.
        needed: for each result, whether it is needed.

    Example:
        >>> jaxpr = jax.make_jaxpr(lambda x, y: (2 * x, x * y))(1.0, 1.0).jaxpr
        >>> found = needed_values(jaxpr, [True, False])
        >>> [var in found for var in jaxpr.invars]
        [True, False]
    """
    found = _variables(jaxpr.outvars, needed)
    for eqn in reversed(jaxpr.eqns):
        used = [var in found for var in eqn.outvars]
        if any(used):
            found |= _variables(eqn.invars, _needed_operands(eqn, used))
    return found


def _variables(atoms: Sequence[core.Var | core.Literal], chosen: Sequence[bool]) -> set[core.Var]:
    pairs = zip(atoms, chosen, strict=True)
    return {atom for atom, one in pairs if one and not isinstance(atom, core.Literal)}


def _needed_operands(eqn: core.JaxprEqn, needed: Sequence[bool]) -> list[bool]:
    """Returns, for each operand, whether the needed results of an equation depend on it."""
    if called_program(eqn) is None and eqn.primitive.name != "scan":
        return [True] * len(eqn.invars)
    ((jaxpr, inside),) = needed_inside(eqn, needed)
    found = needed_values(jaxpr, inside)
    return [var in found for var in jaxpr.invars]


def needed_inside(
    eqn: core.JaxprEqn, needed: Sequence[bool]
) -> list[tuple[core.Jaxpr, list[bool]]]:
    """Returns the programs inside an equation, each with flags for the results that are needed.

    This is exact for calls and scans. Elsewhere (branches, custom derivatives) all results count as
    needed.

    Args:
        eqn: the equation.
        needed: for each of its results, whether it is needed; at least one is.
    """
    called = called_program(eqn)
    if called is not None:
        return [(called[0], list(needed))]
    if eqn.primitive.name != "scan":
        return [(jaxpr, [True] * len(jaxpr.outvars)) for jaxpr in inner_programs(eqn)]
    body = eqn.params["jaxpr"].jaxpr
    consts, carries = eqn.params["num_consts"], eqn.params["num_carry"]
    before, inside = None, list(needed)
    while inside != before:  # a carry that one iteration reads is needed from the one before
        before, found = inside, needed_values(body, inside)
        read = [var in found for var in body.invars[consts : consts + carries]]
        states = [old or new for old, new in zip(inside[:carries], read, strict=True)]
        inside = [*states, *inside[carries:]]
    return [(body, inside)]


class _Kind(Enum):
    """How a value depends on the cotangents."""

    ZERO = "is zero"
    FIXED = "does not"
    LINEAR = "linearly"
    UNKNOWN = "in some other way, or not known how"


# Linear in the first operand, if the others do not depend on the cotangents.
_FIRST = (
    *("reshape", "transpose", "squeeze", "expand_dims", "rev", "neg", "copy", "copy_p", "slice"),
    *("broadcast_in_dim", "convert_element_type", "reduce_precision", "reduce_sum", "cumsum"),
    *("real", "imag", "div", "gather", "dynamic_slice", "split", "pvary"),
)
# Linear in all operands together.
_TOGETHER = ("add", "sub", "add_any", "concatenate", "pad")
# Linear in each operand, if the others do not depend on the cotangents.
_EACH = ("mul", "dot_general", "conv_general_dilated")


def has_linear_derivative(eqn: core.JaxprEqn) -> bool:
    """Returns whether ``pull(g) + pull(h) = pull(g + h)`` for the pull-back of an equation.

    JAX's own derivatives are linear. A custom derivative is traced, and counts as linear if all its
    operations are known to be linear. Anything unknown counts as not linear, which costs time but
    not correctness.

    Example:
        >>> import jax.numpy as jnp
        >>> @jax.custom_gradient
        ... def clipped(w):
        ...     return w, lambda ct: jnp.clip(ct, -1, 1)
        >>> has_linear_derivative(jax.make_jaxpr(clipped)(1.0).jaxpr.eqns[0])
        False
        >>> has_linear_derivative(jax.make_jaxpr(jax.nn.relu)(1.0).jaxpr.eqns[0])
        True
    """
    if not _is_custom(eqn):
        return True
    own = [i for i, atom in enumerate(eqn.invars) if is_differentiable(atom.aval)]
    out = [i for i, var in enumerate(eqn.outvars) if is_differentiable(var.aval)]

    def pull(operands: list[jax.Array], cotangents: list[jax.Array]) -> tuple[jax.Array, ...]:
        def results(*values: jax.Array) -> list[jax.Array]:
            known = dict(zip(own, values, strict=True))
            found = evaluate(eqn, [known.get(i, x) for i, x in enumerate(operands)])
            return [found[i] for i in out]

        return jax.vjp(results, *(operands[i] for i in own))[1](cotangents)

    operands = [atom.aval for atom in eqn.invars]
    cotangents = [eqn.outvars[i].aval for i in out]
    traced = jax.make_jaxpr(pull)(operands, cotangents)
    kinds = [_Kind.FIXED] * len(operands) + [_Kind.LINEAR] * len(cotangents)
    found = zip(traced.jaxpr.outvars, _kinds(traced.jaxpr, kinds), strict=True)
    # Integers have no cotangent.
    return all(
        kind in (_Kind.ZERO, _Kind.LINEAR) for atom, kind in found if is_differentiable(atom.aval)
    )


def _is_custom(eqn: core.JaxprEqn) -> bool:
    """Returns whether an equation is or contains a function with a custom derivative."""
    if eqn.primitive.name.startswith("custom_") or eqn.primitive.name == "linear_call":
        return True
    return any(_is_custom(inner) for jaxpr in inner_programs(eqn) for inner in jaxpr.eqns)


def _kinds(jaxpr: core.Jaxpr, kinds: Sequence[_Kind]) -> list[_Kind]:
    """Returns how each result of a program depends on the cotangents, given its operands' kinds."""
    known = dict(zip(jaxpr.invars, kinds, strict=True))
    known.update(dict.fromkeys(jaxpr.constvars, _Kind.FIXED))

    def read(atom: core.Var | core.Literal) -> _Kind:
        if not isinstance(atom, core.Literal):
            return known[atom]
        return _Kind.ZERO if np.all(np.asarray(atom.val) == 0) else _Kind.FIXED

    for eqn in jaxpr.eqns:
        found = _after(eqn, [read(atom) for atom in eqn.invars])
        known.update(zip(eqn.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _after(eqn: core.JaxprEqn, kinds: Sequence[_Kind]) -> list[_Kind]:
    called = called_program(eqn)
    if called is not None:
        return _kinds(called[0], kinds)
    name = eqn.primitive.name
    if all(kind in (_Kind.ZERO, _Kind.FIXED) for kind in kinds):
        moved = name in ("broadcast_in_dim", "convert_element_type", "reshape")
        return [kinds[0] if moved else _Kind.FIXED] * len(eqn.outvars)
    linear = _is_linear(name, kinds)
    return [
        _Kind.LINEAR if linear and is_differentiable(var.aval) else _Kind.UNKNOWN
        for var in eqn.outvars
    ]


def _is_linear(name: str, kinds: Sequence[_Kind]) -> bool:
    linear = [kind in (_Kind.ZERO, _Kind.LINEAR) for kind in kinds]
    fixed = [kind in (_Kind.ZERO, _Kind.FIXED) for kind in kinds]
    if name in _FIRST:
        return linear[0] and all(fixed[1:])
    if name in _TOGETHER:
        return all(linear)
    if name in _EACH:
        return kinds.count(_Kind.LINEAR) == 1 and _Kind.UNKNOWN not in kinds
    return name == "select_n" and fixed[0] and all(linear[1:])
