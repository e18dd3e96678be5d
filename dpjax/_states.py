"""Finding one transformation's state inside the state of a whole optax chain."""

from typing import Any, TypeVar

import jax

__all__ = ["find_state"]

S = TypeVar("S")


def find_state(opt_state: Any, kind: type[S]) -> S:
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
