"""Global clipping: scale all short gradients alike, drop the long ones (DP-SGD-Global)."""

from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.rules.rule import Rule, as_float, ratio

__all__ = ["global_clip"]


@dataclass(frozen=True)
class global_clip(Rule):
    """Scales every gradient shorter than z by the same factor and discards the others.

    ``weight = c / z`` if n < z, else 0, for a gradient of norm n and the threshold c. Gradients
    that stay keep their directions and relative lengths.

    Args:
        z: the norm from which a gradient is discarded, > 0.

    Raises:
        ValueError: if `z` is not a positive number.

    Privacy:
        Bound c, approached as n -> z and never attained. Relation: add or remove one example.
        Event: none of its own; `dpjax.Mechanism` adds noise in proportion to the bound and emits
        one Gaussian per step. Not protected: anything, without that noise.

    Example:
        >>> import jax.numpy as jnp
        >>> global_clip(z=4.0).weight(jnp.array([0.0, 3.0, 4.0]), 1.0).tolist()
        [0.25, 0.25, 0.0]

    Reference: Bu et al., On the Convergence and Calibration of Deep Learning with Differential
    Privacy, 2021, https://arxiv.org/abs/2106.07830
    """

    z: float

    def __post_init__(self) -> None:
        """Checks z."""
        self._set(z=_checks.normal("z", self.z))

    def weight(self, norm: jax.Array, c: chex.Numeric) -> jax.Array:
        """Returns ``c / z`` where ``norm < z``."""
        return jnp.where(norm < self.z, ratio(c, as_float(self.z)), 0).astype(as_float(norm).dtype)

    def bound(self, c: chex.Numeric) -> chex.Numeric:
        """Returns c."""
        return c
