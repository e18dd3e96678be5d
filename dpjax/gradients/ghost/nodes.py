"""Values made of parameters alone: what stands between a leaf and the data it meets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.jaxprs import evaluate, is_differentiable, is_float

__all__ = ["Loop", "Memo", "Node", "constant", "leaf", "result", "through_loop"]


@dataclass(frozen=True, eq=False)
class Loop:
    """A scan that parameters enter: its number of turns, and how many loops are around it."""

    length: int
    depth: int


@dataclass(frozen=True, eq=False)
class Node:
    """A value that depends on no example: a leaf, a constant, or the result of an equation.

    Attributes:
        aval: shape and dtype, those of one turn inside a loop.
        leaves: the leaves it is made of.
        loops: the loops in whose turns it differs, outermost first.
        preserves: whether ``|J^T g| = |g|`` for every cotangent g of this node, where J is its
            derivative by its one leaf: reshapes, transposes, casts, slices.
        index: of the leaf, if it is one.
        value: of a constant.
        eqn: the equation it is a result of, with its inputs and the place among the results.
        source: the node outside of the loop that it is, or is a slice of.
    """

    aval: Any
    leaves: frozenset[int] = frozenset()
    loops: tuple[Loop, ...] = ()
    preserves: bool = False
    index: int | None = None
    value: Any = None
    eqn: Any = None
    inputs: tuple["Node", ...] = ()
    place: int = 0
    source: "Node | None" = None

    @property
    def differentiable(self) -> bool:
        """Whether a leaf has a gradient through it."""
        return bool(self.leaves) and is_differentiable(self.aval)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape over all turns of its loops."""
        return (*(loop.length for loop in self.loops), *self.aval.shape)


def leaf(index: int, aval: Any) -> Node:
    """Returns the node of a leaf of the parameters."""
    return Node(aval, frozenset([index]), preserves=True, index=index)


def constant(aval: Any, value: Any) -> Node:
    """Returns the node of a constant."""
    return Node(aval, value=value)


def through_loop(source: Node, aval: Any, loop: Loop | None) -> Node:
    """Returns a node as a loop's body sees it: the same in all turns, or a slice for each."""
    loops = source.loops if loop is None else (*source.loops, loop)
    return Node(aval, source.leaves, loops, source.preserves, source=source)


def result(eqn: Any, inputs: Sequence[Node], place: int) -> Node:
    """Returns the node of an equation's result, from the nodes of its operands."""
    together = {loop for node in inputs for loop in node.loops}
    loops = tuple(sorted(together, key=lambda loop: loop.depth))
    leaves = frozenset().union(*(node.leaves for node in inputs))
    aval = eqn.outvars[place].aval
    return Node(
        aval,
        leaves,
        loops,
        _preserves(eqn, inputs, aval),
        eqn=eqn,
        inputs=tuple(inputs),
        place=place,
    )


_REARRANGE = (
    *("reshape", "transpose", "squeeze", "expand_dims", "rev", "neg", "copy", "copy_p"),
    *("slice", "split", "optimization_barrier"),
)


def _preserves(eqn: Any, inputs: Sequence[Node], aval: Any) -> bool:
    if len(inputs) != 1 or not inputs[0].preserves or not is_float(aval):
        return False
    name = eqn.primitive.name
    if name == "broadcast_in_dim":
        return inputs[0].aval.size == aval.size
    return name in _REARRANGE or name == "convert_element_type"


class Memo:
    """The values of nodes in one run of a program, each computed once."""

    def __init__(self, leaves: Sequence[Any] | Mapping[int, Any], wide: Any = None) -> None:
        """Takes the leaves' values; `wide` is the dtype to stay in where nodes only rearrange."""
        self._leaves = leaves
        self._wide = wide
        self._known: dict[Node, Any] = {}

    def within(self, known: dict[Node, Any]) -> "Memo":
        """Returns the memo of a loop's body, which knows its own nodes only."""
        inner = Memo(self._leaves)
        inner._known = dict(known)
        return inner

    def one(self, node: Node) -> Any:
        """Returns a node's value, inside a loop's body that of the turn."""
        if node not in self._known:
            self._known[node] = self._computed(node)
        return self._known[node]

    def _computed(self, node: Node) -> Any:
        if node.index is not None:
            return self._leaves[node.index]
        if node.eqn is None:
            return node.value
        found = evaluate(node.eqn, [self.one(each) for each in node.inputs])
        return found[node.place]

    def stacked(self, node: Node) -> Any:
        """Returns a node's value in all turns of its loops, stacked in front, from the leaves."""
        if node not in self._known:
            self._known[node] = self._stacked(node)
        return self._known[node]

    def _stacked(self, node: Node) -> Any:
        if node.source is not None:
            return self.stacked(node.source)
        if node.eqn is None:
            return self._computed(node)
        values = [self.stacked(each) for each in node.inputs]
        if self._wide is not None and node.eqn.primitive.name == "convert_element_type":
            return values[0].astype(self._wide)

        def apply(*given: Any) -> Any:
            return evaluate(node.eqn, given)[node.place]

        for loop in reversed(node.loops):
            axes = tuple(0 if loop in each.loops else None for each in node.inputs)
            apply = jax.vmap(apply, in_axes=axes)
        return jnp.asarray(apply(*values))
