"""The momentum of DP-PSASC: inner and outer momentum, and momentum stored for every example."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import chex
import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.gradients import PerExampleGrads, as_per_example_grads
from dpjax.hooks import HookContext, Momentum

__all__ = ["InnerOuterState", "StoredState", "inner_outer", "stored"]


class InnerOuterState(NamedTuple):
    """The state of `inner_outer`: released iterates and gradients, so public.

    Attributes:
        iterates: the last K0 iterates, stacked along a leading axis, the newest first.
        filled: the number of iterates stored so far.
        outer: M, the momentum over released gradients; () without outer momentum.
    """

    iterates: chex.ArrayTree
    filled: jax.Array
    outer: chex.ArrayTree


@dataclass(frozen=True)
class inner_outer(Momentum[InnerOuterState]):
    """Inner momentum over each example's gradients, and outer momentum over released gradients.

    Algorithm 3 of DP-PSASC stores a momentum for every example of the data set, which takes N times
    the memory of the parameters. Here it is recomputed at the last released iterates instead. It is
    then the gradient of a modified *loss*, which any engine can compute. For example i at step k:

        ``m_{k,i} = sum_{l = max(0, k - length)}^{k} gamma0^(k - l) grad f(w_l, x_i)``
        ``        = grad at d = 0 of  sum_l gamma0^(k - l) f(w_l + d, x_i)``.

    The rule is applied to m_{k,i}; with u_k the noisy mean that is released, the update is
    ``M_k = (1 - gamma1) M_{k-1} + u_k``. As printed, the algorithm never uses the current gradient;
    here l = k is part of the sum.

    Args:
        gamma0: the inner decay, in (0, 1).
        length: the paper's K0, the number of earlier iterates, >= 1; a step costs K0 + 1 gradients.
        gamma1: the outer rate, in (0, 1]; 1 is no outer momentum.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: the rule's, since m_{k,i} depends on example i and released iterates alone. Relation
        and event: the mechanism's; momentum adds no cost, as M is post-processing. Nothing is kept
        per example.

    Example:
        >>> import dpjax
        >>> momentum = inner_outer(gamma0=0.5, length=1, gamma1=1.0)
        >>> loss = lambda w, x: 0.5 * (w - x) ** 2
        >>> w0, w1 = jnp.float32(3.0), jnp.float32(2.0)
        >>> _, state = momentum.after(w0, momentum.init(w0), w0, HookContext(1.0, jnp.float32(0)))
        >>> grads = dpjax.per_example_grads(loss)(w1, jnp.array([1.0]))
        >>> changed, _ = momentum.before(grads, state)
        >>> changed.norms.tolist()  # (2 - 1) + 0.5 * (3 - 1)
        [2.0]

    Reference: Huang et al., Enhancing DP-SGD through Non-monotonous Adaptive Scaling Gradient
    Weight, 2024, algorithm 3, https://arxiv.org/abs/2411.03059
    """

    gamma0: float = 0.5
    length: int = 1
    gamma1: float = 0.1

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            gamma0=_checks.fraction("gamma0", self.gamma0),
            length=_checks.integer("length", self.length, at_least=1),
            gamma1=_checks.fraction("gamma1", self.gamma1, one=True),
        )

    def init(self, params: chex.ArrayTree) -> InnerOuterState:
        """Returns an empty history."""
        copies = jax.tree.map(lambda p: jnp.stack([jnp.asarray(p)] * self.length), params)
        outer = () if self.gamma1 == 1 else jax.tree.map(jnp.zeros_like, params)
        return InnerOuterState(copies, jnp.zeros((), jnp.int32), outer)

    def before(
        self, grads: PerExampleGrads, state: InnerOuterState
    ) -> tuple[PerExampleGrads, InnerOuterState]:
        """Returns the gradients of the loss summed over the iterates."""
        return grads.with_loss(lambda loss: self._summed(loss, state)), state

    def after(
        self,
        update: chex.ArrayTree,
        state: InnerOuterState,
        params: chex.ArrayTree | None,
        context: HookContext,
    ) -> tuple[chex.ArrayTree, InnerOuterState]:
        """Returns the outer momentum, and the history with the current iterate in it.

        Raises:
            ValueError: if `params` is None.
        """
        del context
        if params is None:
            raise ValueError("params = None: expected the parameters, to remember the iterate")
        iterates = jax.tree.map(
            lambda p, past: jnp.concatenate([jnp.asarray(p)[None], past[:-1]]),
            params,
            state.iterates,
        )
        outer = state.outer
        if self.gamma1 != 1:
            update = jax.tree.map(lambda u, m: u + (1 - self.gamma1) * m, update, outer)
            outer = jax.tree.map(lambda m, p: m.astype(jnp.result_type(p)), update, params)
        filled = jnp.minimum(state.filled + 1, self.length)
        return update, InnerOuterState(iterates, filled, outer)

    def _summed(
        self, loss: Callable[..., tuple[jax.Array, chex.ArrayTree]], state: InnerOuterState
    ) -> Callable[..., tuple[jax.Array, chex.ArrayTree]]:
        def summed(
            params: chex.ArrayTree, *example: chex.ArrayTree
        ) -> tuple[jax.Array, chex.ArrayTree]:
            # Zero in value, the identity in derivative: the displacement all iterates share.
            delta = jax.tree.map(lambda p: p - jax.lax.stop_gradient(p), params)
            total, reported = loss(params, *example)
            for age in range(1, self.length + 1):
                past = jax.tree.map(lambda w, d, a=age: w[a - 1] + d, state.iterates, delta)
                weight = jnp.where(age <= state.filled, self.gamma0**age, 0.0)
                total += weight.astype(total.dtype) * loss(past, *example)[0]
            return total, reported

        return summed


class StoredState(NamedTuple):
    """The state of `stored`: per-example averages, private like the data. Never publish it.

    Attributes:
        average: m_i for every example, stacked along a leading axis of N.
        started: whether m_i has been given its first value.
    """

    average: chex.ArrayTree
    started: jax.Array


@dataclass(frozen=True)
class stored(Momentum[StoredState]):
    """Averages each example's gradients over all steps, for full-batch training.

    ``m_i <- gamma g_i + (1 - gamma) m_i``, starting from ``m_i = g_i`` at the first step. The rule
    is applied to m_i. A non-finite gradient g_i leaves m_i as it was and contributes nothing to
    that step. As printed, the algorithm uses m_i before it is computed.

    Args:
        gamma: the weight of the newest gradient, in (0, 1]; 1 is no momentum.
        dataset_size: N, >= 1; every step must be given all N examples, in the same order.

    Raises:
        ValueError: if a number is outside its range; from an update, if the batch does not have N
            rows.

    Privacy:
        Bound: the rule's, since example i changes m_i alone. Relation: add or remove one example.
        Event: one Gaussian per step *without* amplification by sampling, as every example takes
        part in every step. Not protected: the state, which holds unreleased per-example averages.

    Example:
        >>> momentum = stored(gamma=0.5, dataset_size=2)
        >>> params = jnp.zeros(1)
        >>> state = momentum.init(params)
        >>> for gradients in ([[2.0], [4.0]], [[0.0], [0.0]]):
        ...     averaged, state = momentum.before(as_per_example_grads(jnp.array(gradients)), state)
        ...     print(averaged.norms.tolist())
        [2.0, 4.0]
        [1.0, 2.0]

    Reference: Huang et al., Enhancing DP-SGD through Non-monotonous Adaptive Scaling Gradient
    Weight, 2024, algorithm 2, https://arxiv.org/abs/2411.03059
    """

    every_example: ClassVar[bool] = True

    gamma: float
    dataset_size: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            gamma=_checks.fraction("gamma", self.gamma, one=True),
            dataset_size=_checks.integer("dataset_size", self.dataset_size, at_least=1),
        )

    def init(self, params: chex.ArrayTree) -> StoredState:
        """Returns averages of 0 that have not started."""
        empty = jax.tree.map(
            lambda p: jnp.zeros((self.dataset_size, *jnp.shape(p)), jnp.result_type(p)), params
        )
        return StoredState(empty, jnp.zeros((), bool))

    def before(
        self, grads: PerExampleGrads, state: StoredState
    ) -> tuple[PerExampleGrads, StoredState]:
        """Returns the averages in place of the gradients.

        Raises:
            ValueError: if the batch is not the full one, a row for each stored average.
        """
        if (rows := grads.real.shape[0]) != self.dataset_size:
            raise ValueError(
                f"grads has {rows} rows: expected all dataset_size = {self.dataset_size}"
            )
        given = as_per_example_grads(grads.as_vectors("stored momentum").vectors, grads.real)
        moved = jax.tree.map(
            lambda g, m: jnp.where(state.started, self.gamma * g + (1 - self.gamma) * m, g),
            given.vectors,
            state.average,
        )
        keep = given.real & jnp.isfinite(given.norms)
        average = jax.tree.map(
            lambda new, old: jnp.where(keep.reshape((-1,) + (1,) * (new.ndim - 1)), new, old),
            moved,
            state.average,
        )
        return as_per_example_grads(moved, given.real), StoredState(average, jnp.ones((), bool))

    def after(
        self,
        update: chex.ArrayTree,
        state: StoredState,
        params: chex.ArrayTree | None,
        context: HookContext,
    ) -> tuple[chex.ArrayTree, StoredState]:
        """Returns the released gradient unchanged."""
        del params, context
        return update, state
