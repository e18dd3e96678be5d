"""Rows looked up in a table: which positions of an example share a row."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.analysis import Meeting
from dpjax.gradients.ghost.sites import Given, Site, wide
from dpjax.gradients.jaxprs import is_float

__all__ = ["is_lookup", "lookup_sizes", "shared_rows"]


def is_lookup(meeting: Meeting) -> bool:
    """Says whether a meeting gathers whole rows of a parameter by one index each."""
    if meeting.name != "gather" or list(meeting.nodes) != [0] or not is_float(meeting.avals[0]):
        return False
    numbers, shape = meeting.eqn.params["dimension_numbers"], meeting.nodes[0].aval.shape
    if len(numbers.start_index_map) != 1 or numbers.operand_batching_dims:
        return False
    (axis,) = numbers.start_index_map
    whole = tuple(1 if i == axis else n for i, n in enumerate(shape))
    sizes = tuple(meeting.eqn.params["slice_sizes"])
    return tuple(numbers.collapsed_slice_dims) == (axis,) and sizes == whole


def lookup_sizes(site: Site) -> tuple[int, int, int, int]:
    """Returns (G, T, rows of the table, entries of a row) over all turns of its loops."""
    (axis,) = site.meeting.eqn.params["dimension_numbers"].start_index_map
    shape = site.node.aval.shape
    entries = math.prod(shape) // max(1, shape[axis])
    positions = math.prod(site.meeting.avals[0].shape) // max(1, entries)
    g, t = 1, positions
    for loop in site.meeting.loops:
        g, t = (g * loop.length, t) if loop in site.node.loops else (g, t * loop.length)
    return g, t, shape[axis], entries


def shared_rows(site: Site, given: Given) -> tuple[jax.Array, jax.Array]:
    """Returns (G, T, T), 1 where two positions look up the same row, and the cotangents (G, T, C).

    A position whose index is outside the table adds nothing, unless the lookup clips indices.
    """
    meeting = site.meeting
    parameters = meeting.eqn.params
    (axis,) = parameters["dimension_numbers"].start_index_map
    rows = site.node.aval.shape[axis]

    def one(indices: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        offsets: Sequence[int] = parameters["dimension_numbers"].offset_dims
        order = [i for i in range(cotangent.ndim) if i not in offsets]
        entries = jnp.transpose(cotangent, (*order, *offsets))
        return indices.reshape(-1), entries.reshape(indices.size, -1)

    of: Any = one
    for _ in meeting.loops:
        of = jax.vmap(of)
    index, b = of(given.kept[0], wide(given.cotangents[0]))
    g, t, _, entries = lookup_sizes(site)
    blocks = [i for i, loop in enumerate(meeting.loops) if loop in site.node.loops]
    turns = [i for i, loop in enumerate(meeting.loops) if loop not in site.node.loops]
    n = len(meeting.loops)
    index = jnp.transpose(index, (*blocks, *turns, n)).reshape(g, t)
    b = jnp.transpose(b, (*blocks, *turns, n, n + 1)).reshape(g, t, entries)
    if parameters["mode"] == jax.lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, rows - 1)
    inside = (index >= 0) & (index < rows)
    same = (index[:, :, None] == index[:, None, :]) & inside[:, :, None]
    return same.astype(b.dtype), b
