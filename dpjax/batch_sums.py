"""The clipped sum over part of a batch; parts and devices are added before the noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import chex
import jax
import jax.numpy as jnp

from dpjax.devices import Limits, limb_sum, off_grid, refuse_other_than_one_sum, varying_axes
from dpjax.gradients import BatchSums
from dpjax.sampling import Sampling
from dpjax.twofloat import TwoFloat, added

__all__ = ["ClippedSum", "summed_over_devices"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        "gradient",
        "statistic",
        "gradient_low",
        "statistic_low",
        "positions",
        "rerounding",
    ),
    meta_fields=("sampling",),
)
@dataclass(frozen=True)
class ClippedSum:
    """Clipped, summed gradients of part of a batch before noise; private. Parts add with +.

    Sums are held as two floats: `gradient` and `statistic` are the sums rounded to float32, and the
    low halves are the rounding errors.

    Attributes:
        gradient: ``sum_i w_i g_i``.
        statistic: ``sum_i s_i``, (m,); (0,) without a statistic.
        gradient_low: the low half of `gradient`.
        statistic_low: the low half of `statistic`.
        positions: the number of rows including padding; of several parts, the sum.
        rerounding: how far one more example can move the gradient of the whole batch by changing
            how the others are rounded, in units of the bound. Public: of a drawn batch it depends
            on the sampling and the shape of a part, not on how many parts there turned out to be.
        sampling: the sampling that drew the batch; None if unknown.
    """

    gradient: chex.ArrayTree
    statistic: jax.Array
    gradient_low: chex.ArrayTree
    statistic_low: jax.Array
    positions: jax.Array
    rerounding: jax.Array
    sampling: Sampling | None = None

    @classmethod
    def of(cls, sums: BatchSums, sampling: Sampling | None = None) -> "ClippedSum":
        """Returns the part with these sums.

        Args:
            sums: what `PerExampleGrads.aggregate` returned.
            sampling: the sampling that drew the batch; None if unknown.
        """
        return cls(
            sums.gradient.hi,
            sums.statistic.hi,
            sums.gradient.lo,
            sums.statistic.lo,
            jnp.asarray(sums.positions, jnp.int32),
            jnp.asarray(sums.rerounding, jnp.float32),
            sampling,
        )

    @property
    def sums(self) -> TwoFloat:
        """Gradient and statistic, each in two floats."""
        return TwoFloat((self.gradient, self.statistic), (self.gradient_low, self.statistic_low))

    def __add__(self, other: "ClippedSum") -> "ClippedSum":
        """Returns the sum over both parts; both must come from the same sampling."""
        if self.sampling != other.sampling:
            raise ValueError(
                f"a part drawn by {self.sampling} with one drawn by {other.sampling}: expected "
                "parts of one batch"
            )
        (gradient, statistic), (gradient_low, statistic_low) = added(self.sums, other.sums)
        if self.sampling is None:  # each part knows only of itself
            rerounding = self.rerounding + other.rerounding
        else:  # each is the figure for the whole batch
            rerounding = jnp.maximum(self.rerounding, other.rerounding)
        return ClippedSum(
            gradient,
            statistic,
            gradient_low,
            statistic_low,
            self.positions + other.positions,
            rerounding,
            self.sampling,
        )


def summed_over_devices(
    total: ClippedSum, axis_name: str | Sequence[str] | None, key: jax.Array, limits: Limits
) -> ClippedSum:
    """Sums `total` over the mesh axes; raises if the noise would not cover a single sum.

    In a float32 sum over devices, changing one part changes the rounding of all. The parts are
    rounded to a public grid instead and added as integers, which is exact in any order.

    Args:
        total: this device's part.
        axis_name: the mesh axes to sum over, or None.
        key: the noise key.
        limits: the limits that define the grid.
    """
    axes = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name or ())
    refuse_other_than_one_sum(total, axes, key)
    if not axes:
        return total
    positions, rerounding = total.positions, total.rerounding
    if set(axes) & (varying_axes(positions) | varying_axes(rerounding)):
        # They depend on shapes only and are the same everywhere, but their types do not show it.
        positions, rerounding = jax.lax.pmax((positions, rerounding), axes)
    devices = math.prod(jax.lax.axis_size(axis) for axis in axes)
    if total.sampling is None:
        rows = positions.astype(jnp.float32) * devices
        rerounding *= math.sqrt(devices)  # errors on different devices are independent
    else:  # whatever number of parts there turned out to be
        dataset_size = total.sampling.dataset_size or 0  # known, since it drew the batch
        rows = jnp.float32(total.sampling.most_rows(dataset_size))
    limit_of = (jax.tree.map(lambda _: limits.gradient, total.gradient), limits.statistic)
    sums = limb_sum(total.sums, jax.tree.map(lambda x: rows * x, limit_of), devices, axes)
    (gradient, statistic), (gradient_low, statistic_low) = sums
    coordinates = sum(leaf.size for leaf in jax.tree.leaves(gradient))
    return ClippedSum(
        gradient,
        statistic,
        gradient_low,
        statistic_low,
        positions * devices,
        rerounding + rows * off_grid(coordinates, devices),
        total.sampling,
    )
