"""Automatic clipping: every gradient is normalised (AUTO-V, AUTO-S; NSGD)."""

from dataclasses import dataclass
from typing import Any

import jax

from dpjax import _checks
from dpjax.rules.base import Rule, ratio

__all__ = ["auto_s", "auto_v", "nsgd"]


@dataclass(frozen=True)
class auto_v(Rule):
    """Normalises every gradient to length c.

    ``weight = c / n``, and 0 at n = 0 and below the normal range of the norm's dtype.

    Privacy:
        Bound c, attained for every n > 0; add-or-remove-one.

    Example:
        >>> import jax.numpy as jnp
        >>> auto_v().weight(jnp.array([0.0, 0.5, 4.0]), 1.0).tolist()
        [0.0, 2.0, 0.25]

    Reference: Bu et al., Automatic Clipping, 2023, section 3 (AUTO-V).
    """

    def weight(self, norm: jax.Array, c: Any) -> jax.Array:
        """Returns ``c / norm``."""
        return ratio(c, norm)

    def bound(self, c: Any) -> Any:
        """Returns c."""
        return c


@dataclass(frozen=True)
class auto_s(Rule):
    """Normalises with a stability constant, so that short gradients keep a trace of their length.

    ``weight = c / (n + gamma)``.

    Args:
        gamma: the stability constant, > 0.

    Privacy:
        Bound c, approached as n grows and never attained; add-or-remove-one.

    Example:
        >>> import jax.numpy as jnp
        >>> auto_s(gamma=0.5).weight(jnp.array([0.0, 0.5, 1.5]), 1.0).tolist()
        [2.0, 1.0, 0.5]

    Reference: Bu et al., Automatic Clipping, 2023, equation 4.1 (AUTO-S).
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        """Checks gamma."""
        self._set(gamma=_checks.normal("gamma", self.gamma))

    def weight(self, norm: jax.Array, c: Any) -> jax.Array:
        """Returns ``c / (norm + gamma)``."""
        return ratio(c, norm + self.gamma)

    def bound(self, c: Any) -> Any:
        """Returns c."""
        return c


def nsgd(r: float = 0.01) -> auto_s:
    """Returns the rule of NSGD, which is AUTO-S under another name: ``weight = c / (n + r)``.

    Reference: Yang et al., Normalized/Clipped SGD with Perturbation, 2022.

    >>> nsgd(r=0.1)
    auto_s(gamma=0.1)
    """
    return auto_s(gamma=_checks.normal("r", r))
