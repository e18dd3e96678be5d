"""The plan: which leaves belong together, how each one's norm is computed, and at what cost.

Costs are estimated for one example, in multiply-adds of a matrix product; writing a number to
memory and reading it again counts as many multiply-adds. The estimates were fitted to timings of
single layers on a CPU: see scripts/bench_costs.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import chex

from dpjax.gradients.ghost.contractions import Site, is_lookup, lookup_sizes, sites_of
from dpjax.gradients.ghost.trace import TracedLoss, analysed
from dpjax.gradients.groups import leaf_paths

__all__ = [
    "Block",
    "Cost",
    "Explanation",
    "LeafExplanation",
    "blocks_of",
    "cheaper_engine",
    "explain",
    "lookup_costs",
    "site_costs",
]

# A gradient entry kept for the weighted sum: written once, read for the norm and for the sum.
_KEPT = 48.0
# The same for entries that no longer fit in a core's cache.
_SPILLED, _CACHE = 144.0, 2.0**16
# An entry of the T x T inner products, on top of the K + C terms that it sums.
_ENTRY = 400.0
# A number that was looked up: added to the others of the same row.
_SORTED = 200.0
# An entry of an image window: copied there, and read.
_COPIED = 16.0
# The overhead of one product per example, as vmap computes it, over one product of all examples.
_VMAP_CONVOLUTION = 3.0


@dataclass(frozen=True, eq=False)
class Block:
    """Some leaves, and all sites that any of them flows into.

    Attributes:
        leaves: their indices.
        sites: where they meet data.
        method: "gram", from inner products; "rows", from the rows that were looked up; "form", by
            forming the gradient.
        direct: whether the site's own gradient has the leaf's norm: true for one leaf that is only
            rearranged before its one site.
        cost: the estimated cost for one example.
        vmap: the estimated cost with the vmap engine.
        why: the reason for the method.
    """

    leaves: tuple[int, ...]
    sites: tuple[Site, ...]
    method: str
    direct: bool
    cost: float
    vmap: float
    why: str


def blocks_of(program: TracedLoss) -> list[Block]:
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
    """Returns the costs of forming a site's gradient, here and with vmap."""
    if site.product is not None:
        return site_costs(site).form, _vmap_cost(site)
    entries = float(math.prod(site.node.shape))
    table = lookup_costs(site).form if is_lookup(site.meeting) else entries
    return table, table


def _why_not_direct(leaves: tuple[int, ...], sites: tuple[Site, ...]) -> str:
    if len(leaves) > 1:
        return f"{len(leaves)} leaves meet data together"
    if len(sites) > 1:
        return f"{len(sites)} meeting points, their gradients added"
    return "computed with before it meets data"


class Cost(NamedTuple):
    """The costs without forming the gradient, ordinary weighted sum included, and with forming."""

    without: float
    form: float


def site_costs(site: Site) -> Cost:
    """Returns the costs of a contraction."""
    g, t, k, c = site.sizes
    product = site.product
    windows = 0.0 if product is None or product.copies <= 1 else _COPIED * g * t * k
    inner = 0.0 if t == 1 else g * t * t * (k + c + _ENTRY)
    return Cost(windows + inner + g * t * k * c, windows + g * t * k * c + _kept(g * k * c))


def lookup_costs(site: Site) -> Cost:
    """Returns the costs of a lookup of rows: of the rows looked up, and of the whole table."""
    looked_up, table = lookup_sizes(site)
    return Cost((_KEPT + _SORTED) * looked_up, _kept(table))


def _vmap_cost(site: Site) -> float:
    """Returns the cost of forming and keeping the gradient of a contraction with vmap."""
    g, t, k, c = site.sizes
    slower = _VMAP_CONVOLUTION if site.meeting.name == "conv_general_dilated" else 1.0
    return slower * g * t * k * c + _kept(g * k * c)


def _kept(entries: float) -> float:
    return _KEPT * min(entries, _CACHE) + _SPILLED * max(entries - _CACHE, 0)


