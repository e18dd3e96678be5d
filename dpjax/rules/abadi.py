"""Clipping to a ball (Abadi et al. 2016)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.rules.base import Rule, ratio

__all__ = ["abadi"]


@dataclass(frozen=True)
class abadi(Rule):
    """Clips: short gradients stay, long ones are shortened to c.

    ``weight = min(1, c / n)``, written as ``c / max(n, c)``.

    Privacy:
        Bound c, attained for every n >= c. The rule protects nothing by itself: noise of
        `Mechanism.noise_multiplier` times the bound does, under add-or-remove-one of one example.

    Example:
        >>> import jax.numpy as jnp
        >>> abadi().weight(jnp.array([0.0, 0.5, 4.0]), 1.0).tolist()
        [1.0, 1.0, 0.25]

    Reference: Abadi et al., Deep Learning with Differential Privacy, 2016.
    """

    def weight(self, norm: jax.Array, c: Any) -> jax.Array:
        """Returns ``min(1, c / norm)``."""
        return ratio(c, jnp.maximum(norm, c))

    def bound(self, c: Any) -> Any:
        """Returns c."""
        return c
