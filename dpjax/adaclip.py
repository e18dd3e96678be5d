"""AdaCliP: gradients standardised coordinate by coordinate with private moments."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _checks
from dpjax._record import Record
from dpjax._states import find_state
from dpjax.batch_sums import ClippedSum
from dpjax.gradients import as_per_example_grads
from dpjax.mechanism import Mechanism
from dpjax.privatize import PrivatizeState, batch_sum, cast_like, clipped_sum, privatize

__all__ = ["AdaClipState", "adaclip"]


class _PreconditionerRecord(Record):
    role: ClassVar[str] = "preconditioner"


class AdaClipState(NamedTuple):
    """The moments, made of released gradients only and so public, and the release's state.

    Attributes:
        mean: m, shaped like the parameters.
        variance: s^2, the per-example variance of each coordinate.
        inner: the state of `privatize`.
    """

    mean: Any
    variance: Any
    inner: PrivatizeState


@dataclass(frozen=True)
class adaclip(_PreconditionerRecord):
    """Clips standardised gradients to 1, and follows their mean and variance privately.

    With ``b = sqrt(s) sqrt(sum s)``: ``u_i = clip((g_i - m) / b, 1)``,
    ``g~ = b (sum_i u_i + N(0, sigma^2 I)) / B + m``, which is the update. Then, with the old m,
    ``v = B ((g~ - m)^2 - (b sigma / B)^2)``: the variance of the batch mean without the noise's,
    times B for that of one example; ``s^2 <- beta2 s^2 + (1 - beta2) v`` clamped to
    [h_floor, h_ceiling] after averaging, and ``m <- beta1 m + (1 - beta1) g~``.

    The papers give no start: ours is m = 0 and s^2 the geometric mean of its limits.

    Args:
        beta1: the mean's decay, in [0, 1).
        beta2: the variance's decay, in [0, 1).
        h_floor: the smallest variance, > 0. Lin et al. print h_1 > h_2; the smaller is the floor.
        h_ceiling: the largest variance.

    Privacy:
        u_i has L2 norm at most 1 and is masked itself: a padded row or one that is not finite adds
        zero, not -m / b. The release is the mechanism's Gaussian of bound 1; m, s and b come from
        released gradients (post-processing). It needs per-example gradients as arrays.

    Reference: Pichapati et al., AdaCliP, 2019.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    h_floor: float = 1e-5
    h_ceiling: float = 1e-3

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            beta1=_checks.fraction("beta1", self.beta1, zero=True),
            beta2=_checks.fraction("beta2", self.beta2, zero=True),
            h_floor=_checks.normal("h_floor", self.h_floor),
            h_ceiling=_checks.normal("h_ceiling", self.h_ceiling),
        )
        _checks.ordered("h_floor", self.h_floor, "h_ceiling", self.h_ceiling)

    def transformation(
        self, mechanism: Mechanism, expected_batch_size: float, key: Any, axis_name: Any = None
    ) -> optax.GradientTransformationExtraArgs:
        """Returns the private transformation; its arguments are those of `privatize`."""
        private = privatize(mechanism, expected_batch_size, key, axis_name)
        batch_size = float(expected_batch_size)

        def init(params: Any) -> AdaClipState:
            start = (self.h_floor * self.h_ceiling) ** 0.5
            return AdaClipState(
                jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), jnp.float32), params),
                jax.tree.map(lambda p: jnp.full(jnp.shape(p), start, jnp.float32), params),
                private.init(params),
            )

        def update(
            updates: Any, state: AdaClipState, params: Any = None, *, mask: Any = None, **_: Any
        ) -> tuple[Any, AdaClipState]:
            total = batch_sum(
                updates, mask, params, lambda g: self.clipped_sum(mechanism, g, state)
            )
            noisy_mean, inner = private.update(total, state.inner)
            noise_std = inner.released.sigma_gradient * inner.released.bound / batch_size
            scale = _scale(state.variance)
            released = jax.tree.map(lambda u, b, m: b * u + m, noisy_mean, scale, state.mean)

            def next_variance(g: Any, m: Any, b: Any, variance: Any) -> Any:
                seen = batch_size * (jnp.square(g - m) - jnp.square(b * noise_std))
                mixed = self.beta2 * variance + (1 - self.beta2) * seen
                return jnp.clip(mixed, self.h_floor, self.h_ceiling).astype(jnp.float32)

            variance = jax.tree.map(next_variance, released, state.mean, scale, state.variance)
            mean = jax.tree.map(
                lambda m, g: (self.beta1 * m + (1 - self.beta1) * g).astype(jnp.float32),
                state.mean,
                released,
            )
            return cast_like(released, params, updates), AdaClipState(mean, variance, inner)

        return optax.GradientTransformationExtraArgs(init, update)

    def clipped_sum(
        self, mechanism: Mechanism, grads: Any, opt_state: Any, mask: Any = None
    ) -> ClippedSum:
        """Standardises, clips and sums a part of a batch; see `dpjax.clipped_sum`."""
        state = find_state(opt_state, AdaClipState)
        grads = as_per_example_grads(grads, mask)
        scale = _scale(state.variance)
        standard = grads.map(
            lambda g: jax.tree.map(lambda x, m, b: (x - m) / b, g, state.mean, scale)
        )
        return clipped_sum(mechanism, standard, state.inner)


def _scale(variance: Any) -> Any:
    """Returns ``b = sqrt(s) sqrt(sum s)``, with which the standardised norm is 1 in the mean."""
    std = jax.tree.map(jnp.sqrt, variance)
    total = jnp.sqrt(sum(jnp.sum(s) for s in jax.tree.leaves(std)))
    return jax.tree.map(lambda s: jnp.sqrt(s) * total, std)
