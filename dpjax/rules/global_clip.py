"""Global clipping: scale all short gradients alike, drop the long ones (DP-SGD-Global)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.rules.base import Rule, as_float, ratio

__all__ = ["global_clip"]


@dataclass(frozen=True)
class global_clip(Rule):
    """Scales every gradient shorter than z by the same factor and discards the others.

    ``weight = c / z`` if n < z, else 0: directions and relative lengths of what stays are kept.

    Args:
        z: the length from which a gradient is discarded, > 0.

    Privacy:
        Bound c, since n < z; approached as n -> z; add-or-remove-one.

    Example:
        >>> import jax.numpy as jnp
        >>> global_clip(z=4.0).weight(jnp.array([0.0, 3.0, 4.0]), 1.0).tolist()
        [0.25, 0.25, 0.0]

    Reference: Bu et al., On the Convergence and Calibration of Deep Learning with DP, 2021.
    """

    z: float

    def __post_init__(self) -> None:
        """Checks z."""
        self._set(z=_checks.normal("z", self.z))

    def weight(self, norm: jax.Array, c: Any) -> jax.Array:
        """Returns ``c / z`` where ``norm < z``."""
        return jnp.where(norm < self.z, ratio(c, as_float(self.z)), 0).astype(as_float(norm).dtype)

    def bound(self, c: Any) -> Any:
        """Returns c."""
        return c
