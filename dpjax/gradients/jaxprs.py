"""What a pass over a traced program needs: the programs behind an equation, and it alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend import core

__all__ = ["called_program", "evaluate", "inner_programs", "is_differentiable", "is_float"]

# Calls that change nothing of what is computed or differentiated, by their names over the years.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat2", "remat", "checkpoint")


def called_program(eqn: Any) -> tuple[core.Jaxpr, Sequence[Any]] | None:
    """Returns the program and constants of an equation that merely calls one; None for others."""
    if eqn.primitive.name not in _CALLS:
        return None
    called = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
    return (called.jaxpr, called.consts) if hasattr(called, "consts") else (called, ())


def inner_programs(eqn: Any) -> Iterator[core.Jaxpr]:
    """Yields every program that an equation holds: branches, bodies of loops, calls."""
    for value in eqn.params.values():
        for one in value if isinstance(value, list | tuple) else (value,):
            jaxpr = getattr(one, "jaxpr", one)
            if isinstance(jaxpr, core.Jaxpr):
                yield jaxpr


def evaluate(
    eqn: Any, values: Sequence[Any], parameters: Mapping[str, Any] | None = None
) -> Sequence[Any]:
    """Evaluates one equation, whatever its primitive; `parameters` replace some of its own."""
    own = eqn.params if parameters is None else {**eqn.params, **parameters}
    bound = eqn.primitive.get_bind_params(own)
    functions, bindable = bound if isinstance(bound, tuple) else ((), bound)  # up to jax 0.9
    with eqn.ctx.manager:  # settings that were in force where the equation was traced
        found = eqn.primitive.bind(*functions, *values, **bindable)
    return found if eqn.primitive.multiple_results else [found]


def is_differentiable(aval: Any) -> bool:
    """Says whether a value has a gradient: a floating-point or complex array."""
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.inexact)


def is_float(aval: Any) -> bool:
    """Says whether a value is a floating-point array."""
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.floating)
