"""Auto DP-SGD as printed: it runs, and it is not differentially private."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _checks, noise
from dpjax.devices import summed_over_devices
from dpjax.gradients import as_per_example_grads
from dpjax.mechanism import Mechanism
from dpjax.privatize import ClippedSum, batch_sum, cast_like

__all__ = ["AutoDpState", "auto_dp_as_printed_sum", "auto_dp_as_printed_transformation"]


class AutoDpState(NamedTuple):
    """The step and the noise key. There is nothing to release: the noise's scale is private."""

    step: jax.Array
    key: jax.Array


def auto_dp_as_printed_transformation(
    mechanism: Mechanism, expected_batch_size: float, key: Any, axis_name: Any = None
) -> optax.GradientTransformationExtraArgs:
    """Returns the paper's update, for reproduction only.

    ``update = (sum_i W g_i + N(0, (sigma_t s_t)^2 I)) / B`` with ``s_t = W sum_i n_i / B``, the
    mean of the paper's thresholds over the batch.

    Privacy:
        None: a contribution is as long as its gradient, and the noise's scale s_t is computed from
        the data without noise. On a batch of zero gradients the noise is exactly zero. The
        accounting refuses this mechanism.

    Reference: Auto DP-SGD, algorithms 1 and 2.
    """
    batch_size = _checks.batch_size("expected_batch_size", expected_batch_size)
    root = noise.checked_key(key)

    def init(params: Any) -> AutoDpState:
        del params
        return AutoDpState(jnp.zeros((), jnp.int32), jnp.copy(root))

    def update(
        updates: Any, state: AutoDpState, params: Any = None, *, mask: Any = None, **_: Any
    ) -> tuple[Any, AutoDpState]:
        total = batch_sum(updates, mask, params, lambda g: auto_dp_as_printed_sum(mechanism, g))
        total = summed_over_devices(total, axis_name, state.key)
        step_key = jax.random.fold_in(state.key, state.step)
        std = mechanism.sigma(state.step) * total.statistic[0] / batch_size
        noisy = noise.add_gaussian(noise.stream(step_key, "noise/gradient"), total.gradient, std)
        mean = jax.tree.map(lambda g: g / batch_size, noisy)
        state = AutoDpState(optax.safe_increment(state.step), state.key)
        return cast_like(mean, params, updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def auto_dp_as_printed_sum(mechanism: Mechanism, grads: Any, mask: Any = None) -> ClippedSum:
    """Returns ``(sum_i W g_i, sum_i W n_i)`` over a part of a batch."""
    grads = as_per_example_grads(grads, mask)

    def scaled(norms: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = mechanism.rule.weight(norms, 1.0)
        return weights, jnp.where(weights > 0, weights * norms, 0.0)[:, None]

    return ClippedSum(*grads.aggregate(scaled))
