"""Values made of parameters alone: what stands between a leaf and the data it meets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.linearity import has_linear_derivative
from dpjax.gradients.jaxprs import evaluate, is_differentiable, is_float

__all__ = ["Loop", "Memo", "Node", "constant", "leaf", "results", "through_loop"]


@dataclass(frozen=True, eq=False)
class Loop:
    """A scan that parameters enter, and its number of turns."""

    length: int


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
        made_by: the equation it is a result of, if it is one, and its place among the results.
        source: the node outside of the loop that it is, or is a slice of.
    """

    aval: Any
    leaves: frozenset[int] = frozenset()
    loops: tuple[Loop, ...] = ()
    preserves: bool = False
    index: int | None = None
    value: Any = None
    made_by: "_Evaluation | None" = None
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


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """An equation on nodes. Its results belong together: it has one derivative for all of them.

    Attributes:
        eqn: the equation.
        inputs: its operands.
        loops: the loops in whose turns it is evaluated anew.
        linear: whether its derivative is linear in the cotangent, or it is in no loop.
    """

    eqn: Any
    inputs: tuple[Node, ...]
    loops: tuple[Loop, ...]
    linear: bool


def results(eqn: Any, inputs: Sequence[Node], around: tuple[Loop, ...]) -> list[Node]:
    """Returns the nodes of an equation's results.

    What is the same in all turns of a loop is evaluated once, and its derivative is applied to the
    sum of the turns' cotangents. Not so if that derivative is not linear.

    Args:
        eqn: the equation.
        inputs: its operands.
        around: the loops around it, outermost first.
    """
    leaves = frozenset().union(*(node.leaves for node in inputs))
    linear = not leaves or not around or has_linear_derivative(eqn)
    together = {loop for node in inputs for loop in node.loops}
    loops = tuple(loop for loop in around if loop in together) if linear else around
    made = _Evaluation(eqn, tuple(inputs), loops, linear)
    return [
        Node(var.aval, leaves, loops, _preserves(eqn, inputs, var.aval), made_by=made, place=i)
        for i, var in enumerate(eqn.outvars)
    ]


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
        self._results: dict[_Evaluation, Sequence[Any]] = {}

    def within(self, known: dict[Node, Any]) -> "Memo":
        """Returns the memo of a loop's body, which knows its own nodes only."""
        inner = Memo(self._leaves)
        inner._known = dict(known)
        return inner

    def one(self, node: Node) -> Any:
        """Returns a node's value, inside a loop's body that of the turn."""
        if node in self._known:
            return self._known[node]
        made = node.made_by
        if made is None:
            return self._given(node)
        if made not in self._results:
            self._results[made] = evaluate(made.eqn, [self.one(each) for each in made.inputs])
        return self._results[made][node.place]

    def stacked(self, node: Node) -> Any:
        """Returns a node's value in all turns of its loops, stacked in front, from the leaves."""
        if node.source is not None:
            return self.stacked(node.source)
        made = node.made_by
        if made is None:
            return self._given(node)
        if made not in self._results:
            self._results[made] = self._stacked(made)
        return self._results[made][node.place]

    def _given(self, node: Node) -> Any:
        return node.value if node.index is None else self._leaves[node.index]

    def _stacked(self, made: _Evaluation) -> list[Any]:
        values = [self.stacked(each) for each in made.inputs]
        if self._wide is not None and made.eqn.primitive.name == "convert_element_type":
            return [values[0].astype(self._wide)]

        def apply(*given: Any) -> Sequence[Any]:
            return evaluate(made.eqn, given)

        loops = [each.loops for each in made.inputs]
        if not made.linear:
            # With every operand stacked JAX takes the derivative for each turn; for one that is not
            # it may be taken once, of the sum.
            values = [
                _in_all_turns(x, own, made.loops) for x, own in zip(values, loops, strict=True)
            ]
            loops = [made.loops] * len(loops)
        for loop in reversed(made.loops):
            axes = tuple(0 if loop in own else None for own in loops)
            apply = jax.vmap(apply, in_axes=axes)
        return [jnp.asarray(x) for x in apply(*values)]


def _in_all_turns(value: Any, own: tuple[Loop, ...], loops: tuple[Loop, ...]) -> Any:
    """Repeats a value that is stacked over some loops, in all turns of the others."""
    value = jnp.asarray(value)
    for axis, loop in enumerate(loops):
        if loop not in own:
            shape = (*value.shape[:axis], loop.length, *value.shape[axis:])
            value = jnp.broadcast_to(jnp.expand_dims(value, axis), shape)
    return value
