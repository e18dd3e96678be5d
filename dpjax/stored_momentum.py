"""DP-PSASC's full-batch momentum: one stored average per example of the data set."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _checks
from dpjax.gradients import as_per_example_grads
from dpjax.momentum import _MomentumRecord

__all__ = ["StoredMomentumState", "stored_momentum"]


class StoredMomentumState(NamedTuple):
    """The averages, private like the data, and the private release's state.

    Attributes:
        average: m_i for every example, the parameters with a leading axis of N; never publish it.
        started: whether m_i has had its first value.
        inner: the state of what privatises the averages.
    """

    average: Any
    started: jax.Array
    inner: Any


@dataclass(frozen=True)
class stored_momentum(_MomentumRecord):
    """Averages each example's gradients over all steps, for full-batch training.

    ``m_i <- gamma g_i + (1 - gamma) m_i``, from ``m_i = g_i`` at the first step; the rule, the sum
    and the noise then see m_i. A gradient that is not finite leaves m_i as it was and adds nothing
    to that step.

    Args:
        gamma: the weight of the newest gradient, in (0, 1].
        dataset_size: N; every step must be given all N examples, in the same order.

    Privacy:
        Example i moves m_i only, so its contribution stays within the rule's bound at every step.
        Every example takes part in every step: the event is a Gaussian per step without any
        amplification by sampling. The state holds unreleased per-example data.

    Reference: Huang et al., DP-PSASC, algorithm 2.
    """

    gamma: float
    dataset_size: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            gamma=_checks.fraction("gamma", self.gamma, one=True),
            dataset_size=_checks.integer("dataset_size", self.dataset_size, at_least=1),
        )

    def wrap(
        self, private: optax.GradientTransformationExtraArgs
    ) -> optax.GradientTransformationExtraArgs:
        """Returns `private` fed with the averages in place of the gradients."""

        def init(params: Any) -> StoredMomentumState:
            empty = jax.tree.map(
                lambda p: jnp.zeros((self.dataset_size, *jnp.shape(p)), jnp.result_type(p)), params
            )
            return StoredMomentumState(empty, jnp.zeros((), bool), private.init(params))

        def update(
            updates: Any,
            state: StoredMomentumState,
            params: Any = None,
            *,
            mask: Any = None,
            **_: Any,
        ) -> tuple[Any, StoredMomentumState]:
            given = as_per_example_grads(updates, mask, params)
            if (rows := given.real.shape[0]) != self.dataset_size:
                raise ValueError(
                    f"grads has {rows} rows: expected all dataset_size = {self.dataset_size}"
                )
            grads = as_per_example_grads(given.vectors, given.real)
            moved = jax.tree.map(
                lambda g, m: jnp.where(state.started, self.gamma * g + (1 - self.gamma) * m, g),
                grads.vectors,
                state.average,
            )
            keep = grads.real & jnp.isfinite(grads.norms)
            average = jax.tree.map(
                lambda new, old: jnp.where(keep.reshape((-1,) + (1,) * (new.ndim - 1)), new, old),
                moved,
                state.average,
            )
            released, inner = private.update(moved, state.inner, params, mask=grads.real)
            return released, StoredMomentumState(average, jnp.ones((), bool), inner)

        return optax.GradientTransformationExtraArgs(init, update)
