"""Finding one transformation's state inside the state of a whole optax chain; printing states."""

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

__all__ = ["find_state", "repr_without_keys"]

S = TypeVar("S")


def find_state(opt_state: optax.OptState, kind: type[S]) -> S:
    """Returns the one state of this kind in `opt_state`, however the chain is nested.

    >>> import optax
    >>> tx = optax.chain(optax.trace(0.9), optax.scale(-1.0))
    >>> find_state(tx.init(1.0), optax.TraceState)
    TraceState(trace=Array(0., dtype=float32, weak_type=True))
    """
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, kind))
    found = [leaf for leaf in leaves if isinstance(leaf, kind)]
    if len(found) != 1:
        raise ValueError(
            f"opt_state has {len(found)} states of kind {kind.__name__}: expected one; pass the "
            "state that tx.init or tx.update returned"
        )
    return found[0]


class _Private:
    def __repr__(self) -> str:
        return "<private>"


def repr_without_keys(state: NamedTuple) -> str:
    """Returns the repr of a named tuple with every random key in it hidden.

    Anyone who has the key of a run can subtract its noise, and printed output ends up in logs.

    >>> from collections import namedtuple
    >>> repr_without_keys(namedtuple("State", "step key")(3, jax.random.key(0)))
    'State(step=3, key=<private>)'
    """

    def hidden(leaf: object) -> object:
        dtype = getattr(leaf, "dtype", None)
        is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
        return _Private() if is_key else leaf

    values = zip(state._fields, state, strict=True)
    shown = [f"{name}={jax.tree.map(hidden, value)!r}" for name, value in values]
    return f"{type(state).__name__}({', '.join(shown)})"
