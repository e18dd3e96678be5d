"""Global clipping that shortens long gradients instead of dropping them (Global-Adapt)."""

from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.rules.rule import Rule, ratio

__all__ = ["global_adapt"]


@dataclass(frozen=True)
class global_adapt(Rule):
    """Scales gradients shorter than z by one factor, and shortens longer ones to length `scale`.

    ``weight = scale * min(1 / z, 1 / n)`` for a gradient of norm n. The threshold c *is* z here: it
    adapts by `dpjax.thresholds.global_z`, or is a number or a schedule.

    Args:
        scale: the length of the longest contribution, > 0.

    Raises:
        ValueError: if `scale` is not a positive number.

    Privacy:
        Bound `scale`, whatever z is, attained for every n >= z; over G groups, sqrt(G) times
        `scale`. Relation: add or remove one example. Event: none of its own; `dpjax.Mechanism` adds
        noise in proportion to the bound and emits one Gaussian per step. Not protected: anything,
        without that noise.

    Example:
        >>> import jax.numpy as jnp
        >>> rule = global_adapt(scale=0.5)
        >>> rule.weight(jnp.array([0.0, 2.0, 4.0]), 2.0).tolist(), rule.bound(2.0)
        ([0.25, 0.25, 0.125], 0.5)

    Reference: Esipova et al., Disparate Impact in Differential Privacy from Gradient Misalignment,
    2023, algorithm 1, https://arxiv.org/abs/2206.07737
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        """Checks scale."""
        self._set(scale=_checks.normal("scale", self.scale))

    def weight(self, norm: jax.Array, c: chex.Numeric) -> jax.Array:
        """Returns ``scale / max(c, norm)``."""
        return ratio(self.scale, jnp.maximum(norm, c))

    def bound(self, c: chex.Numeric) -> chex.Numeric:
        """Returns `scale`."""
        return jnp.full_like(c, self.scale) if isinstance(c, jax.Array) else self.scale
