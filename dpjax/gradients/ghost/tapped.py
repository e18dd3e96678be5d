"""A loss with taps: zeros added where parameters meet data, and the data kept there."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from dpjax.gradients.convolutions import channels_last_convolutions
from dpjax.gradients.ghost.analysis import Call, Level, Meet, Meeting, Plain, Program, Scan
from dpjax.gradients.ghost.nodes import Memo
from dpjax.gradients.jaxprs import evaluate
from dpjax.gradients.shards import varying

__all__ = ["Pass", "backward_pass"]

# For each meeting, arrays with a leading axis of examples.
PerMeeting = list[tuple[jax.Array, ...]]


class Pass(NamedTuple):
    """What one pass over the examples gives.

    Attributes:
        losses: (N,).
        kept: the data operands of each meeting.
        cotangents: of the tapped results of each meeting.
    """

    losses: jax.Array
    kept: PerMeeting
    cotangents: PerMeeting


def backward_pass(
    program: Program, leaves: Sequence[jax.Array], data: Any, zero: jax.Array | None
) -> Pass:
    """Returns losses, kept operands and cotangents of all examples.

    Args:
        program: of the loss of one example.
        leaves: of the parameters.
        data: the loss's other arguments, with a leading axis of examples.
        zero: differs by device as the examples do, inside `shard_map`.
    """
    size = len(jax.tree.leaves(data)[0])
    taps = [
        tuple(
            varying(jnp.zeros((size, *meeting.turns, *aval.shape), aval.dtype), zero)
            for aval in meeting.avals
        )
        for meeting in program.meetings
    ]

    def both(leaves: Any, data: Any, taps: Any) -> Any:
        # Each example's own derivative, then all at once: the derivative of a batched convolution
        # may mix examples where one is not finite.
        def one(tap: Any, args: Any) -> Any:
            run = _Run(program, leaves, zero)
            loss, pull, kept = jax.vjp(lambda tap: run.loss(tap, args), tap, has_aux=True)
            return loss, kept, pull(jnp.ones_like(loss))[0]

        return jax.vmap(one)(taps, jax.tree.leaves(data))

    if jax.default_backend() == "cpu":
        both = channels_last_convolutions(both)
    return Pass(*both(list(leaves), data, taps))


class _Run:
    """One evaluation of the loss of one example."""

    def __init__(self, program: Program, leaves: Any, zero: Any) -> None:
        self._program = program
        self._leaves = leaves
        self._zero = zero
        self._taps: dict[int, Any] = {}
        self._kept: dict[int, tuple[Any, ...]] = {}

    def loss(self, taps: Sequence[Any], args: Sequence[Any]) -> tuple[jax.Array, PerMeeting]:
        self._taps = dict(enumerate(taps))
        level = self._program.level
        count = len(self._program.leaves)
        data = dict(zip(level.jaxpr.invars[count:], args, strict=True))
        (loss,) = self._level(level, data, Memo(self._leaves))
        return loss, [self._kept[i] for i in range(len(self._program.meetings))]

    def _level(self, level: Level, env: dict[Any, Any], memo: Memo) -> list[Any]:
        def read(atom: Any) -> Any:
            if isinstance(atom, core.Literal):
                return atom.val
            return env[atom] if atom in env else memo.one(level.nodes[atom])

        for step in level.steps:
            values = [] if isinstance(step, Meet) else [read(atom) for atom in step.eqn.invars]
            match step:
                case Plain():
                    found = evaluate(step.eqn, values)
                case Meet():
                    found = self._meet(step.meeting, [read(a) for a in step.meeting.eqn.invars])
                case Call():
                    found = self._call(step, values, memo)
                case Scan():
                    found = self._scan(step, values, memo)
            outvars = step.meeting.eqn.outvars if isinstance(step, Meet) else step.eqn.outvars
            env.update(zip(outvars, found, strict=True))
        out = [read(atom) for atom in level.jaxpr.outvars]
        for i, forced in level.forced.items():
            out[i] = self._meet(forced, [out[i]])[0]
        return out

    def _meet(self, meeting: Meeting, values: Sequence[Any]) -> list[Any]:
        found = list(values if meeting.eqn is None else evaluate(meeting.eqn, values))
        for place, tap in zip(meeting.tapped, self._taps[meeting.number], strict=True):
            found[place] = found[place] + tap
        self._kept[meeting.number] = tuple(values[i] for i in meeting.kept)
        return found

    def _call(self, step: Call, values: Sequence[Any], memo: Memo) -> list[Any]:
        level = step.level
        pairs = zip(level.jaxpr.invars, values, strict=True)
        return self._level(level, {v: x for v, x in pairs if v not in level.nodes}, memo)

    def _scan(self, step: Scan, values: Sequence[Any], memo: Memo) -> list[Any]:
        parameters = step.eqn.params
        consts, carries = parameters["num_consts"], parameters["num_carry"]
        values = list(values)
        for i, forced in step.forced.items():
            values[i] = self._meet(forced, [values[i]])[0]
        invars = step.level.jaxpr.invars
        outer = self._taps
        mine = [meeting.number for meeting in step.meetings]

        def body(carry: Any, given: Any) -> Any:
            own, taps = given
            operands = [*values[:consts], *carry, *own]
            known = {base: operands[i] for i, base in step.bases.items()}
            env = {
                v: x
                for i, (v, x) in enumerate(zip(invars, operands, strict=True))
                if i not in step.bases
            }
            self._taps = dict(zip(mine, taps, strict=True))
            out = self._level(step.level, env, memo.within(known))
            carried = [
                jnp.asarray(x, old.dtype) for x, old in zip(out[:carries], carry, strict=True)
            ]
            return carried, (out[carries:], [self._kept.pop(i) for i in mine])

        start = [varying(jnp.asarray(x), self._zero) for x in values[consts : consts + carries]]
        given = (values[consts + carries :], [outer[i] for i in mine])
        last, (stacked, kept) = jax.lax.scan(
            body,
            start,
            given,
            length=parameters["length"],
            reverse=parameters["reverse"],
            unroll=parameters["unroll"],
        )
        self._taps = outer
        self._kept.update(zip(mine, kept, strict=True))
        return [*last, *stacked]
