"""Per-sample adaptive clipping with a non-monotonic weight (DP-PSAC)."""

from dataclasses import dataclass

import chex
import jax

from dpjax import _checks
from dpjax.rules.rule import Rule, ratio

__all__ = ["psac"]


@dataclass(frozen=True)
class psac(Rule):
    """Normalises long gradients, and gives vanishing ones a weight near c instead of c / gamma.

    ``weight = c / (n + r / (n + r))`` for a gradient of norm n and the threshold c: nearly c / n
    for n >> sqrt(r), and c as n -> 0. For r < 1 it is largest at ``n = sqrt(r) - r``.

    Args:
        r: sets where the weight is largest, > 0.

    Raises:
        ValueError: if `r` is not a positive number.

    Privacy:
        Bound c, approached as n grows and never attained. Relation: add or remove one example.
        Event: none of its own; `dpjax.Mechanism` adds noise in proportion to the bound and emits
        one Gaussian per step. Not protected: anything, without that noise.

    Example:
        >>> import jax.numpy as jnp
        >>> psac(r=0.5).weight(jnp.array([0.0, 0.5]), 1.0).tolist()
        [1.0, 1.0]

    Reference: Xia et al., Differentially Private Learning with Per-Sample Adaptive Clipping, 2023,
    https://arxiv.org/abs/2212.00328
    """

    r: float = 0.01

    def __post_init__(self) -> None:
        """Checks r."""
        self._set(r=_checks.normal("r", self.r))

    def weight(self, norm: jax.Array, c: chex.Numeric) -> jax.Array:
        """Returns ``c / (norm + r / (norm + r))``."""
        return ratio(c, norm + self.r / (norm + self.r))

    def bound(self, c: chex.Numeric) -> chex.Numeric:
        """Returns c."""
        return c
