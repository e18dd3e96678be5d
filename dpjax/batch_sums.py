"""The clipped sum over part of a logical batch: what parts and devices add up before the noise."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients import BatchSums
from dpjax.gradients.twofloat import TwoFloat, added

__all__ = ["ClippedSum"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClippedSum:
    """Part of a logical batch, scaled and summed but not yet noised; private. Parts add with +.

    Sums are carried in two floats: `gradient` and `statistic` are rounded to float32, and the low
    halves are what that rounding left out.

    Attributes:
        gradient: ``sum_i w_i g_i``.
        statistic: ``sum_i s_i``, (m,); (0,) without a statistic.
        gradient_low: the low half of `gradient`.
        statistic_low: the low half of `statistic`.
        positions: the number of rows there was room for, padding included; public.
        rerounding: how far one more example can move `gradient` by rounding the others anew, in
            units of the bound; public.
    """

    gradient: Any
    statistic: jax.Array
    gradient_low: Any
    statistic_low: jax.Array
    positions: jax.Array
    rerounding: jax.Array

    @classmethod
    def of(cls, sums: BatchSums) -> "ClippedSum":
        """Returns a part from what its gradients were aggregated to."""
        return cls(
            sums.gradient.hi,
            sums.statistic.hi,
            sums.gradient.lo,
            sums.statistic.lo,
            jnp.asarray(sums.positions, jnp.int32),
            jnp.asarray(sums.rerounding, jnp.float32),
        )

    @property
    def sums(self) -> TwoFloat:
        """Gradient and statistic, each in two floats."""
        return TwoFloat((self.gradient, self.statistic), (self.gradient_low, self.statistic_low))

    def __add__(self, other: "ClippedSum") -> "ClippedSum":
        """Returns the sum over both parts."""
        (gradient, statistic), (gradient_low, statistic_low) = added(self.sums, other.sums)
        return ClippedSum(
            gradient,
            statistic,
            gradient_low,
            statistic_low,
            self.positions + other.positions,
            jnp.hypot(self.rerounding, other.rerounding),  # errors of rounding are independent
        )
