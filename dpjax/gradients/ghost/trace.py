"""The trace: the program of a loss, and the equations in which parameters meet data.

Every value of the program is either a `Node`, computed from parameters and constants alone, or
data, which depends on the example. An equation that takes both is a `Meeting`. The gradient of a
parameter depends only on the data at its meetings and on the cotangents of their results, so the
rest of the program can be ignored.

Values that the loss does not depend on, such as auxiliary outputs, have no meetings: they are
evaluated along with the loss and take no part in the backward pass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax.extend import core

from dpjax.gradients.jaxprs import (
    aval_of,
    called_program,
    has_linear_derivative,
    is_differentiable,
    is_float,
    needed_inside,
    needed_values,
)

__all__ = [
    "Call",
    "Evaluation",
    "Level",
    "Meet",
    "Meeting",
    "Node",
    "Plain",
    "Scan",
    "ScanLoop",
    "TracedLoss",
    "analysed",
]


@dataclass(frozen=True, eq=False)
class ScanLoop:
    """A scan that parameters enter, and its number of iterations."""

    length: int


@dataclass(frozen=True, eq=False)
class Node:
    """A value that depends on no example: a leaf, a constant, or the result of an equation.

    Attributes:
        aval: shape and dtype; inside a loop, those of one iteration.
        leaves: the leaves it is computed from.
        loops: the loops whose iterations change it, outermost first.
        preserves: whether ``|J^T g| = |g|`` for every cotangent g of this node, where J is the
            derivative with respect to its only leaf: reshapes, transposes, casts, slices.
        index: the index of the leaf, if it is a leaf.
        value: the value, if it is a constant.
        made_by: the equation that computes it, if any, and its position among the results.
        source: the node outside the loop that it equals or is a slice of.
    """

    aval: jax.ShapeDtypeStruct
    leaves: frozenset[int] = frozenset()
    loops: tuple[ScanLoop, ...] = ()
    preserves: bool = False
    index: int | None = None
    value: Any = None
    made_by: "Evaluation | None" = None
    place: int = 0
    source: "Node | None" = None

    @property
    def differentiable(self) -> bool:
        """Whether a leaf has a gradient through it."""
        return bool(self.leaves) and is_differentiable(self.aval)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape over all iterations of its loops."""
        return (*(loop.length for loop in self.loops), *self.aval.shape)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An equation on nodes; all its results share one derivative.

    Attributes:
        eqn: the equation.
        inputs: its operands.
        loops: the loops in which it is evaluated in every iteration.
        linear: whether its derivative is linear in the cotangent; also true outside loops.
    """

    eqn: core.JaxprEqn
    inputs: tuple[Node, ...]
    loops: tuple[ScanLoop, ...]
    linear: bool


@dataclass(frozen=True, eq=False)
class Meeting:
    """An equation in which parameters meet data, or the point where a parameter becomes data.

    Attributes:
        number: its index among all meetings.
        eqn: the equation; None where a parameter becomes data.
        nodes: the node of each operand that carries a gradient, by position.
        kept: positions of the operands that its gradients need, that is, the data.
        tapped: which results get a tap: those that have a gradient and reach the loss.
        avals: shapes and dtypes of the tapped results, in one iteration of its loops.
        loops: the loops around it, outermost first.
    """

    number: int
    eqn: Any
    nodes: dict[int, Node]
    kept: tuple[int, ...]
    tapped: tuple[int, ...]
    avals: tuple[jax.ShapeDtypeStruct, ...]
    loops: tuple[ScanLoop, ...]

    @property
    def name(self) -> str:
        """The primitive's name."""
        return "identity" if self.eqn is None else str(self.eqn.primitive.name)

    @property
    def turns(self) -> tuple[int, ...]:
        """The number of iterations of each loop around it."""
        return tuple(loop.length for loop in self.loops)

    def operands(self, kept: Sequence[jax.Array], own: Mapping[int, jax.Array]) -> list[jax.Array]:
        """Returns all operands in one iteration: those kept, and the values of the nodes.

        Operands that were not kept do not affect the derivative, and are zeros.
        """
        known = {**dict(zip(self.kept, kept, strict=True)), **own}
        avals = [aval_of(atom) for atom in self.eqn.invars]
        return [
            known[i] if i in known else jnp.zeros(aval.shape, aval.dtype)
            for i, aval in enumerate(avals)
        ]


@dataclass(frozen=True, eq=False)
class Plain:
    """An equation on data that involves no parameter, or that the loss does not depend on."""

    eqn: core.JaxprEqn


@dataclass(frozen=True, eq=False)
class Meet:
    """An equation with taps on its results."""

    meeting: Meeting


@dataclass(frozen=True, eq=False)
class Call:
    """An equation that calls a program in which parameters meet data."""

    eqn: core.JaxprEqn
    level: "Level"


