"""AdaCliP: gradients standardised coordinate by coordinate with private moments."""

from dataclasses import dataclass
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.gradients import PerExampleGrads
from dpjax.hooks import HookContext, Preconditioner

__all__ = ["ESTIMATES", "AdaClipState", "adaclip"]

ESTIMATES = ("per_example", "published")
"""The estimates of the variance: ours, and Pichapati et al.'s."""


class AdaClipState(NamedTuple):
    """The state of `adaclip`: moments estimated from released gradients, so public.

    Attributes:
        mean: m, the mean gradient, shaped like the parameters.
        variance: s^2, the variance of each coordinate over examples, shaped like the parameters.
    """

    mean: chex.ArrayTree
    variance: chex.ArrayTree


@dataclass(frozen=True)
class adaclip(Preconditioner[AdaClipState]):
    """Clips standardised gradients to norm 1, and estimates their mean and variance privately.

    With m the mean, s^2 the variance and ``b = sqrt(s) sqrt(sum s)``, coordinate by coordinate:

        ``u_i = clip((g_i - m) / b, 1)``,
        ``g~ = b (sum_i u_i + N(0, sigma^2 I)) / B + m``,  which is the update,
        ``v = B ((g~ - m)^2 - (b sigma / B)^2)``,
        ``s^2 <- beta2 s^2 + (1 - beta2) v``,  clamped to [h_floor, h_ceiling],
        ``m <- beta1 m + (1 - beta1) g~``.

    v estimates the variance of one example: B times the variance of the batch mean, after
    subtracting that of the noise. This is our reading. The published estimate
    (``estimate="published"``) has no factor B, so that v is the variance of the batch mean, and
    clamps v itself before averaging:

        ``v = clip((g~ - m)^2 - (b sigma / B)^2, h_floor, h_ceiling)``.

    Clamping before averaging turns noise around zero into a positive variance. Limits tuned for one
    estimate do not fit the other, because the published one is smaller by a factor B. m starts at
    0, and s^2 at the geometric mean of its limits. AdaCliP needs per-example gradients as arrays:
    the engine "auto" becomes "vmap", and "ghost" raises an error.

    Args:
        beta1: the decay of the mean, in [0, 1).
        beta2: the decay of the variance, in [0, 1).
        h_floor: the smallest variance, > 0. Lin et al. print h_1 > h_2; the smaller is the floor.
        h_ceiling: the largest variance.
        estimate: "per_example" for our v, "published" for Pichapati et al.'s.

    Raises:
        ValueError: if a number is outside its range, `h_floor` exceeds `h_ceiling`, or `estimate`
            is unknown.

    Privacy:
        Bound: 1, the L2 norm of u_i. Padded rows and non-finite gradients contribute u_i = 0, not
        -m / b. Relation: add or remove one example. Event: the mechanism's Gaussian, one per step;
        m, s and b follow from released gradients by post-processing. Not protected: m and s, which
        are public.

    Example:
        >>> rule = adaclip(h_floor=1e-4, h_ceiling=1e-2)
        >>> state = rule.init(jnp.zeros(3))
        >>> round(float(state.variance[0]), 6)
        0.001

    Reference: Pichapati et al., AdaCliP: Adaptive Clipping for Private SGD, 2019,
    https://arxiv.org/abs/1908.07643
    """

    beta1: float = 0.9
    beta2: float = 0.99
    h_floor: float = 1e-5
    h_ceiling: float = 1e-3
    estimate: str = "per_example"

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            beta1=_checks.fraction("beta1", self.beta1, zero=True),
            beta2=_checks.fraction("beta2", self.beta2, zero=True),
            h_floor=_checks.normal("h_floor", self.h_floor),
            h_ceiling=_checks.normal("h_ceiling", self.h_ceiling),
            estimate=_checks.choice("estimate", self.estimate, ESTIMATES),
        )
        _checks.ordered("h_floor", self.h_floor, "h_ceiling", self.h_ceiling)

    def init(self, params: chex.ArrayTree) -> AdaClipState:
        """Returns a mean of 0 and a variance at the geometric mean of its limits."""
        start = (self.h_floor * self.h_ceiling) ** 0.5
        return AdaClipState(
            jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), jnp.float32), params),
            jax.tree.map(lambda p: jnp.full(jnp.shape(p), start, jnp.float32), params),
        )

    def before(
        self, grads: PerExampleGrads, state: AdaClipState
    ) -> tuple[PerExampleGrads, AdaClipState]:
        """Returns the standardised gradients."""
        scale = _scale(state.variance)
        standard = grads.as_vectors("adaclip").map(
            lambda g: jax.tree.map(lambda x, m, b: (x - m) / b, g, state.mean, scale)
        )
        return standard, state

    def after(
        self,
        update: chex.ArrayTree,
        state: AdaClipState,
        params: chex.ArrayTree | None,
        context: HookContext,
    ) -> tuple[chex.ArrayTree, AdaClipState]:
        """Returns the released gradient in the original coordinates, and the updated moments."""
        del params
        scale = _scale(state.variance)
        released = jax.tree.map(lambda u, b, m: b * u + m, update, scale, state.mean)

        def next_variance(
            g: jax.Array, m: jax.Array, b: jax.Array, variance: jax.Array
        ) -> jax.Array:
            noise = jnp.square(b * context.noise_std)
            seen = jnp.square(g - m) - noise
            if self.estimate == "published":
                seen = jnp.clip(seen, self.h_floor, self.h_ceiling)
            else:
                seen = context.batch_size * seen
            mixed = self.beta2 * variance + (1 - self.beta2) * seen
            return jnp.clip(mixed, self.h_floor, self.h_ceiling).astype(jnp.float32)

        variance = jax.tree.map(next_variance, released, state.mean, scale, state.variance)
        mean = jax.tree.map(
            lambda m, g: (self.beta1 * m + (1 - self.beta1) * g).astype(jnp.float32),
            state.mean,
            released,
        )
        return released, AdaClipState(mean, variance)


def _scale(variance: chex.ArrayTree) -> chex.ArrayTree:
    """Returns ``b = sqrt(s) sqrt(sum s)``, which makes the mean squared standardised norm 1."""
    std = jax.tree.map(jnp.sqrt, variance)
    total = jnp.sqrt(sum(jnp.sum(s) for s in jax.tree.leaves(std)))
    return jax.tree.map(lambda s: jnp.sqrt(s) * total, std)
