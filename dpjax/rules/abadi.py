"""Clipping to a ball (Abadi et al. 2016)."""

from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp

from dpjax.rules.rule import Rule, ratio

__all__ = ["abadi"]


@dataclass(frozen=True)
class abadi(Rule):
    """Clips: short gradients stay as they are, long ones are shortened to length c.

    ``weight = min(1, c / n)``, computed as ``c / max(n, c)``, for a gradient of norm n and the
    threshold c.

    Privacy:
        Bound c, attained for every n >= c. Relation: add or remove one example. Event: none of its
        own; `dpjax.Mechanism` adds noise in proportion to the bound and emits one Gaussian per
        step. Not protected: anything, without that noise.

    Example:
        >>> import jax.numpy as jnp
        >>> abadi().weight(jnp.array([0.0, 0.5, 4.0]), 1.0).tolist()
        [1.0, 1.0, 0.25]

    Reference: Abadi et al., Deep Learning with Differential Privacy, 2016,
    https://arxiv.org/abs/1607.00133
    """

    def weight(self, norm: jax.Array, c: chex.Numeric) -> jax.Array:
        """Returns ``min(1, c / norm)``."""
        return ratio(c, jnp.maximum(norm, c))

    def bound(self, c: chex.Numeric) -> chex.Numeric:
        """Returns c."""
        return c
