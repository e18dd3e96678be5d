"""Where parameters meet data: the program of a loss, with the equations that need a tap."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from dpjax.gradients.ghost.nodes import Loop, Node, constant, leaf, results, through_loop
from dpjax.gradients.jaxprs import called_program, is_differentiable

__all__ = ["Call", "Level", "Meet", "Meeting", "Plain", "Program", "Scan", "analysed"]


@dataclass(frozen=True, eq=False)
class Meeting:
    """An equation in which parameters meet data; without one, a parameter that is data from here.

    Attributes:
        number: its place among all meetings.
        eqn: the equation, or None.
        nodes: the node of each operand that carries a gradient, by position.
        kept: positions of the operands that its gradients need: the data.
        tapped: which results get a tap: those that have a gradient.
        avals: of the tapped results, in one turn of its loops.
        loops: around it, outermost first.
    """

    number: int
    eqn: Any
    nodes: dict[int, Node]
    kept: tuple[int, ...]
    tapped: tuple[int, ...]
    avals: tuple[Any, ...]
    loops: tuple[Loop, ...]

    @property
    def name(self) -> str:
        """The primitive's name."""
        return "identity" if self.eqn is None else str(self.eqn.primitive.name)

    @property
    def turns(self) -> tuple[int, ...]:
        """The number of turns of each loop around it."""
        return tuple(loop.length for loop in self.loops)

    def operands(self, kept: Sequence[Any], own: Mapping[int, Any]) -> list[Any]:
        """Returns all operands in one turn: what was kept, and values of the nodes by position.

        What was not kept has no part in the derivative: zeros.
        """
        known = {**dict(zip(self.kept, kept, strict=True)), **own}
        avals = [atom.aval for atom in self.eqn.invars]
        return [
            known[i] if i in known else jnp.zeros(aval.shape, aval.dtype)
            for i, aval in enumerate(avals)
        ]


@dataclass(frozen=True, eq=False)
class Plain:
    """An equation on data, in which no parameter meets it."""

    eqn: Any


@dataclass(frozen=True, eq=False)
class Meet:
    """An equation with taps on its results."""

    meeting: Meeting


@dataclass(frozen=True, eq=False)
class Call:
    """An equation that calls a program in which parameters meet data."""

    eqn: Any
    level: "Level"


@dataclass(frozen=True, eq=False)
class Scan:
    """A scan with parameters.

    Attributes:
        eqn: the equation.
        level: its body.
        meetings: in the body.
        bases: operands that depend on no example, as the body sees them.
        forced: states that begin as parameters alone, and are data from there on.
    """

    eqn: Any
    level: "Level"
    meetings: tuple[Meeting, ...]
    bases: dict[int, Node]
    forced: dict[int, Meeting]


Step = Plain | Meet | Call | Scan


@dataclass(frozen=True, eq=False)
class Level:
    """One program, its steps, and what each of its values is: a node, or (if missing) data."""

    jaxpr: core.Jaxpr
    steps: tuple[Step, ...]
    nodes: dict[Any, Node]
    forced: dict[int, Meeting]  # results that are parameters alone, and must be data


@dataclass(frozen=True, eq=False)
class Program:
    """The program of a loss, and all its meetings.

    Attributes:
        level: the outermost program.
        meetings: every meeting, by number.
        leaves: the shapes and dtypes of the parameters' leaves.
    """

    level: Level
    meetings: tuple[Meeting, ...]
    leaves: tuple[Any, ...]


def analysed(loss_fn: Callable[..., Any], params: Any, *data: Any) -> Program:
    """Traces a loss of one example and finds where its parameters meet the example.

    Args:
        loss_fn: ``loss_fn(params, *data) -> scalar``.
        params: the parameters, or their shapes.
        *data: one example, and a key if the loss takes one; or their shapes.
    """
    traced = jax.make_jaxpr(loss_fn)(params, *data)
    avals = [var.aval for var in traced.jaxpr.invars]
    count = len(jax.tree.leaves(params))
    leaves: list[Node | None] = [leaf(i, aval) for i, aval in enumerate(avals[:count])]
    kinds = [*leaves, *(None for _ in avals[count:])]
    finder = _Finder()
    level = finder.level(traced.jaxpr, traced.consts, kinds, (), force=True)
    return Program(level, tuple(finder.meetings), tuple(avals[:count]))


