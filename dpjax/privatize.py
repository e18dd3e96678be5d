"""Mechanism -> optax transformation: per-example gradients in, one private gradient out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _checks, noise
from dpjax._states import find_state
from dpjax.devices import summed_over_devices
from dpjax.gradients import PerExampleGrads, as_per_example_grads, combined_norm, group_index
from dpjax.mechanism import Mechanism
from dpjax.thresholds import Threshold, ThresholdContext

__all__ = [
    "ClippedSum",
    "PrivatizeState",
    "Released",
    "batch_sum",
    "cast_like",
    "clipped_sum",
    "privatize",
]


# A float32 norm may come out too short, and a contribution then too long: by up to 1.8e-6 where one
# large entry absorbs many small ones (the worst row that a search found). The rule is shown a norm
# that is at least the true one.
_ROUND_UP = 1.0 + 2.0**-18


class Released(NamedTuple):
    """Public numbers of the last step; safe to log and to publish.

    Attributes:
        threshold: C_t, a scalar, or (G,) with a threshold for each group.
        bound: the L2 bound of one example's contribution.
        sigma: the total, accounted noise multiplier.
        sigma_gradient: the gradient's own noise multiplier sigma_T.
    """

    threshold: jax.Array
    bound: jax.Array
    sigma: jax.Array
    sigma_gradient: jax.Array


class PrivatizeState(NamedTuple):
    """The transformation's state.

    Attributes:
        step: t, the number of logical steps released so far.
        key: the root of all noise; private.
        threshold: the adaptive threshold's state, or ().
        released: public numbers of the last step.
    """

    step: jax.Array
    key: jax.Array
    threshold: Any
    released: Released


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClippedSum:
    """Part of a logical batch, scaled and summed but not yet noised; private. Parts add with +.

    Attributes:
        gradient: ``sum_i w_i g_i``.
        statistic: ``sum_i s_i``, (m,); (0,) without a statistic.
    """

    gradient: Any
    statistic: jax.Array

    def __add__(self, other: "ClippedSum") -> "ClippedSum":
        """Returns the sum over both parts."""
        return jax.tree.map(jnp.add, self, other)


def privatize(
    mechanism: Mechanism,
    expected_batch_size: float,
    key: Any,
    axis_name: str | Sequence[str] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Turns per-example gradients into one private gradient; stands first in an optax chain.

    ``update = (sum_i weight(n_i, C_t) g_i + N(0, (sigma_T(t) bound)^2 I)) / B``

    Noise is drawn once per logical batch, in float32, from a key folded with t. The denominator is
    the *expected* batch size: the realised one is private.

    Args:
        mechanism: what runs, and what is accounted.
        expected_batch_size: B, a public constant, >= 1.
        key: a JAX random key; there is no default.
        axis_name: inside `jax.shard_map`, the mesh axes over which the batch is split: one sum over
            them, then the same noise on every device.

    Returns:
        A transformation. ``update(grads, state, params, mask=None)`` takes a `PerExampleGrads`, a
        plain pytree with a leading batch axis (with `mask`, 0 for padding), or a `ClippedSum`.
        Further keyword arguments are ignored here and reach the rest of the chain.

    Privacy:
        See `Mechanism`. The state holds the noise key and is private; `state.released` is public.

    Example:
        >>> import dpjax
        >>> mechanism = Mechanism(dpjax.rules.abadi(), threshold=1.0, noise_multiplier=0.0)
        >>> tx = optax.chain(privatize(mechanism, 2, jax.random.key(0)), optax.sgd(1.0))
        >>> params = jnp.zeros(2)
        >>> per_example = jnp.array([[3.0, 4.0], [0.0, 0.5]])
        >>> updates, _ = tx.update(per_example, tx.init(params), params)
        >>> [round(float(u), 4) for u in updates]
        [-0.3, -0.65]
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism = {mechanism!r}: expected a dpjax.Mechanism")
    if mechanism.rule.no_bound is not None:
        raise ValueError(f"rule = {mechanism.rule!r} has no bound: {mechanism.rule.no_bound}")
    batch_size = _checks.batch_size("expected_batch_size", expected_batch_size)
    sigma_s = mechanism.sigma_statistic(batch_size)
    root = noise.checked_key(key)

    def init(params: Any) -> PrivatizeState:
        state = mechanism.threshold.init() if mechanism.adaptive else ()
        step = jnp.zeros((), jnp.int32)
        groups = len(group_index(mechanism.groups, params).names)
        released = _released(mechanism, step, state, groups, sigma_s)
        return PrivatizeState(step, jnp.copy(root), state, released)

    def update(
        updates: Any, state: PrivatizeState, params: Any = None, *, mask: Any = None, **_: Any
    ) -> tuple[Any, PrivatizeState]:
        total = batch_sum(updates, mask, params, lambda g: clipped_sum(mechanism, g, state))
        total = summed_over_devices(total, axis_name, state.key)
        groups = len(group_index(mechanism.groups, total.gradient).names)
        released = _released(mechanism, state.step, state.threshold, groups, sigma_s)
        step_key = jax.random.fold_in(state.key, state.step)
        noisy = noise.add_gaussian(
            noise.stream(step_key, "noise/gradient"),
            total.gradient,
            released.sigma_gradient * released.bound,
        )
        mean = jax.tree.map(lambda leaf: leaf / batch_size, noisy)
        threshold = next_threshold(step_key, state, total)
        step = optax.safe_increment(state.step)
        new_state = PrivatizeState(step, state.key, threshold, released)
        return cast_like(mean, params, updates), new_state

    def next_threshold(step_key: jax.Array, state: PrivatizeState, total: ClippedSum) -> Any:
        if not isinstance(mechanism.threshold, Threshold) or sigma_s is None:
            return state.threshold
        noisy = noise.add_gaussian(
            noise.stream(step_key, "noise/statistic"),
            total.statistic,
            sigma_s * mechanism.threshold.sensitivity,
        )
        context = ThresholdContext(
            batch_size,
            sum(leaf.size for leaf in jax.tree.leaves(total.gradient)),
            noise.sigma_gradient(mechanism.sigma(state.step + 1), sigma_s),
            sigma_s,
        )
        return mechanism.threshold.update(state.threshold, noisy, context)

    return optax.GradientTransformationExtraArgs(init, update)


def clipped_sum(mechanism: Mechanism, grads: Any, opt_state: Any, mask: Any = None) -> ClippedSum:
    """Scales and sums a part of a logical batch, for batches that reach the device in parts.

    Add the parts with + and hand the total to ``tx.update`` in place of gradients:
    the noise is then added once. The parts must be disjoint, and all made with one `opt_state`.

    Args:
        mechanism: the mechanism that `privatize` was given.
        grads: a `PerExampleGrads`, or a plain pytree with a leading batch axis.
        opt_state: the chain's state; the threshold in force is read from it.
        mask: (B,), 0 for padding, with a plain pytree.

    Example:
        >>> import dpjax
        >>> mechanism = Mechanism(dpjax.rules.abadi(), threshold=1.0, noise_multiplier=1.0)
        >>> state = privatize(mechanism, 2, jax.random.key(0)).init(jnp.zeros(2))
        >>> part = clipped_sum(mechanism, jnp.array([[3.0, 4.0]]), state)
        >>> [round(float(g), 4) for g in (part + part).gradient]
        [1.2, 1.6]
    """
    state = find_state(opt_state, PrivatizeState)
    grads = as_per_example_grads(grads, mask)
    groups = mechanism.groups
    index = group_index(groups, grads.like)
    thresholds = mechanism.thresholds_at(state.step, state.threshold, len(index.names))

    def contribution(norms: jax.Array) -> tuple[jax.Array, jax.Array]:
        flat = norms if groups is None else combined_norm(norms)
        upper = norms * _ROUND_UP
        weights = mechanism.rule.weight(upper, thresholds[0] if groups is None else thresholds)
        if isinstance(mechanism.threshold, Threshold):
            statistic = mechanism.threshold.statistic(flat, state.threshold)
            return weights, statistic.astype(jnp.float32)
        return weights, jnp.zeros((flat.shape[0], 0))

    return ClippedSum(*grads.aggregate(contribution, groups=groups))


def batch_sum(
    updates: Any, mask: Any, params: Any, clip: Callable[[PerExampleGrads], ClippedSum]
) -> ClippedSum:
    """Returns what a transformation was given as one sum: clipped here, or in parts before."""
    if not isinstance(updates, ClippedSum):
        return clip(as_per_example_grads(updates, mask, params))
    if mask is not None:
        raise ValueError("mask: expected with the parts, not with their sum")
    return updates


def cast_like(update: Any, params: Any, grads: Any) -> Any:
    """Returns `update` in the parameters' dtypes, as optax optimizers expect; noise came before.

    Without `params` the dtypes are those the gradients know of; a `ClippedSum` knows of none.
    """
    like = params if params is not None else getattr(grads, "like", None)
    if like is None and not isinstance(grads, ClippedSum):
        like = grads
    if like is None:
        return update
    return jax.tree.map(lambda leaf, p: leaf.astype(jnp.result_type(p)), update, like)


def _released(
    mechanism: Mechanism, step: jax.Array, state: Any, groups: int, sigma_s: float | None
) -> Released:
    thresholds = mechanism.thresholds_at(step, state, groups)
    sigma = mechanism.sigma(step)
    per_group = isinstance(mechanism.threshold, tuple)
    return Released(
        thresholds if per_group else thresholds[0] * jnp.sqrt(jnp.float32(groups)),
        mechanism.bound(thresholds),
        sigma,
        noise.sigma_gradient(sigma, sigma_s),
    )
