"""Rows over several devices: inside `shard_map`, under plain `jit` on a mesh, and their sums."""

from dpjax.devices.shard_map import (
    refuse_other_than_one_sum,
    varying,
    varying_axes,
    varying_zero,
)
from dpjax.devices.spmd import (
    WHOLE,
    Shards,
    as_automatic,
    as_explicit,
    automatic_axes,
    explicit_mesh,
    leading_axes,
    leading_axis,
    mesh_of,
)
from dpjax.devices.sums import Limits, grid_sum, limb_sum, off_grid, one_limb

__all__ = [
    "WHOLE",
    "Limits",
    "Shards",
    "as_automatic",
    "as_explicit",
    "automatic_axes",
    "explicit_mesh",
    "grid_sum",
    "leading_axes",
    "leading_axis",
    "limb_sum",
    "mesh_of",
    "off_grid",
    "one_limb",
    "refuse_other_than_one_sum",
    "varying",
    "varying_axes",
    "varying_zero",
]
