"""Gradients formed, one example or all: where that costs less than inner products, or must be."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from dpjax.gradients.ghost.blocks import Block
from dpjax.gradients.ghost.nodes import Memo, Node
from dpjax.gradients.ghost.sites import Given, Site, wide

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
    pull = _pull_to_leaves(block, leaves)

    def gradients(given: Sequence[Given]) -> list[jax.Array]:
        found: dict[Node, jax.Array] = {}
        for site, own, value in zip(block.sites, given, values, strict=True):
            part = site.gradient(own, value)
            found[site.node] = found[site.node] + part if site.node in found else part
        return pull(found)

    return gradients


def _values(memo: Memo, site: Site) -> list[Any]:
    """Returns the values of all nodes at a site's meeting, if the gradient depends on them."""
    return (
        [] if site.product is not None else [memo.stacked(n) for n in site.meeting.nodes.values()]
    )


def _pull_to_leaves(
    block: Block, leaves: Sequence[jax.Array]
) -> Callable[[Mapping[Node, jax.Array]], list[jax.Array]]:
    """Returns the function from gradients by the sites' nodes to those by the block's leaves.

    The derivative of all nodes is taken at once: what came back to a value from all sites is added
    up before it goes on. A derivative that is not linear needs the sum.
    """
    nodes = dict.fromkeys(site.node for site in block.sites)
    rearranged = [node for node in nodes if node.preserves]
    computed = [node for node in nodes if not node.preserves]

    def value(*own: jax.Array) -> list[jax.Array]:
        memo = Memo(dict(zip(block.leaves, own, strict=True)))
        return [memo.stacked(node) for node in computed]

    primals, pulled = jax.vjp(value, *(leaves[i] for i in block.leaves))

    def pull(found: Mapping[Node, jax.Array]) -> list[jax.Array]:
        cotangents = [found[n].astype(x.dtype) for n, x in zip(computed, primals, strict=True)]
        total = dict(zip(block.leaves, map(wide, pulled(cotangents)), strict=True))
        for node in rearranged:
            (i,) = node.leaves
            total[i] = total[i] + by_leaf(node, found[node], leaves[i])
        return list(total.values())

    return pull


def by_leaf(node: Node, gradient: jax.Array, leaf: jax.Array) -> jax.Array:
    """Returns a gradient by a node that rearranges one leaf as one by that leaf."""
    (index,) = node.leaves
    dtype = gradient.dtype

    def value(own: jax.Array) -> jax.Array:
        return Memo({index: own}, wide=dtype).stacked(node)

    return jax.vjp(value, leaf.astype(dtype))[1](gradient)[0]
