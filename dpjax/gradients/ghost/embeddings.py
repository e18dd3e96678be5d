"""Rows looked up in a table: only those have a gradient."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.analysis import Meeting
from dpjax.gradients.ghost.sites import Given, Site, wide
from dpjax.gradients.jaxprs import is_float
from dpjax.gradients.norms import norms_of, power_of_two

__all__ = ["is_lookup", "lookup_norms", "lookup_sizes"]


def is_lookup(meeting: Meeting) -> bool:
    """Says whether a meeting takes whole rows of a parameter by one index each."""
    if list(meeting.nodes) != [0] or not is_float(meeting.avals[0]):
        return False
    axis = _axis(meeting)
    if axis is None:
        return False
    shape, sizes = meeting.nodes[0].aval.shape, tuple(meeting.eqn.params["slice_sizes"])
    return sizes == tuple(1 if i == axis else n for i, n in enumerate(shape))


def _axis(meeting: Meeting) -> int | None:
    """Returns the axis of the table that is indexed, if it is one."""
    if meeting.name == "gather":
        numbers = meeting.eqn.params["dimension_numbers"]
        indexed = tuple(numbers.start_index_map)
        one = len(indexed) == 1 and tuple(numbers.collapsed_slice_dims) == indexed
        return indexed[0] if one and not numbers.operand_batching_dims else None
    if meeting.name == "dynamic_slice":
        pairs = zip(meeting.nodes[0].aval.shape, meeting.eqn.params["slice_sizes"], strict=True)
        cut = [i for i, (whole, size) in enumerate(pairs) if whole != size]
        return cut[0] if len(cut) == 1 else None
    return None


def lookup_sizes(site: Site) -> tuple[int, int]:
    """Returns how many numbers one example looks up, and how many are in the table."""
    return math.prod(site.meeting.turns) * math.prod(site.meeting.avals[0].shape), math.prod(
        site.node.shape
    )


def lookup_norms(site: Site, given: Given) -> jax.Array:
    """Returns (N,) norms of the gradients by a table, from the rows that were looked up.

    The gradient's row r is the sum of the cotangents at the positions that look r up. There are at
    most as many such rows as positions; they are all that is formed.

    The weighted sum adds them up in another order: ``eps / 2 sum_t (m_t - 1) |b_t|`` is added, with
    m_t the number of positions that share the row of position t.
    """

    def one(given: Given) -> jax.Array:
        index, b = _rows(site, given)
        scale, exponent = power_of_two(jnp.max(jnp.abs(b), initial=0.0))
        b = b * scale
        sums, count = jax.vmap(_distinct)(index, b)
        lengths = jnp.linalg.norm(b, axis=-1)
        off = jnp.finfo(b.dtype).eps / 2 * jnp.sum(jnp.maximum(count - 1, 0) * lengths)
        return jnp.ldexp(norms_of([sums])[0] + off, exponent)

    return jax.vmap(one)(given)


def _rows(site: Site, given: Given) -> tuple[jax.Array, jax.Array]:
    """Returns the row at each position, (G, T), and its cotangent, (G, T, C).

    A position outside the table adds nothing, unless the lookup clips indices: its cotangent is 0.
    """
    meeting = site.meeting
    axis = _axis(meeting) or 0
    rows = site.node.aval.shape[axis]
    entries = math.prod(site.node.aval.shape) // max(1, rows)
    of: Any = partial(_gathered, meeting) if meeting.name == "gather" else _sliced
    for _ in meeting.loops:
        of = jax.vmap(of)
    indices = given.kept[0 if meeting.name == "gather" else axis]
    index, b = of(indices, wide(given.cotangents[0]))
    index, b = site.merged(index, "gt"), site.merged(b, "gtc")
    if jnp.iinfo(index.dtype).bits < 32:
        index = index.astype(jnp.int32)  # a narrow dtype could not hold the number of rows
    if meeting.name != "gather" or meeting.eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, rows - 1)
    inside = (index >= 0) & (index < rows)
    return index, jnp.where(inside[..., None], b, 0).reshape(*index.shape, entries)


def _gathered(
    meeting: Meeting, indices: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    offsets = meeting.eqn.params["dimension_numbers"].offset_dims
    order = [i for i in range(cotangent.ndim) if i not in offsets]
    entries = math.prod(cotangent.shape[i] for i in offsets)
    rows = jnp.transpose(cotangent, (*order, *offsets))
    return indices.reshape(1, -1), rows.reshape(1, indices.size, entries)


def _sliced(index: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    return index.reshape(1, 1), cotangent.reshape(1, 1, cotangent.size)


def _distinct(index: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the sums of `b` over equal indices, in T places of which some stay zero.

    And, for each position, how many share its index.
    """
    order = jnp.argsort(index)
    ordered = index[order]
    is_new = jnp.concatenate([jnp.ones_like(ordered[:1], bool), ordered[1:] != ordered[:-1]])
    place = jnp.cumsum(is_new) - 1
    sums = jnp.zeros_like(b).at[place].add(b[order])
    count = jnp.zeros(index.shape, jnp.int32).at[place].add(1)
    return sums, jnp.zeros_like(count).at[order].set(count[place])
