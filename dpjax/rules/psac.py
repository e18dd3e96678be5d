"""Per-sample adaptive clipping with a non-monotonous weight (DP-PSAC)."""

from dataclasses import dataclass
from typing import Any

import jax

from dpjax import _checks
from dpjax.rules.base import Rule, ratio

__all__ = ["psac"]


@dataclass(frozen=True)
class psac(Rule):
    """Normalises long gradients and leaves vanishing ones a weight near c instead of c/gamma.

    ``weight = c / (n + r / (n + r))``: c/n for n >> sqrt(r), and c as n -> 0.

    Args:
        r: where the weight turns, > 0.

    Privacy:
        Bound c, approached as n grows and never attained; add-or-remove-one.

    Example:
        >>> import jax.numpy as jnp
        >>> psac(r=0.5).weight(jnp.array([0.0, 0.5]), 1.0).tolist()
        [1.0, 1.0]

    Reference: Xia et al., Differentially Private Learning with Per-Sample Adaptive Clipping, 2023.
    """

    r: float = 0.01

    def __post_init__(self) -> None:
        """Checks r."""
        self._set(r=_checks.normal("r", self.r))

    def weight(self, norm: jax.Array, c: Any) -> jax.Array:
        """Returns ``c / (norm + r / (norm + r))``."""
        return ratio(c, norm + self.r / (norm + self.r))

    def bound(self, c: Any) -> Any:
        """Returns c."""
        return c
