"""Mechanism -> optax transformation: per-example gradients in, one private gradient out."""

import numbers
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from dpjax import _checks, noise
from dpjax._states import find_state, repr_without_keys
from dpjax.batch_sums import ClippedSum, summed_over_devices
from dpjax.devices import Limits, as_automatic, as_explicit, automatic_axes, explicit_mesh
from dpjax.gradients import (
    PerExampleGrads,
    as_per_example_grads,
    combined_norm,
    group_index,
    trainable,
)
from dpjax.hooks import HookContext
from dpjax.mechanism import Mechanism
from dpjax.sampling import Sampling
from dpjax.thresholds import Threshold, ThresholdContext

__all__ = ["PrivatizeState", "Released", "cast_like", "clipped_sum", "privatize"]


class Released(NamedTuple):
    """Public numbers of the last step; safe to log and to publish.

    Attributes:
        threshold: C_t, a scalar, or (G,) with a threshold for each group.
        bound: the L2 bound on how far one example moves the sum: the bound on its contribution,
            enlarged if adding it changes how the engine rounds the other examples.
        sigma: the total, accounted noise multiplier.
        sigma_gradient: the gradient's own noise multiplier sigma_T.
        rerounding: by how much the bound is enlarged, as a fraction of it. It depends on the
            engine, the chunk, the sampling and the devices, not on the data.
    """

    threshold: jax.Array
    bound: jax.Array
    sigma: jax.Array
    sigma_gradient: jax.Array
    rerounding: jax.Array


class PrivatizeState(NamedTuple):
    """The transformation's state.

    Attributes:
        step: t, the number of logical steps released so far.
        key: the root of all noise; private.
        threshold: the adaptive threshold's state, or ().
        hooks: the states of momentum and preconditioner, if the mechanism has them.
        released: public numbers of the last step.
    """

    step: jax.Array
    key: jax.Array
    threshold: chex.ArrayTree
    hooks: tuple[chex.ArrayTree, ...]
    released: Released

    def __repr__(self) -> str:
        """Shows every field except the key."""
        return repr_without_keys(self)