@dataclass(frozen=True)
class LeafExplanation:
    """How the norm of one leaf is computed.

    Attributes:
        path: the leaf's path, its keys joined by "/".
        meets: the equations in which it meets data, as "scan/dot_general" inside a loop.
        method: "gram" (inner products of its factors), "rows" (those that were looked up), "form"
            (its gradient, from its own equation), "chain" (the same, through the parameter-only
            equations before it, or as a sum over several meeting points), or "none" (it meets no
            data: its gradient is zero).
        fallback: whether an equation without its own formula is differentiated as a whole,
            example by example.
        cost: the cost of norm and weighted sum, in millions of multiply-adds for one example.
        vmap: the same with the vmap engine.
        why: the reason for the method.
    """

    path: str
    meets: tuple[str, ...]
    method: str
    fallback: bool
    cost: float
    vmap: float
    why: str


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`; prints as a table.

    Attributes:
        leaves: one row for each leaf of the parameters.
        auto: the engine that ``engine="auto"`` picks.
    """

    leaves: tuple[LeafExplanation, ...]
    auto: str

    @property
    def fallbacks(self) -> tuple[LeafExplanation, ...]:
        """The leaves whose gradient comes from an equation without a formula."""
        return tuple(leaf for leaf in self.leaves if leaf.fallback)

    def __str__(self) -> str:
        """Returns the table."""
        header = ("leaf", "meets data in", "norm by", "cost", "vmap", "why")
        rows = [
            (
                leaf.path or "(the leaf)",
                ", ".join(leaf.meets) or "-",
                f"{leaf.method}, fallback" if leaf.fallback else leaf.method,
                f"{leaf.cost:.3g}",
                f"{leaf.vmap:.3g}",
                leaf.why,
            )
            for leaf in self.leaves
        ]
        widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (header, *rows)
        ]
        total = sum(leaf.cost for leaf in self.leaves), sum(leaf.vmap for leaf in self.leaves)
        lines.append(
            f"in millions of multiply-adds, on every platform: ghost {total[0]:.3g}, "
            f"vmap {total[1]:.3g}; 'auto' takes {self.auto}"
        )
        return "\n".join(lines)


def explain(
    loss_fn: Callable[..., chex.ArrayTree], params: chex.ArrayTree, *example: chex.ArrayTree
) -> Explanation:
    """Explains how the ghost engine would compute the norms of a loss's gradients.

    Args:
        loss_fn: ``loss_fn(params, example) -> scalar``, the loss of ONE example; it may also return
            ``(scalar, aux)``.
        params: the parameters, or their shapes.
        *example: one example, and a key if the loss takes one; or their shapes.

    Returns:
        The method and cost for each leaf, and the engine that "auto" picks; prints as a table.

    Example:
        >>> import jax.numpy as jnp
        >>> def loss(params, x):
        ...     return jnp.sum(jnp.tanh(x @ params["kernel"] + params["bias"]))
        >>> params = {"kernel": jnp.zeros((300, 100)), "bias": jnp.zeros(100)}
        >>> print(explain(loss, params, jnp.zeros(300)))
        leaf    meets data in  norm by  cost    vmap    why
        bias    add            form     0.0001  0.0001  no larger than the data it meets
        kernel  dot_general    gram     0.03    1.47    inner products cost less
        in millions of multiply-adds, on every platform: ghost 0.0301, vmap 1.47; 'auto' takes ghost
    """
    program = analysed(loss_fn, params, *example)
    blocks = blocks_of(program)
    found = {leaf: block for block in blocks for leaf in block.leaves}
    leaves = tuple(_leaf(path, found.get(i), i) for i, path in enumerate(leaf_paths(params)))
    return Explanation(leaves, cheaper_engine(blocks))


def cheaper_engine(blocks: list[Block]) -> str:
    """Returns "ghost" if it is estimated to cost less than "vmap", else "vmap"."""
    ghost, vmap = sum(block.cost for block in blocks), sum(block.vmap for block in blocks)
    return "ghost" if ghost < vmap else "vmap"


def _leaf(path: str, block: Block | None, index: int) -> LeafExplanation:
    if block is None:
        return LeafExplanation(path, (), "none", False, 0.0, 0.0, "it meets no data")
    mine = [site for site in block.sites if index in site.node.leaves]
    meets = tuple("/".join(["scan"] * len(s.meeting.loops) + [s.meeting.name]) for s in mine)
    share = 1e-6 / len(block.leaves)
    return LeafExplanation(
        path,
        meets,
        block.method if block.direct else "chain",
        any(not site.has_formula for site in mine),
        block.cost * share,
        block.vmap * share,
        block.why,
    )
