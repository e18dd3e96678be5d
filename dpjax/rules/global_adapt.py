"""Global clipping that shortens instead of dropping (DP-SGD-Global-Adapt)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.rules.base import Rule, ratio

__all__ = ["global_adapt"]


@dataclass(frozen=True)
class global_adapt(Rule):
    """Scales every gradient shorter than z alike, and longer ones to the length `scale`.

    ``weight = scale * min(1 / z, 1 / n)``, where z *is* the threshold: it adapts by
    `dpjax.thresholds.global_z`, or is a number or a schedule.

    Args:
        scale: the length of the longest contribution, > 0.

    Privacy:
        Bound `scale`, whatever z is, attained for every n >= z; add-or-remove-one.

    Example:
        >>> import jax.numpy as jnp
        >>> rule = global_adapt(scale=0.5)
        >>> rule.weight(jnp.array([0.0, 2.0, 4.0]), 2.0).tolist(), rule.bound(2.0)
        ([0.25, 0.25, 0.125], 0.5)

    Reference: Esipova et al., Disparate Impact in Differential Privacy from Gradient Misalignment,
    2023, algorithm 1.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        """Checks scale."""
        self._set(scale=_checks.normal("scale", self.scale))

    def weight(self, norm: jax.Array, c: Any) -> jax.Array:
        """Returns ``scale / max(c, norm)``."""
        return ratio(self.scale, jnp.maximum(norm, c))

    def bound(self, c: Any) -> Any:
        """Returns `scale`."""
        return jnp.full_like(c, self.scale) if isinstance(c, jax.Array) else self.scale
