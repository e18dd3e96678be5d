"""Leaves that must be looked at together, and how the norm of each is computed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpjax.gradients.ghost.analysis import Program
from dpjax.gradients.ghost.cost import lookup_costs, site_costs, vmap_cost
from dpjax.gradients.ghost.embeddings import is_lookup
from dpjax.gradients.ghost.sites import Site, sites_of

__all__ = ["Block", "blocks_of"]


@dataclass(frozen=True, eq=False)
class Block:
    """Some leaves, and all sites that any of them flows into.

    Attributes:
        leaves: their indices.
        sites: where they meet data.
        method: "gram", from inner products; "rows", from the rows that were looked up; "form", by
            forming the gradient.
        direct: whether the site's own gradient has the leaf's norm: one leaf that is only
            rearranged before its one site.
        cost: estimated, for one example.
        vmap: the estimated cost through vmap.
        why: how it came to the method.
    """

    leaves: tuple[int, ...]
    sites: tuple[Site, ...]
    method: str
    direct: bool
    cost: float
    vmap: float
    why: str


def blocks_of(program: Program) -> list[Block]:
    """Returns the blocks of a program; a leaf that meets no data is in none."""
    sites = sites_of(program.meetings)
    return [_block(leaves, mine) for leaves, mine in _components(sites)]


def _components(sites: Sequence[Site]) -> list[tuple[tuple[int, ...], tuple[Site, ...]]]:
    """Returns the sets of leaves that are linked by sites, each with its sites."""
    found: list[tuple[set[int], list[Site]]] = []
    for site in sites:
        linked = [part for part in found if part[0] & site.node.leaves]
        found = [part for part in found if part not in linked]
        leaves = set(site.node.leaves).union(*(part[0] for part in linked))
        found.append((leaves, [each for part in linked for each in part[1]] + [site]))
    return [(tuple(sorted(leaves)), tuple(mine)) for leaves, mine in found]


def _block(leaves: tuple[int, ...], sites: tuple[Site, ...]) -> Block:
    direct = len(leaves) == len(sites) == 1 and sites[0].node.preserves
    form, vmap = (sum(costs) for costs in zip(*map(_forming, sites), strict=True))
    if not direct:
        return Block(leaves, sites, "form", False, form, vmap, _why_not_direct(leaves, sites))
    (site,) = sites
    if is_lookup(site.meeting) and (rows := lookup_costs(site).without) < form:
        return Block(leaves, sites, "rows", True, rows, vmap, "only rows that were looked up")
    if site.product is None:
        return Block(leaves, sites, "form", True, form, vmap, "no larger than the data it meets")
    if (gram := site_costs(site).without) < form:
        return Block(leaves, sites, "gram", True, gram, vmap, "inner products cost less")
    return Block(leaves, sites, "form", True, form, vmap, "forming it costs less")


def _forming(site: Site) -> tuple[float, float]:
    """Returns what forming a site's gradient costs, and through vmap."""
    if site.product is not None:
        return site_costs(site).form, vmap_cost(site)
    entries = float(math.prod(site.node.shape))
    table = lookup_costs(site).form if is_lookup(site.meeting) else entries
    return table, table


def _why_not_direct(leaves: tuple[int, ...], sites: tuple[Site, ...]) -> str:
    if len(leaves) > 1:
        return f"{len(leaves)} leaves meet data together"
    if len(sites) > 1:
        return f"{len(sites)} meeting points, their gradients added"
    return "computed with before it meets data"
