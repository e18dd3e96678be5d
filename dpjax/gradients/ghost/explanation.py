"""How the ghost engine treats a loss: each leaf's method, its cost, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from dpjax.gradients.ghost.analysis import analysed
from dpjax.gradients.ghost.blocks import Block, blocks_of
from dpjax.gradients.groups import leaf_paths

__all__ = ["Explanation", "LeafExplanation", "cheaper_engine", "explain"]


@dataclass(frozen=True)
class LeafExplanation:
    """How the norm of one leaf is computed.

    Attributes:
        path: the leaf's, its keys joined by "/".
        meets: the equations in which it meets data, as "scan/dot_general" inside a loop.
        method: "gram" (inner products of its factors), "rows" (those that were looked up), "form"
            (its gradient, from its own equation), "chain" (the same, through the parameter-only
            equations before it, or as a sum over several meeting points), or "none" (it meets no
            data: its gradient is zero).
        fallback: whether an equation without a formula of its own was differentiated as a whole,
            example by example.
        cost: of the norm and the weighted sum, in millions of multiply-adds for one example.
        vmap: the same through the vmap engine.
        why: how it came to this.
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
    """What `explain` returns; printed, a table.

    Attributes:
        leaves: one row for each leaf of the parameters.
        auto: the engine that ``engine="auto"`` takes.
    """

    leaves: tuple[LeafExplanation, ...]
    auto: str

    @property
    def fallbacks(self) -> tuple[LeafExplanation, ...]:
        """The leaves whose gradient is that of an equation without a formula."""
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
            f"cost in millions of multiply-adds: ghost {total[0]:.3g}, vmap {total[1]:.3g}; "
            f"'auto' takes {self.auto}"
        )
        return "\n".join(lines)


def explain(loss_fn: Callable[..., jax.Array], params: Any, *example: Any) -> Explanation:
    """Says how the ghost engine would compute the norms of a loss's gradients.

    Args:
        loss_fn: ``loss_fn(params, example) -> scalar``, the loss of ONE example.
        params: the parameters, or their shapes.
        *example: one example, and a key if the loss takes one; or their shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> def loss(params, x):
        ...     return jnp.sum(jnp.tanh(x @ params["kernel"] + params["bias"]))
        >>> params = {"kernel": jnp.zeros((300, 100)), "bias": jnp.zeros(100)}
        >>> print(explain(loss, params, jnp.zeros(300)))
        leaf    meets data in  norm by  cost    vmap    why
        bias    add            form     0.0001  0.0001  no larger than the data it meets
        kernel  dot_general    gram     0.03    1.47    inner products cost less
        cost in millions of multiply-adds: ghost 0.0301, vmap 1.47; 'auto' takes ghost
    """
    program = analysed(loss_fn, params, *example)
    blocks = blocks_of(program)
    found = {leaf: block for block in blocks for leaf in block.leaves}
    leaves = tuple(_leaf(path, found.get(i), i) for i, path in enumerate(leaf_paths(params)))
    return Explanation(leaves, cheaper_engine(blocks))


def cheaper_engine(blocks: list[Block]) -> str:
    """Returns "ghost" if it is estimated to cost less than "vmap", else that."""
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
