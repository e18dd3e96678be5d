"""Hooks: changes to gradients before the clipping rule, and to the release after the noise."""

from typing import ClassVar, Generic, NamedTuple, TypeVar

import chex
import jax

from dpjax._record import Record
from dpjax.gradients import PerExampleGrads

__all__ = ["Hook", "HookContext", "Momentum", "Preconditioner"]

State = TypeVar("State")


class HookContext(NamedTuple):
    """Public facts about the step just released, passed to a hook.

    Attributes:
        batch_size: the expected batch size B.
        noise_std: the standard deviation of the noise in the released mean gradient.
    """

    batch_size: float
    noise_std: jax.Array


class Hook(Record, Generic[State]):
    """Changes per-example gradients before the rule, and the released gradient after the noise.

    Privacy:
        For example i, `before` may use only that example and earlier releases. The rule then bounds
        the transformed gradient, and the event is still that of the mechanism. `after` sees
        released numbers only, so it is post-processing.

    Attributes:
        every_example: whether the hook keeps state for each example, so that every example takes
            part in every step and sampling gives no amplification.
    """

    role: ClassVar[str] = "hook"
    every_example: ClassVar[bool] = False

    def init(self, params: chex.ArrayTree) -> State:
        """Returns the state before the first step.

        Args:
            params: the parameters, or their shapes.
        """
        raise NotImplementedError

    def before(self, grads: PerExampleGrads, state: State) -> tuple[PerExampleGrads, State]:
        """Returns the gradients to which the rule is applied, and the new state.

        Args:
            grads: the gradients of the batch.
            state: the state in force.
        """
        raise NotImplementedError

    def after(
        self,
        update: chex.ArrayTree,
        state: State,
        params: chex.ArrayTree | None,
        context: HookContext,
    ) -> tuple[chex.ArrayTree, State]:
        """Returns the update made from the released mean gradient, and the new state.

        Args:
            update: the released mean gradient.
            state: the state that `before` returned.
            params: the parameters; None if the caller gave none.
            context: public facts about the step.
        """
        raise NotImplementedError


class Momentum(Hook[State]):
    """A hook that sums or averages gradients over steps."""

    role: ClassVar[str] = "momentum"


class Preconditioner(Hook[State]):
    """A hook that changes the coordinates in which gradients are clipped and noised."""

    role: ClassVar[str] = "preconditioner"
