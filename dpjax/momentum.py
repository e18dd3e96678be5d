"""Inner momentum: each example's gradients at the last iterates, summed before the rule.

DP-PSASC's algorithm 3 keeps a momentum for every example of the data set. Stored, that is N times
the parameters; recomputed at the last released iterates it is a *loss*, so that any engine gives
its per-example gradient:

    ``m_{k,i} = sum_{l = max(0, k - K0)}^{k} gamma_0^(k - l) grad f(w_l, x_i)``
    ``        = grad at delta = 0 of  sum_l gamma_0^(k - l) f(w_l + delta, x_i)``.

As printed the algorithm never uses the current gradient; here l = k is part of the sum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _checks
from dpjax._record import Record
from dpjax._states import find_state

__all__ = ["HistoryState", "inner_momentum"]


class _MomentumRecord(Record):
    role: ClassVar[str] = "momentum"


class HistoryState(NamedTuple):
    """The last released iterates.

    Attributes:
        iterates: the parameters with a leading axis of K0, the newest first.
        filled: how many of them are there yet.
    """

    iterates: Any
    filled: jax.Array


@dataclass(frozen=True)
class inner_momentum(_MomentumRecord):
    """Inner momentum over the last `length` iterates and the current one.

    Args:
        decay: gamma_0, in (0, 1).
        length: K0, >= 1.

    Privacy:
        None of its own and no cost: m_{k,i} depends on example i alone and on iterates that were
        released, so after the rule example i still contributes at most the bound, and the event is
        that of the mechanism. Nothing is stored per example.

    Example:
        >>> momentum = inner_momentum(decay=0.5, length=1)
        >>> tx = momentum.remember()
        >>> loss = lambda w, x: 0.5 * (w - x) ** 2
        >>> _, state = tx.update(0.0, tx.init(jnp.float32(3.0)), jnp.float32(3.0))
        >>> new_loss = momentum.loss(loss, state)
        >>> float(jax.grad(new_loss)(jnp.float32(2.0), 1.0))  # (2 - 1) + 0.5 * (3 - 1)
        2.0

    Reference: Huang et al., DP-PSASC, algorithm 3 (inner momentum).
    """

    decay: float
    length: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            decay=_checks.fraction("decay", self.decay),
            length=_checks.integer("length", self.length, at_least=1),
        )

    def remember(self) -> optax.GradientTransformationExtraArgs:
        """Returns a transformation that passes updates on and keeps the iterates it saw."""

        def init(params: Any) -> HistoryState:
            copies = jax.tree.map(lambda p: jnp.stack([jnp.asarray(p)] * self.length), params)
            return HistoryState(copies, jnp.zeros((), jnp.int32))

        def update(
            updates: Any, state: HistoryState, params: Any = None, **_: Any
        ) -> tuple[Any, HistoryState]:
            if params is None:
                raise ValueError("params = None: expected the parameters, to remember the iterate")
            shifted = jax.tree.map(
                lambda p, past: jnp.concatenate([jnp.asarray(p)[None], past[:-1]]),
                params,
                state.iterates,
            )
            return updates, HistoryState(shifted, jnp.minimum(state.filled + 1, self.length))

        return optax.GradientTransformationExtraArgs(init, update)

    def loss(self, loss_fn: Callable[..., jax.Array], opt_state: Any) -> Callable[..., jax.Array]:
        """Returns the loss whose gradient at the current parameters is the inner momentum.

        Args:
            loss_fn: the loss of one example.
            opt_state: a state that holds this momentum's history.
        """
        history = find_state(opt_state, HistoryState)

        def summed(params: Any, *example: Any) -> jax.Array:
            # Zero in value, the identity in derivative: the displacement all iterates share.
            delta = jax.tree.map(lambda p: p - jax.lax.stop_gradient(p), params)
            total = loss_fn(params, *example)
            for age in range(1, self.length + 1):
                past = jax.tree.map(lambda w, d, a=age: w[a - 1] + d, history.iterates, delta)
                weight = jnp.where(age <= history.filled, self.decay**age, 0.0)
                total += weight.astype(total.dtype) * loss_fn(past, *example)
            return total

        return summed