def privatize(
    mechanism: Mechanism,
    sampling: Sampling | float,
    key: chex.PRNGKey,
    axis_name: str | Sequence[str] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Turns per-example gradients into one private gradient; comes first in an optax chain.

    ``update = (sum_i weight(n_i, C_t) g_i + N(0, (sigma_T(t) bound)^2 I)) / B``

    Noise is drawn once per logical batch, in float32, from a key folded with t. The denominator B
    is the *expected* batch size, because the realised one is private.

    Args:
        mechanism: the mechanism that runs and is accounted.
        sampling: the sampling that draws the batches; batches from anywhere else are refused. Or a
            number B, at least 1, for batches drawn elsewhere: dpjax then does not know how they
            were drawn, and you must make sure that your epsilon holds for them.
        key: a JAX random key; there is no default. It may be the key given to `sampling.draw`.
        axis_name: inside `jax.shard_map`, the mesh axes over which the batch is split. Sums are
            added over them, and every device adds the same noise.

    Returns:
        A transformation. ``update(grads, state, params, mask=None)`` takes a `PerExampleGrads` or a
        `ClippedSum`; if `sampling` is a number, also a plain pytree with a leading batch axis (and
        a `mask`, 0 for padding). Other keyword arguments are ignored here and reach the rest of the
        chain. Leaves of `params` that are not arrays of floats are left out of the update.

    Raises:
        TypeError: if `mechanism` is not a `Mechanism`, `sampling` is neither a sampling nor a
            number, or `key` is not a key. `update` raises it for a state that is not its own.
        ValueError: if the mechanism is not calibrated or does not run with the sampling, or B is
            below 1. `update` raises it for a batch that the sampling did not draw.

    Privacy:
        See `Mechanism`. The state holds the noise key and is private; `state.released` is public.
        Checking a batch's sampling guards against mistakes, not against forgery.

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
    mechanism.check_calibrated()
    batch_size = _batch_size(mechanism, sampling)
    drawn_by = sampling if isinstance(sampling, Sampling) else None
    sigma_s = mechanism.sigma_statistic(batch_size)
    root = noise.checked_key(key)

    def init(params: chex.ArrayTree) -> PrivatizeState:
        own = _all_trainable(params)
        state = mechanism.threshold.init() if isinstance(mechanism.threshold, Threshold) else ()
        step = jnp.zeros((), jnp.int32)
        groups = len(group_index(mechanism.groups, own).names)
        released = _released(mechanism, step, state, groups, sigma_s)
        hooks = tuple(hook.init(own) for hook in mechanism.hooks)
        return PrivatizeState(step, jnp.copy(root), state, hooks, released)

    def update(
        updates: PerExampleGrads | ClippedSum | chex.ArrayTree,
        state: PrivatizeState,
        params: chex.ArrayTree | None = None,
        *,
        mask: chex.Array | None = None,
        **_: object,
    ) -> tuple[chex.ArrayTree, PrivatizeState]:
        if not isinstance(state, PrivatizeState):
            raise TypeError(
                f"state = {type(state).__name__}: expected the PrivatizeState that tx.init returned"
            )
        own = None if params is None else trainable(params)
        _warn_if_eager(updates, state)
        mesh = updates.mesh if isinstance(updates, PerExampleGrads) else None
        mesh = mesh or explicit_mesh(own, state)
        if not isinstance(updates, PerExampleGrads):
            updates, mask = as_automatic((updates, mask), mesh)
        with automatic_axes(mesh):
            found = stepped(updates, *as_automatic((state, own), mesh), mask)
        like = own if own is not None else getattr(updates, "like", None)
        return as_explicit(found[0], mesh, like), as_explicit(found[1], mesh, state)

    def stepped(
        updates: PerExampleGrads | ClippedSum | chex.ArrayTree,
        state: PrivatizeState,
        own: chex.ArrayTree | None,
        mask: chex.Array | None,
    ) -> tuple[chex.ArrayTree, PrivatizeState]:
        total, hooks = _batch_sum(mechanism, updates, state, own, mask)
        _check_drawn(drawn_by, total, updates)
        groups = len(group_index(mechanism.groups, total.gradient).names)
        released = _released(mechanism, state.step, state.threshold, groups, sigma_s)
        limits = _limits(mechanism, released.bound)
        total = summed_over_devices(total, axis_name, state.key, limits)
        released = released._replace(
            bound=released.bound * (1.0 + total.rerounding), rerounding=total.rerounding
        )
        step_key = noise.fold(state.key, state.step)
        std = released.sigma_gradient * released.bound
        noisy = mechanism.noise.release(
            noise.stream(step_key, "noise/gradient"), total.gradient, total.gradient_low, std
        )
        mean = jax.tree.map(lambda leaf: leaf / batch_size, noisy)
        mean, hooks = _after(mechanism, mean, hooks, own, HookContext(batch_size, std / batch_size))
        threshold = next_threshold(step_key, state, total)
        step = optax.safe_increment(state.step)
        new_state = PrivatizeState(step, state.key, threshold, hooks, released)
        return cast_like(mean, own, updates), new_state

    def next_threshold(
        step_key: jax.Array, state: PrivatizeState, total: ClippedSum
    ) -> chex.ArrayTree:
        if not isinstance(mechanism.threshold, Threshold) or sigma_s is None:
            return state.threshold
        noisy = mechanism.noise.release(
            noise.stream(step_key, "noise/statistic"),
            total.statistic,
            total.statistic_low,
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


def clipped_sum(
    mechanism: Mechanism,
    grads: PerExampleGrads | chex.ArrayTree,
    opt_state: optax.OptState,
    mask: chex.Array | None = None,
) -> ClippedSum:
    """Scales and sums a part of a logical batch, for batches that reach the device in parts.

    Add the parts with + and pass the total to ``tx.update`` in place of gradients; noise is then
    added once. The parts must be disjoint and all use the same `opt_state`.

    Args:
        mechanism: the mechanism that `privatize` was given.
        grads: a `PerExampleGrads`, or a plain pytree with a leading batch axis.
        opt_state: the chain's state, which holds the current threshold.
        mask: (B,), 0 for padding, with a plain pytree.

    Returns:
        The part's sum; private.

    Raises:
        ValueError: if momentum is stored per example, which needs the whole batch at once.

    Privacy:
        One example changes the sum by at most `mechanism.bound`. No noise is added here, so the
        parts and their sum are private.

    Example:
        >>> import dpjax
        >>> mechanism = Mechanism(dpjax.rules.abadi(), threshold=1.0, noise_multiplier=1.0)
        >>> state = privatize(mechanism, 2, jax.random.key(0)).init(jnp.zeros(2))
        >>> part = clipped_sum(mechanism, jnp.array([[3.0, 4.0]]), state)
        >>> [round(float(g), 4) for g in (part + part).gradient]
        [1.2, 1.6]
    """
    if mechanism.full_batch:
        raise ValueError(
            f"mechanism = {mechanism!r}: expected the whole batch in one tx.update, since momentum "
            "is stored for every example"
        )
    state = find_state(opt_state, PrivatizeState)
    own = as_per_example_grads(grads, mask)
    with automatic_axes(own.mesh):
        total, _ = _clipped(mechanism, own, as_automatic(state, own.mesh))
    whole = as_explicit(total, own.mesh)
    halves = [as_explicit(x, own.mesh, own.like) for x in (total.gradient, total.gradient_low)]
    return replace(whole, gradient=halves[0], gradient_low=halves[1])


def _all_trainable(params: chex.ArrayTree) -> chex.ArrayTree:
    """Raises if a leaf gets no update, because later optimizers would keep a state for it."""
    own = trainable(params)
    kept = {path for path, _ in jax.tree_util.tree_leaves_with_path(own)}
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        if path not in kept:
            raise TypeError(
                f"params{jax.tree_util.keystr(path)} is not an array of floats: "
                "expected tx.init(dpjax.gradients.trainable(params)), as with equinox.filter"
            )
    return own


def _batch_size(mechanism: Mechanism, sampling: object) -> float:
    if not isinstance(sampling, Sampling):
        if isinstance(sampling, bool) or not isinstance(sampling, numbers.Real):
            raise TypeError(
                f"sampling = {sampling!r}: expected one of dpjax.sampling, such as "
                "Poisson(batch_size=256, dataset_size=50_000), or the expected batch size"
            )
        return _checks.batch_size("sampling", sampling)
    mechanism.check_sampling(sampling)
    if sampling.batch_size is None:
        raise ValueError(f"sampling = {sampling!r}: expected one with a dataset_size, to draw from")
    return sampling.batch_size


def _warn_if_eager(updates: Any, state: PrivatizeState) -> None:
    eager = not isinstance(state.step, jax.core.Tracer)
    if isinstance(updates, PerExampleGrads) and eager and not updates.traced:
        warnings.warn(
            "tx.update runs outside of jax.jit, which is slow: wrap the whole step in jax.jit",
            stacklevel=4,
        )


def _batch_sum(
    mechanism: Mechanism,
    updates: PerExampleGrads | ClippedSum | chex.ArrayTree,
    state: PrivatizeState,
    params: chex.ArrayTree | None,
    mask: chex.Array | None,
) -> tuple[ClippedSum, tuple[chex.ArrayTree, ...]]:
    """Returns `updates` as one sum: gradients are clipped here; a `ClippedSum` already is."""
    if not isinstance(updates, ClippedSum):
        return _clipped(mechanism, as_per_example_grads(updates, mask, params), state)
    if mask is not None:
        raise ValueError("mask: expected with the parts, not with their sum")
    return updates, state.hooks


def _clipped(
    mechanism: Mechanism, grads: PerExampleGrads, state: PrivatizeState
) -> tuple[ClippedSum, tuple[chex.ArrayTree, ...]]:
    """Returns the sum of the clipped gradients, and the states of the hooks."""
    sampling, hooks = grads.sampling, []
    for hook, own in zip(mechanism.hooks, state.hooks, strict=True):
        grads, new = hook.before(grads, own)
        hooks.append(new)
    groups = mechanism.groups
    index = group_index(groups, grads.like)
    thresholds = mechanism.thresholds_at(state.step, state.threshold, len(index.names))

    def contribution(norms: jax.Array) -> tuple[jax.Array, jax.Array]:
        flat = norms if groups is None else combined_norm(norms)
        weights = mechanism.rule.weight(norms, thresholds[0] if groups is None else thresholds)
        if isinstance(mechanism.threshold, Threshold):
            statistic = mechanism.threshold.statistic(flat, state.threshold)
            return weights, statistic.astype(jnp.float32)
        return weights, jnp.zeros((flat.shape[0], 0))

    sums = grads.aggregate(contribution, groups, _limits(mechanism, mechanism.bound(thresholds)))
    return ClippedSum.of(sums, sampling), tuple(hooks)


def _limits(mechanism: Mechanism, bound: jax.Array) -> Limits:
    threshold = mechanism.threshold
    return Limits(bound, threshold.sensitivity if isinstance(threshold, Threshold) else 0.0)


def _after(
    mechanism: Mechanism,
    mean: chex.ArrayTree,
    states: tuple[chex.ArrayTree, ...],
    params: chex.ArrayTree | None,
    context: HookContext,
) -> tuple[chex.ArrayTree, tuple[chex.ArrayTree, ...]]:
    """Lets the hooks post-process the release, innermost first."""
    new = []
    for hook, state in reversed(list(zip(mechanism.hooks, states, strict=True))):
        mean, after = hook.after(mean, state, params, context)
        new.append(after)
    return mean, tuple(reversed(new))


def _check_drawn(sampling: Sampling | None, total: ClippedSum, given: object) -> None:
    """Raises if the sampling did not draw the batch."""
    if sampling is None or total.sampling == sampling:
        return
    what = "a hand-fed batch" if total.sampling is None else f"a batch drawn by {total.sampling!r}"
    if not isinstance(given, PerExampleGrads | ClippedSum):
        what = "a plain pytree"
    raise ValueError(
        f"grads comes from {what}: expected a batch that {sampling!r} drew, as in grads_of(params, "
        "data, sampling.draw(key, step)); for other batches give privatize their expected size"
    )


def cast_like(
    update: chex.ArrayTree, params: chex.ArrayTree | None, grads: chex.ArrayTree
) -> chex.ArrayTree:
    """Returns the noisy `update` in the parameters' dtypes, as optax optimizers expect.

    Without `params`, the dtypes come from the gradients; a `ClippedSum` has none to offer.
    """
    like = params if params is not None else getattr(grads, "like", None)
    if like is None and not isinstance(grads, ClippedSum):
        like = grads
    if like is None:
        return update
    return jax.tree.map(lambda leaf, p: leaf.astype(jnp.result_type(p)), update, like)


def _released(
    mechanism: Mechanism, step: jax.Array, state: chex.ArrayTree, groups: int, sigma_s: float | None
) -> Released:
    thresholds = mechanism.thresholds_at(step, state, groups)
    sigma = mechanism.sigma(step)
    per_group = isinstance(mechanism.threshold, tuple)
    return Released(
        thresholds if per_group else thresholds[0] * jnp.sqrt(jnp.float32(groups)),
        mechanism.bound(thresholds),
        sigma,
        noise.sigma_gradient(sigma, sigma_s),
        jnp.zeros((), jnp.float32),
    )
