"""Per-sample adaptive scaling clipping (DP-PSASC)."""

from dataclasses import dataclass

import chex
import jax

from dpjax import _checks
from dpjax.rules.rule import Rule, ratio

__all__ = ["psasc"]


@dataclass(frozen=True)
class psasc(Rule):
    """PSAC with a scaling coefficient s: a non-monotonic weight whose bound is c / s.

    ``weight = c / (s n + r / (n + r))`` for a gradient of norm n and the threshold c. When
    s r <= 1 it is largest at ``n = sqrt(r / s) - r``, where it is ``c / (2 sqrt(s r) - s r)``.

    Exactly ``psasc(r, s)(g; c) = psac(s r)(s g; c / s)``, so s amounts to a scaling of the loss.
    The paper says that s < 1 favours small gradients. Relative to the noise, which grows with the
    bound c / s, it gives them *less* weight: the weight over the bound tends to s as n -> 0.

    Args:
        r: sets, with `s`, where the weight is largest, > 0.
        s: the scaling coefficient, in (0, 1]; 1 is PSAC.

    Raises:
        ValueError: if `r` is not a positive number, or `s` lies outside (0, 1].

    Privacy:
        Bound c / s, approached as n grows and never attained, so the noise has standard deviation
        sigma c / s. Relation: add or remove one example. Event: none of its own; `dpjax.Mechanism`
        adds noise in proportion to the bound and emits one Gaussian per step. Not protected:
        anything, without that noise.

    Example:
        >>> import jax.numpy as jnp
        >>> rule = psasc(r=0.5, s=0.5)
        >>> rule.weight(jnp.array([0.0, 0.5]), 1.0).tolist(), rule.bound(1.0)
        ([1.0, 1.3333333730697632], 2.0)

    Reference: Huang et al., Enhancing DP-SGD through Non-monotonous Adaptive Scaling Gradient
    Weight, 2024, equation 6, https://arxiv.org/abs/2411.03059
    """

    r: float = 0.01
    s: float = 0.9

    def __post_init__(self) -> None:
        """Checks r and s."""
        self._set(
            r=_checks.normal("r", self.r),
            s=_checks.fraction("s", self.s, one=True),
        )

    def weight(self, norm: jax.Array, c: chex.Numeric) -> jax.Array:
        """Returns ``c / (s norm + r / (norm + r))``."""
        return ratio(c, self.s * norm + self.r / (norm + self.r))

    def bound(self, c: chex.Numeric) -> chex.Numeric:
        """Returns ``c / s``."""
        return c / self.s
