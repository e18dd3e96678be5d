"""Automatic clipping: every gradient is normalised (AUTO-V, AUTO-S; NSGD)."""

from dataclasses import dataclass

import chex
import jax

from dpjax import _checks
from dpjax.rules.rule import Rule, ratio

__all__ = ["auto_s", "auto_v", "nsgd"]


@dataclass(frozen=True)
class auto_v(Rule):
    """Normalises every gradient to length c.

    ``weight = c / n`` for a gradient of norm n and the threshold c; 0 where n is 0 or below the
    normal range of its dtype. Under SGD, c then only rescales the learning rate.

    Privacy:
        Bound c, attained for every n > 0. Relation: add or remove one example. Event: none of its
        own; `dpjax.Mechanism` adds noise in proportion to the bound and emits one Gaussian per
        step. Not protected: anything, without that noise.

    Example:
        >>> import jax.numpy as jnp
        >>> auto_v().weight(jnp.array([0.0, 0.5, 4.0]), 1.0).tolist()
        [0.0, 2.0, 0.25]

    Reference: Bu et al., Automatic Clipping: Differentially Private Deep Learning Made Easier and
    Stronger, 2023, section 3 (AUTO-V), https://arxiv.org/abs/2206.07136
    """

    def weight(self, norm: jax.Array, c: chex.Numeric) -> jax.Array:
        """Returns ``c / norm``."""
        return ratio(c, norm)

    def bound(self, c: chex.Numeric) -> chex.Numeric:
        """Returns c."""
        return c


@dataclass(frozen=True)
class auto_s(Rule):
    """Normalises with a stability constant, so that short gradients keep a trace of their length.

    ``weight = c / (n + gamma)`` for a gradient of norm n and the threshold c: nearly c / n for
    n >> gamma, and c / gamma as n -> 0. NSGD is the same rule; see `nsgd`.

    Args:
        gamma: the stability constant, > 0.

    Raises:
        ValueError: if `gamma` is not a positive number.

    Privacy:
        Bound c, approached as n grows and never attained. Relation: add or remove one example.
        Event: none of its own; `dpjax.Mechanism` adds noise in proportion to the bound and emits
        one Gaussian per step. Not protected: anything, without that noise.

    Example:
        >>> import jax.numpy as jnp
        >>> auto_s(gamma=0.5).weight(jnp.array([0.0, 0.5, 1.5]), 1.0).tolist()
        [2.0, 1.0, 0.5]

    Reference: Bu et al., Automatic Clipping: Differentially Private Deep Learning Made Easier and
    Stronger, 2023, equation 4.1 (AUTO-S), https://arxiv.org/abs/2206.07136
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        """Checks gamma."""
        self._set(gamma=_checks.normal("gamma", self.gamma))

    def weight(self, norm: jax.Array, c: chex.Numeric) -> jax.Array:
        """Returns ``c / (norm + gamma)``."""
        return ratio(c, norm + self.gamma)

    def bound(self, c: chex.Numeric) -> chex.Numeric:
        """Returns c."""
        return c


def nsgd(r: float = 0.01) -> auto_s:
    """Returns the rule of DP-NSGD, which is AUTO-S under another name.

    ``weight = c / (n + r)`` for a gradient of norm n and the threshold c.

    Args:
        r: the regularising constant, > 0; the `gamma` of `auto_s`.

    Raises:
        ValueError: if `r` is not a positive number.

    Privacy:
        Bound c, approached and never attained; relation, event and limits are those of `auto_s`.

    Example:
        >>> nsgd(r=0.1)
        auto_s(gamma=0.1)

    Reference: Yang et al., Normalized/Clipped SGD with Perturbation for Differentially Private
    Non-Convex Optimization, 2022, https://arxiv.org/abs/2206.13033
    """
    return auto_s(gamma=_checks.normal("r", r))
