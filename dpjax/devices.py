"""One sum over the devices under one noise, and the refusal of anything else."""

from typing import Any

import jax

__all__ = ["summed_over_devices"]


def summed_over_devices(total: Any, axis_name: Any, key: jax.Array) -> Any:
    """Sums `total` over the mesh axes, and refuses what would not be one sum under one noise.

    JAX's own types say what differs by device. A total that still differs after the sum, while the
    noise key does not, would put the same noise on different signals; a total that does not differ
    over an axis would be counted once per device. With ``check_vma=False`` the types say nothing.
    """
    axes = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name or ())
    found = frozenset().union(*(_varying_axes(leaf) for leaf in jax.tree.leaves(total)))
    for axis in sorted(found - set(axes) - _varying_axes(key)):
        raise ValueError(
            f"the rows differ over mesh axis {axis!r} and the noise would not: expected "
            f"axis_name = {axis!r}, or a key of its own for each device"
        )
    for axis in axes:
        if axis not in found and axis in _varying_axes(jax.lax.axis_index(axis)):
            raise ValueError(
                f"axis_name = {axis!r}: the rows are the same on all its devices, and each would "
                "be counted once per device; expected rows that are split over it"
            )
    return jax.lax.psum(total, axes) if axes else total


def _varying_axes(value: Any) -> frozenset[str]:
    kind = jax.typeof(value)
    if hasattr(kind, "vma"):  # the name up to jax 0.9
        return kind.vma
    return kind.manual_axis_type.varying
