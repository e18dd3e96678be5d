"""Rows looked up in a table: only those have a gradient."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.analysis import Meeting
from dpjax.gradients.ghost.sites import Given, Site, wide
from dpjax.gradients.jaxprs import is_float
from dpjax.gradients.norms import norms_of

__all__ = ["is_lookup", "lookup_norms", "lookup_sizes"]


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
        sums, count = jax.vmap(_distinct)(index, b)
        lengths = jnp.linalg.norm(b, axis=-1)
        off = jnp.finfo(b.dtype).eps / 2 * jnp.sum(jnp.maximum(count - 1, 0) * lengths)
        return norms_of([sums])[0] + off

    return jax.vmap(one)(given)


def _rows(site: Site, given: Given) -> tuple[jax.Array, jax.Array]:
    """Returns the row at each position, (G, T), and its cotangent, (G, T, C).

    A position outside the table adds nothing, unless the lookup clips indices: its cotangent is 0.
    """
    meeting = site.meeting
    parameters = meeting.eqn.params
    (axis,) = parameters["dimension_numbers"].start_index_map
    rows = site.node.aval.shape[axis]

    def one(indices: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        offsets: Sequence[int] = parameters["dimension_numbers"].offset_dims
        order = [i for i in range(cotangent.ndim) if i not in offsets]
        entries = jnp.transpose(cotangent, (*order, *offsets))
        return indices.reshape(1, -1), entries.reshape(1, indices.size, -1)

    of: Any = one
    for _ in meeting.loops:
        of = jax.vmap(of)
    index, b = of(given.kept[0], wide(given.cotangents[0]))
    index, b = site.merged(index, "gt"), site.merged(b, "gtc")
    if parameters["mode"] == jax.lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, rows - 1)
    inside = (index >= 0) & (index < rows)
    return index, jnp.where(inside[..., None], b, 0)


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
