"""One parameter operand of one meeting: its gradient for one example, and in sum over all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.analysis import Meeting
from dpjax.gradients.ghost.contractions import Contraction, contraction
from dpjax.gradients.ghost.nodes import Node
from dpjax.gradients.jaxprs import evaluate, is_differentiable
from dpjax.gradients.norms import accumulation_dtype, settled

__all__ = ["HIGHEST", "Given", "Site", "blocks_product", "sites_of", "wide"]

# Equations whose derivative by a parameter is as cheap as they are themselves.
_FORMULAS = (
    *("add", "sub", "mul", "div", "add_any", "gather", "identity"),
    *("concatenate", "select_n", "pad", "dynamic_slice", "dynamic_update_slice"),
)

HIGHEST = jax.lax.Precision.HIGHEST


@dataclass(frozen=True)
class Given:
    """What a backward pass left at a meeting: kept operands and cotangents; a pytree."""

    kept: tuple[jax.Array, ...]
    cotangents: tuple[jax.Array, ...]


jax.tree_util.register_dataclass(Given, ["kept", "cotangents"], [])


@dataclass(frozen=True, eq=False)
class Site:
    """A parameter operand of a meeting.

    Attributes:
        meeting: where.
        position: of the operand.
        node: what the operand is.
        product: the meeting as a contraction, if it is one.
    """

    meeting: Meeting
    position: int
    node: Node
    product: Contraction | None = field(repr=False)

    @property
    def has_formula(self) -> bool:
        """Whether the meeting is one of the equations that networks are made of."""
        return self.product is not None or self.meeting.name in _FORMULAS

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(G, T, K, C) of a contraction, over all turns of its loops."""
        assert self.product is not None
        g, t, k, c = self.product.sizes
        for loop in self.meeting.loops:
            if loop in self.node.loops:
                g *= loop.length
            else:
                t *= loop.length
        return g, t, k, c

    def factors(self, given: Given) -> tuple[jax.Array, jax.Array]:
        """Returns both factors of one example in a dtype for sums; see `layouts`."""
        assert self.product is not None
        (operand,), (cotangent,) = given.kept, given.cotangents
        of = self.product.factors
        for _ in self.meeting.loops:
            of = jax.vmap(of)
        a, b = of(wide(operand), wide(cotangent))
        return self.merged(a, self.layouts[0]), self.merged(b, self.layouts[1])

    @property
    def layouts(self) -> tuple[str, str]:
        """The axes of both factors: g blocks, t positions, k entries of the data, c of the rest."""
        assert self.product is not None
        return self.product.layout, "gtc"

    def merged(self, factor: jax.Array, layout: str) -> jax.Array:
        """Lays turns of loops, in front, beside the blocks or the positions of a layout."""
        loops = self.meeting.loops
        axes: dict[str, list[int]] = {"g": [], "t": []}
        for i, loop in enumerate(loops):
            axes["g" if loop in self.node.loops else "t"].append(i)
        order, shape = [], []
        for i, name in enumerate(layout, len(loops)):
            mine = [*axes.get(name, ()), i]
            order += mine
            shape.append(math.prod(factor.shape[axis] for axis in mine))
        return jnp.transpose(factor, order).reshape(shape)

    def gradient(self, given: Given, values: Sequence[Any]) -> jax.Array:
        """Returns one example's gradient by the node, shaped `node.shape`, in a dtype for sums.

        Args:
            given: what the pass left for this example.
            values: of the meeting's nodes, over all turns of their loops.
        """
        if self.product is None:
            return self._pulled_back(given, values)
        a, b = self.factors(given)
        return self.assembled(blocks_product(f"{self.layouts[0]},gtc->gkc", a, b))

    def assembled(self, blocks: jax.Array) -> jax.Array:
        """Returns the gradient (G, K, C) of a contraction in the shape of the node."""
        assert self.product is not None
        turns = [loop.length for loop in self.node.loops]
        back = self.product.assembled
        for _ in turns:
            back = jax.vmap(back)
        g, _, k, c = self.product.sizes
        return back(blocks.reshape(*turns, g, k, c))

    def _pulled_back(self, given: Given, values: Sequence[Any]) -> jax.Array:
        """Returns the gradient through the derivative of the meeting's own equation."""
        if self.meeting.eqn is None:
            found = given.cotangents[0]
        else:
            pull = self._pull
            for loop in reversed(self.meeting.loops):
                axes = [0 if loop in node.loops else None for node in self.meeting.nodes.values()]
                pull = jax.vmap(pull, in_axes=(0, axes))
            found = pull(given, list(values))
        turns = [i for i, loop in enumerate(self.meeting.loops) if loop not in self.node.loops]
        return jnp.sum(wide(found), axis=tuple(turns))

    def _pull(self, given: Given, values: Sequence[Any]) -> jax.Array:
        positions = list(self.meeting.nodes)

        def results(*own: jax.Array) -> list[jax.Array]:
            operands = self.meeting.operands(given.kept, dict(zip(positions, own, strict=True)))
            found = evaluate(self.meeting.eqn, operands)
            return [found[i] for i in self.meeting.tapped]

        # By all of them, since not every equation has a derivative by one operand alone.
        pulled = jax.vjp(results, *values)[1](list(given.cotangents))
        return pulled[positions.index(self.position)]


def blocks_product(how: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns a product for each block, exactly enough for a bound to hold; `how` as in einsum.

    One block alone is a plain product of matrices, which CPUs are faster at than a batch of one.
    """
    if a.shape[0] > 1:
        return jnp.einsum(how, a, b, precision=HIGHEST)
    return jnp.einsum(how.replace("g", ""), a[0], b[0], precision=HIGHEST)[None]


def wide(x: jax.Array) -> jax.Array:
    """Returns numbers with a gradient in a dtype for sums, and anything else as it is."""
    return settled(x).astype(accumulation_dtype(x)) if is_differentiable(x) else x


def sites_of(meetings: Sequence[Meeting]) -> list[Site]:
    """Returns the sites of all meetings."""
    return [
        Site(meeting, position, node, contraction(meeting))
        for meeting in meetings
        for position, node in meeting.nodes.items()
    ]
