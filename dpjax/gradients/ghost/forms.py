"""Gradients formed, one example or all: where that costs less than inner products, or must be."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.blocks import Block
from dpjax.gradients.ghost.nodes import Memo, Node
from dpjax.gradients.ghost.sites import Given, Site, wide
from dpjax.gradients.norms import accumulation_dtype

__all__ = ["Former", "by_leaf", "former"]

Former = Callable[[Sequence[Given]], list[jax.Array]]


def former(block: Block, leaves: Sequence[jax.Array]) -> Former:
    """Returns the function from one example's `given`, for each site, to its gradients.

    They are those by the leaves of the block; by the site's node if the block is direct.
    """
    memo = Memo(leaves)
    values = [_values(memo, site) for site in block.sites]
    if block.direct:
        return lambda given: [block.sites[0].gradient(given[0], values[0])]
    pulls = [_pull_to_leaves(site.node, leaves) for site in block.sites]

    def gradients(given: Sequence[Given]) -> list[jax.Array]:
        total = [jnp.zeros(leaves[i].shape, accumulation_dtype(leaves[i])) for i in block.leaves]
        for site, own, value, pull in zip(block.sites, given, values, pulls, strict=True):
            parts = pull(site.gradient(own, value))
            total = [
                t + parts[i] if i in parts else t for i, t in zip(block.leaves, total, strict=True)
            ]
        return total

    return gradients


def _values(memo: Memo, site: Site) -> list[Any]:
    """Returns the values of all nodes at a site's meeting, if the gradient depends on them."""
    return (
        [] if site.product is not None else [memo.stacked(n) for n in site.meeting.nodes.values()]
    )


def _pull_to_leaves(
    node: Node, leaves: Sequence[jax.Array]
) -> Callable[[jax.Array], Mapping[int, jax.Array]]:
    """Returns the derivative of a node by its leaves, transposed."""
    mine = sorted(node.leaves)

    def value(*own: jax.Array) -> jax.Array:
        known = list(leaves)
        for i, each in zip(mine, own, strict=True):
            known[i] = each
        return Memo(known).stacked(node)

    primal, pull = jax.vjp(value, *(leaves[i] for i in mine))
    return lambda g: {i: wide(x) for i, x in zip(mine, pull(g.astype(primal.dtype)), strict=True)}


def by_leaf(node: Node, gradient: jax.Array, leaf: jax.Array) -> jax.Array:
    """Returns a gradient by a node that rearranges one leaf as one by that leaf."""
    (index,) = node.leaves
    dtype = gradient.dtype

    def value(own: jax.Array) -> jax.Array:
        return Memo({index: own}, wide=dtype).stacked(node)

    return jax.vjp(value, leaf.astype(dtype))[1](gradient)[0]