@dataclass(frozen=True, eq=False)
class Scan:
    """A scan with parameters.

    Attributes:
        eqn: the equation.
        level: its body.
        meetings: the meetings in the body.
        bases: operands that depend on no example, as the body sees them.
        forced: carries that start as parameters alone and become data.
    """

    eqn: core.JaxprEqn
    level: "Level"
    meetings: tuple[Meeting, ...]
    bases: dict[int, Node]
    forced: dict[int, Meeting]


Step = Plain | Meet | Call | Scan


@dataclass(frozen=True, eq=False)
class Level:
    """One program, its steps, and its nodes; values without a node are data.

    Attributes:
        jaxpr: the program.
        needed: for each of its results, whether the loss depends on it.
        steps: the equations to evaluate besides the nodes, in order.
        nodes: the values that depend on no example.
        forced: needed results that depend on parameters alone but must be treated as data.
    """

    jaxpr: core.Jaxpr
    needed: tuple[bool, ...]
    steps: tuple[Step, ...]
    nodes: dict[core.Var, Node]
    forced: dict[int, Meeting]


@dataclass(frozen=True, eq=False)
class TracedLoss:
    """The program of a loss, and all its meetings.

    Attributes:
        level: the outermost program.
        meetings: every meeting, by number.
        leaves: the shapes and dtypes of the parameters' leaves.
        returned: the tree structure of what the loss returns.
    """

    level: Level
    meetings: tuple[Meeting, ...]
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    returned: jax.tree_util.PyTreeDef


def analysed(
    loss_fn: Callable[..., chex.ArrayTree], params: chex.ArrayTree, *data: chex.ArrayTree
) -> TracedLoss:
    """Traces a loss of one example and finds where its parameters meet the example.

    Args:
        loss_fn: ``loss_fn(params, *data)``, a scalar or ``(scalar, aux)``.
        params: the parameters, or their shapes.
        *data: one example, and a key if the loss takes one; or their shapes.
    """
    traced, shapes = jax.make_jaxpr(loss_fn, return_shape=True)(params, *data)
    avals = [var.aval for var in traced.jaxpr.invars]
    count = len(jax.tree.leaves(params))
    leaves: list[Node | None] = [
        Node(aval, frozenset([i]), preserves=True, index=i) for i, aval in enumerate(avals[:count])
    ]
    kinds = [*leaves, *(None for _ in avals[count:])]
    finder = _Finder()
    # The loss is the first result, and the only one that is differentiated.
    needed = [i == 0 for i in range(len(traced.jaxpr.outvars))]
    level = finder.level(traced.jaxpr, traced.consts, needed, kinds, (), force=True)
    return TracedLoss(
        level, tuple(finder.meetings), tuple(avals[:count]), jax.tree.structure(shapes)
    )