class _Finder:
    """Walks a program; a value is a Node if no example is in it, else None."""

    def __init__(self) -> None:
        self.meetings: list[Meeting] = []

    def level(
        self,
        jaxpr: core.Jaxpr,
        consts: Sequence[Any],
        kinds: Sequence[Node | None],
        loops: tuple[Loop, ...],
        force: bool,
    ) -> Level:
        nodes: dict[Any, Node] = {}
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            nodes[var] = constant(var.aval, value)
        for var, kind in zip(jaxpr.invars, kinds, strict=True):
            if kind is not None:
                nodes[var] = kind
        steps: list[Step] = []
        for eqn in jaxpr.eqns:
            self._add(eqn, nodes, steps, loops)
        outputs = [_kind(atom, nodes) for atom in jaxpr.outvars]
        forced = self._forced(dict(enumerate(outputs)), loops) if force else {}
        return Level(jaxpr, tuple(steps), nodes, forced)

    def _add(
        self, eqn: Any, nodes: dict[Any, Node], steps: list[Step], loops: tuple[Loop, ...]
    ) -> None:
        kinds = [_kind(atom, nodes) for atom in eqn.invars]
        called = called_program(eqn)
        with_leaves = any(kind is not None and kind.differentiable for kind in kinds)
        if called is not None and with_leaves:
            inner = self.level(*called, kinds, loops, force=False)
            steps.append(Call(eqn, inner))
            for var, atom in zip(eqn.outvars, inner.jaxpr.outvars, strict=True):
                kind = _kind(atom, inner.nodes)
                if kind is not None:
                    nodes[var] = kind
        elif all(kind is not None for kind in kinds) and not eqn.effects:
            inputs = [kind for kind in kinds if kind is not None]
            nodes.update(zip(eqn.outvars, results(eqn, inputs, loops), strict=True))
        elif not with_leaves or not any(is_differentiable(var.aval) for var in eqn.outvars):
            steps.append(Plain(eqn))
        elif eqn.primitive.name == "scan":
            steps.append(self._scan(eqn, kinds, loops))
        else:
            steps.append(Meet(self._meeting(eqn, kinds, loops)))

    def _meeting(self, eqn: Any, kinds: Sequence[Node | None], loops: tuple[Loop, ...]) -> Meeting:
        tapped = tuple(i for i, var in enumerate(eqn.outvars) if is_differentiable(var.aval))
        own = {i: kind for i, kind in enumerate(kinds) if kind is not None and kind.differentiable}
        # The derivative of a sum by one term needs no other.
        linear = eqn.primitive.name in ("add", "sub", "add_any")
        kept = () if linear else tuple(i for i in range(len(kinds)) if i not in own)
        avals = tuple(eqn.outvars[i].aval for i in tapped)
        meeting = Meeting(len(self.meetings), eqn, own, kept, tapped, avals, loops)
        self.meetings.append(meeting)
        return meeting

    def _forced(
        self, kinds: Mapping[int, Node | None], loops: tuple[Loop, ...]
    ) -> dict[int, Meeting]:
        """Returns a meeting for each value that is parameters alone, and must be data."""
        forced: dict[int, Meeting] = {}
        for i, node in kinds.items():
            if node is not None and node.differentiable:
                number = len(self.meetings)
                forced[i] = Meeting(number, None, {0: node}, (), (0,), (node.aval,), loops)
                self.meetings.append(forced[i])
        return forced

    def _scan(self, eqn: Any, kinds: Sequence[Node | None], loops: tuple[Loop, ...]) -> Scan:
        consts = eqn.params["num_consts"]
        carried = range(consts, consts + eqn.params["num_carry"])
        forced = self._forced({i: kinds[i] for i in carried}, loops)
        closed = eqn.params["jaxpr"]
        loop = Loop(eqn.params["length"])
        bases = {
            i: through_loop(kind, var.aval, None if i < consts else loop)
            for i, (kind, var) in enumerate(zip(kinds, closed.jaxpr.invars, strict=True))
            if kind is not None and i not in carried
        }
        first = len(self.meetings)
        inside = [bases.get(i) for i in range(len(kinds))]
        level = self.level(closed.jaxpr, closed.consts, inside, (*loops, loop), force=True)
        return Scan(eqn, level, tuple(self.meetings[first:]), bases, forced)


def _kind(atom: Any, nodes: dict[Any, Node]) -> Node | None:
    return constant(atom.aval, atom.val) if isinstance(atom, core.Literal) else nodes.get(atom)
