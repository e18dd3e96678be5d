"""Auto DP-SGD as printed: it runs, and it is not differentially private."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
import optax

from dpjax import _checks, noise, schedules
from dpjax._record import Record
from dpjax._states import find_state
from dpjax.batch_sums import ClippedSum
from dpjax.gradients import PerExampleGrads, as_per_example_grads
from dpjax.mechanism import Guarantee
from dpjax.methods import table
from dpjax.methods.adaptive import noise_decay
from dpjax.privatize import PrivatizeState, Released, cast_like
from dpjax.sampling import Sampling

__all__ = ["auto_dp_sgd", "auto_dp_sgd_as_printed"]


class _ReleaseRecord(Record):
    role: ClassVar[str] = "release"


@dataclass(frozen=True)
class auto_dp_sgd_as_printed(_ReleaseRecord):
    """The paper's update, for reproduction only; a `dpjax.mechanism.Release`, not a mechanism.

    The paper sets the threshold of an example to W times that example's own norm, so clipping
    scales every gradient by ``min(1, W n / n) = W``:

        ``update = (sum_i W g_i + N(0, (sigma_t s_t)^2 I)) / B`` with ``s_t = W sum_i n_i / B``,

    the mean of the paper's thresholds over the batch. The paper's "average sensitivity", the mean
    of s_t over all steps so far, depends on the data: it is kept in the state, which is private,
    and `diagnostics` reports it.

    Args:
        noise_multiplier: sigma_t.
        scale: the paper's W, in (0, 1].

    Privacy:
        None. A contribution is as long as its gradient, and the noise's scale s_t is computed from
        the data without noise: on a batch of zero gradients the noise is exactly zero. The
        accounting does not take it; `dpjax.methods.auto_dp_sgd_sound` keeps the paper's noise decay
        on top of a real bound.

    Reference: Chilukoti et al., Auto DP-SGD, 2023, algorithms 1 and 2.
    https://arxiv.org/abs/2312.02400
    """

    name: ClassVar[str] = "auto_dp_sgd"

    noise_multiplier: schedules.FloatOrSchedule
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Checks the fields."""
        sigma = schedules.number_or_schedule("noise_multiplier", self.noise_multiplier, zero=True)
        self._set(noise_multiplier=sigma, scale=_checks.fraction("scale", self.scale, one=True))

    @property
    def guarantee(self) -> Guarantee:
        """The absence of a guarantee, with the reason."""
        return Guarantee(
            False,
            "add or remove one example",
            "No guarantee: each example is scaled by a constant, so its contribution is as long as "
            "its gradient, and the noise is scaled by the non-private mean norm of the batch; use "
            "dpjax.methods.auto_dp_sgd_sound.",
        )

    def weight(self, norms: jax.Array) -> jax.Array:
        """Returns `scale`, and 0 for a norm that is not finite."""
        return jnp.where(jnp.isfinite(norms), self.scale, 0.0)

    def transformation(
        self,
        sampling: Sampling | float,
        key: chex.PRNGKey,
        axis_name: str | Sequence[str] | None = None,
    ) -> optax.GradientTransformationExtraArgs:
        """Returns the paper's update; the arguments are those of `dpjax.privatize`."""
        given = sampling.batch_size if isinstance(sampling, Sampling) else sampling
        batch_size = _checks.batch_size("sampling", given)
        root = noise.checked_key(key)

        def init(params: chex.ArrayTree) -> PrivatizeState:
            del params
            nothing = Released(*[jnp.float32(jnp.nan)] * len(Released._fields))
            mean = jnp.zeros((), jnp.float32)
            return PrivatizeState(jnp.zeros((), jnp.int32), jnp.copy(root), mean, (), nothing)

        def update(
            updates: PerExampleGrads | ClippedSum | chex.ArrayTree,
            state: PrivatizeState,
            params: chex.ArrayTree | None = None,
            *,
            mask: chex.Array | None = None,
            **_: object,
        ) -> tuple[chex.ArrayTree, PrivatizeState]:
            if isinstance(updates, ClippedSum):
                if mask is not None:
                    raise ValueError("mask: expected with the parts, not with their sum")
                total = updates
            else:
                total = self.clipped_sum(as_per_example_grads(updates, mask, params), state)
            gradient, norms = total.gradient, total.statistic[0]
            if axis_name is not None:
                gradient, norms = jax.lax.psum((gradient, norms), axis_name)
            step_key = noise.fold(state.key, state.step)
            sensitivity = norms / batch_size
            std = schedules.value_at(self.noise_multiplier, state.step) * sensitivity
            z = noise.standard_normal(noise.stream(step_key, "noise/gradient"), gradient)
            mean = jax.tree.map(lambda g, z: (g + std * z) / batch_size, gradient, z)
            new_step = optax.safe_increment(state.step)
            average = state.threshold + (sensitivity - state.threshold) / new_step
            new_state = state._replace(step=new_step, threshold=average)
            return cast_like(mean, params, updates), new_state

        return optax.GradientTransformationExtraArgs(init, update)

    def clipped_sum(
        self,
        grads: PerExampleGrads | chex.ArrayTree,
        opt_state: optax.OptState,
        mask: chex.Array | None = None,
    ) -> ClippedSum:
        """Returns ``(sum_i W g_i, sum_i W n_i)`` over a part of a batch."""
        del opt_state
        given = as_per_example_grads(grads, mask)

        def scaled(norms: jax.Array) -> tuple[jax.Array, jax.Array]:
            weights = self.weight(norms)
            return weights, jnp.where(weights > 0, weights * norms, 0.0)[:, None]

        return ClippedSum.of(given.aggregate(scaled), given.sampling)

    def diagnostics(self, opt_state: optax.OptState) -> dict[str, float]:
        """Returns the paper's average sensitivity so far, which depends on the data."""
        return {"average_sensitivity": float(find_state(opt_state, PrivatizeState).threshold)}


def auto_dp_sgd(
    noise_multiplier: float | None = None,
    *,
    steps_per_epoch: float,
    epochs: int,
    decay: str = "step",
    scale: float = 1.0,
) -> auto_dp_sgd_as_printed:
    """Returns Auto DP-SGD as printed, with one of its four noise decays.

    Args:
        noise_multiplier: sigma_0; it cannot be calibrated, since there is no epsilon.
        steps_per_epoch: N / B.
        epochs: E, which sets the rate of the "time" decay.
        decay: "linear" (which is really geometric), "time", "step" or "exponential".
        scale: the paper's W, in (0, 1].

    Example:
        >>> auto_dp_sgd(1.0, steps_per_epoch=10, epochs=5).guarantee.private
        False
    """
    if noise_multiplier is None:
        raise ValueError(
            "noise_multiplier = None: expected a number. Auto DP-SGD as printed has no guarantee, "
            "so no budget sets its noise; dpjax.methods.auto_dp_sgd_sound has the same decays"
        )
    sigma = _checks.positive("noise_multiplier", noise_multiplier)
    return auto_dp_sgd_as_printed(noise_decay(decay, sigma, steps_per_epoch, epochs), scale)


table.register("auto_dp_sgd", auto_dp_sgd)
