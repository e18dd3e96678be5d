"""Auto DP-SGD's scaling as printed: no bound, so no privacy."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.rules.base import Rule, as_float

__all__ = ["auto_dp_as_printed"]


@dataclass(frozen=True)
class auto_dp_as_printed(Rule):
    """Scales every gradient by the same constant, whatever its length.

    The paper sets the threshold of an example to W times that example's own norm, so that
    ``min(1, W n / n) = W``. It is here to reproduce the paper.

    Args:
        scale: the paper's W, in (0, 1].

    Privacy:
        None. A contribution of length W n has no bound, and the noise that the paper adds follows
        the data's own norms. The accounting refuses it; `dpjax.methods.auto_dp_sgd_sound` keeps
        the paper's noise decay on top of a real bound.

    Example:
        >>> import jax.numpy as jnp
        >>> auto_dp_as_printed(scale=0.5).weight(jnp.array([0.0, 4.0]), 1.0).tolist()
        [0.5, 0.5]

    Reference: Chilukoti et al., Auto DP-SGD, 2023, algorithm 1.
    """

    no_bound: ClassVar[str | None] = (
        "each example is scaled by a constant, so its contribution is as long as its gradient, and "
        "the noise is scaled by the non-private mean norm of the batch; "
        "use dpjax.methods.auto_dp_sgd_sound"
    )

    scale: float = 1.0

    def __post_init__(self) -> None:
        """Checks scale."""
        self._set(scale=_checks.fraction("scale", self.scale, one=True))

    def weight(self, norm: jax.Array, c: Any) -> jax.Array:
        """Returns `scale`, and 0 for a norm that is not finite."""
        return jnp.where(jnp.isfinite(norm), self.scale, 0).astype(as_float(norm).dtype)

    def bound(self, c: Any) -> Any:
        """Refuses: there is none."""
        raise ValueError(f"auto_dp_as_printed has no bound: {self.no_bound}")