class _Finder:
    """Walks a program; a value is a Node if it depends on no example, else None."""

    def __init__(self) -> None:
        self.meetings: list[Meeting] = []

    def level(
        self,
        jaxpr: core.Jaxpr,
        consts: Sequence[jax.Array],
        needed: Sequence[bool],
        kinds: Sequence[Node | None],
        loops: tuple[ScanLoop, ...],
        force: bool,
    ) -> Level:
        nodes: dict[core.Var, Node] = {}
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            nodes[var] = Node(aval_of(var), value=value)
        for var, kind in zip(jaxpr.invars, kinds, strict=True):
            if kind is not None:
                nodes[var] = kind
        values = needed_values(jaxpr, needed)
        steps: list[Step] = []
        for eqn in jaxpr.eqns:
            self._add(eqn, [var in values for var in eqn.outvars], nodes, steps, loops)
        outputs = {i: _kind(jaxpr.outvars[i], nodes) for i, one in enumerate(needed) if one}
        forced = self._forced(outputs, loops) if force else {}
        return Level(jaxpr, tuple(needed), tuple(steps), nodes, forced)

    def _add(
        self,
        eqn: core.JaxprEqn,
        needed: Sequence[bool],
        nodes: dict[core.Var, Node],
        steps: list[Step],
        loops: tuple[ScanLoop, ...],
    ) -> None:
        kinds = [_kind(atom, nodes) for atom in eqn.invars]
        called = called_program(eqn)
        with_leaves = any(kind is not None and kind.differentiable for kind in kinds)
        tapped = tuple(
            i for i, var in enumerate(eqn.outvars) if needed[i] and is_differentiable(var.aval)
        )
        if called is not None and with_leaves and any(needed):
            inner = self.level(*called, needed, kinds, loops, force=False)
            steps.append(Call(eqn, inner))
            for var, atom in zip(eqn.outvars, inner.jaxpr.outvars, strict=True):
                kind = _kind(atom, inner.nodes)
                if kind is not None:
                    nodes[var] = kind
        elif all(kind is not None for kind in kinds) and not eqn.effects:
            inputs = [kind for kind in kinds if kind is not None]
            nodes.update(zip(eqn.outvars, _results(eqn, inputs, loops), strict=True))
        elif not with_leaves or not tapped:
            steps.append(Plain(eqn))
        elif eqn.primitive.name == "scan":
            steps.append(self._scan(eqn, needed, kinds, loops))
        else:
            steps.append(Meet(self._meeting(eqn, tapped, kinds, loops)))

    def _meeting(
        self,
        eqn: core.JaxprEqn,
        tapped: tuple[int, ...],
        kinds: Sequence[Node | None],
        loops: tuple[ScanLoop, ...],
    ) -> Meeting:
        own = {i: kind for i, kind in enumerate(kinds) if kind is not None and kind.differentiable}
        # The derivative of a sum with respect to one term does not need the others.
        linear = eqn.primitive.name in ("add", "sub", "add_any")
        kept = () if linear else tuple(i for i in range(len(kinds)) if i not in own)
        avals = tuple(aval_of(eqn.outvars[i]) for i in tapped)
        meeting = Meeting(len(self.meetings), eqn, own, kept, tapped, avals, loops)
        self.meetings.append(meeting)
        return meeting

    def _forced(
        self, kinds: Mapping[int, Node | None], loops: tuple[ScanLoop, ...]
    ) -> dict[int, Meeting]:
        """Returns a meeting for each value of parameters alone that must be treated as data."""
        forced: dict[int, Meeting] = {}
        for i, node in kinds.items():
            if node is not None and node.differentiable:
                number = len(self.meetings)
                forced[i] = Meeting(number, None, {0: node}, (), (0,), (node.aval,), loops)
                self.meetings.append(forced[i])
        return forced

    def _scan(
        self,
        eqn: core.JaxprEqn,
        needed: Sequence[bool],
        kinds: Sequence[Node | None],
        loops: tuple[ScanLoop, ...],
    ) -> Scan:
        consts = eqn.params["num_consts"]
        carried = range(consts, consts + eqn.params["num_carry"])
        ((_, inside),) = needed_inside(eqn, needed)
        forced = self._forced({i: kinds[i] for i in carried if inside[i - consts]}, loops)
        closed = eqn.params["jaxpr"]
        loop = ScanLoop(eqn.params["length"])
        bases = {
            i: _in_loop(kind, var.aval, None if i < consts else loop)
            for i, (kind, var) in enumerate(zip(kinds, closed.jaxpr.invars, strict=True))
            if kind is not None and i not in carried
        }
        first = len(self.meetings)
        seen = [bases.get(i) for i in range(len(kinds))]
        level = self.level(closed.jaxpr, closed.consts, inside, seen, (*loops, loop), force=True)
        return Scan(eqn, level, tuple(self.meetings[first:]), bases, forced)


def _kind(atom: core.Var | core.Literal, nodes: dict[core.Var, Node]) -> Node | None:
    return (
        Node(aval_of(atom), value=atom.val) if isinstance(atom, core.Literal) else nodes.get(atom)
    )


def _in_loop(source: Node, aval: jax.ShapeDtypeStruct, loop: ScanLoop | None) -> Node:
    """Returns a node as a loop's body sees it: the same in all iterations, or a slice for each."""
    loops = source.loops if loop is None else (*source.loops, loop)
    return Node(aval, source.leaves, loops, source.preserves, source=source)


def _results(
    eqn: core.JaxprEqn, inputs: Sequence[Node], around: tuple[ScanLoop, ...]
) -> list[Node]:
    """Returns the nodes of an equation's results.

    A value that is the same in all iterations of a loop is evaluated once, and its derivative is
    applied to the sum of the iterations' cotangents, unless that derivative is not linear.

    Args:
        eqn: the equation.
        inputs: its operands.
        around: the loops around it, outermost first.
    """
    leaves = frozenset().union(*(node.leaves for node in inputs))
    linear = not leaves or not around or has_linear_derivative(eqn)
    together = {loop for node in inputs for loop in node.loops}
    loops = tuple(loop for loop in around if loop in together) if linear else around
    made = Evaluation(eqn, tuple(inputs), loops, linear)
    avals = [aval_of(var) for var in eqn.outvars]
    return [
        Node(aval, leaves, loops, _preserves(eqn, inputs, aval), made_by=made, place=i)
        for i, aval in enumerate(avals)
    ]


_REARRANGE = (
    *("reshape", "transpose", "squeeze", "expand_dims", "rev", "neg", "copy", "copy_p"),
    *("slice", "split", "optimization_barrier"),
)


def _preserves(eqn: core.JaxprEqn, inputs: Sequence[Node], aval: jax.ShapeDtypeStruct) -> bool:
    if len(inputs) != 1 or not inputs[0].preserves or not is_float(aval):
        return False
    name = eqn.primitive.name
    if name == "broadcast_in_dim":
        return inputs[0].aval.size == aval.size
    return name in _REARRANGE or name == "convert_element_type"
