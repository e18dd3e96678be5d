"""The backward pass: from the loss to the meetings, and from there to the leaves.

The program is evaluated again, with a zero (the tap) added to the results of every meeting, and
with the data there kept. One backward pass with respect to the taps alone gives every cotangent,
and no gradient of a parameter. Auxiliary outputs come from the same evaluation. If one example's
gradient is needed, it is computed from the kept data and the cotangents, then pulled back through
the equations between the meetings and the leaf.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.extend import core

from dpjax.devices import varying
from dpjax.gradients.convolutions import channels_last_convolutions
from dpjax.gradients.ghost.contractions import Given, Site, wide
from dpjax.gradients.ghost.planner import Block
from dpjax.gradients.ghost.trace import (
    Call,
    Evaluation,
    Level,
    Meet,
    Meeting,
    Node,
    Plain,
    Scan,
    ScanLoop,
    TracedLoss,
)
from dpjax.gradients.jaxprs import evaluate
from dpjax.gradients.platforms import Platform

__all__ = ["Pass", "backward_pass", "by_leaf", "former"]

# For each meeting, arrays with a leading axis of examples.
_PerMeeting = list[tuple[jax.Array, ...]]


class Pass(NamedTuple):
    """The results of one pass over the examples.

    Attributes:
        losses: (N,).
        aux: the auxiliary outputs, with a leading axis of examples.
        kept: the data operands of each meeting.
        cotangents: the cotangents of each meeting's tapped results.
    """

    losses: jax.Array
    aux: chex.ArrayTree
    kept: _PerMeeting
    cotangents: _PerMeeting


def backward_pass(
    program: TracedLoss, leaves: Sequence[jax.Array], data: chex.ArrayTree, zero: jax.Array | None
) -> Pass:
    """Returns losses, auxiliary outputs, kept operands and cotangents of all examples.

    Args:
        program: the program of one example's loss, which returns ``(loss, aux)``.
        leaves: the leaves of the parameters.
        data: the loss's other arguments, with a leading axis of examples.
        zero: inside `shard_map`, a zero that varies over the same devices as the examples.
    """
    size = len(jax.tree.leaves(data)[0])
    taps = [
        tuple(
            varying(jnp.zeros((size, *meeting.turns, *aval.shape), aval.dtype), zero)
            for aval in meeting.avals
        )
        for meeting in program.meetings
    ]

    def both(
        leaves: list[jax.Array], data: chex.ArrayTree, taps: _PerMeeting
    ) -> tuple[chex.ArrayTree, ...]:
        # Differentiate each example, then batch: the derivative of a batched convolution may mix
        # examples if one is not finite.
        def one(tap: _PerMeeting, args: list[jax.Array]) -> tuple[chex.ArrayTree, ...]:
            run = _LossEvaluation(program, leaves, zero)
            loss, pull, others = jax.vjp(lambda tap: run.loss(tap, args), tap, has_aux=True)
            return loss, *others, pull(jnp.ones_like(loss))[0]

        return jax.vmap(one)(taps, jax.tree.leaves(data))

    return Pass(*channels_last_convolutions(both)(list(leaves), data, taps))


def former(
    platform: Platform, block: Block, leaves: Sequence[jax.Array]
) -> Callable[[Sequence[Given]], list[jax.Array]]:
    """Returns the function from one example's `given` at each site to its gradients.

    The gradients are with respect to the block's leaves; if the block is direct, to the site's
    node.
    """
    memo = _Memo(leaves)
    values = [_values(memo, site) for site in block.sites]
    if block.direct:
        return lambda given: [block.sites[0].gradient(platform, given[0], values[0])]
    pull = _pull_to_leaves(block, leaves)

    def gradients(given: Sequence[Given]) -> list[jax.Array]:
        found: dict[Node, jax.Array] = {}
        for site, own, value in zip(block.sites, given, values, strict=True):
            part = site.gradient(platform, own, value)
            found[site.node] = found[site.node] + part if site.node in found else part
        return pull(found)

    return gradients


def by_leaf(node: Node, gradient: jax.Array, leaf: jax.Array) -> jax.Array:
    """Turns the gradient of a node that only rearranges one leaf into the gradient of that leaf."""
    (index,) = node.leaves
    dtype = gradient.dtype

    def value(own: jax.Array) -> jax.Array:
        return _Memo({index: own}, wide=dtype).stacked(node)

    return jax.vjp(value, leaf.astype(dtype))[1](gradient)[0]


class _Memo:
    """The values of nodes in one run of a program, each computed once."""

    def __init__(
        self, leaves: Sequence[jax.Array] | Mapping[int, jax.Array], wide: jnp.dtype | None = None
    ) -> None:
        """Stores the leaves' values; `wide` is the dtype to keep while nodes only rearrange."""
        self._leaves = leaves
        self._wide = wide
        self._known: dict[Node, jax.Array] = {}
        self._results: dict[Evaluation, Sequence[jax.Array]] = {}

    def within(self, known: dict[Node, jax.Array]) -> "_Memo":
        """Returns the memo of a loop's body, which holds only the body's own nodes."""
        inner = _Memo(self._leaves)
        inner._known = dict(known)
        return inner

    def one(self, node: Node) -> jax.Array:
        """Returns a node's value; inside a loop's body, its value in the current iteration."""
        if node in self._known:
            return self._known[node]
        made = node.made_by
        if made is None:
            return self._given(node)
        if made not in self._results:
            self._results[made] = evaluate(made.eqn, [self.one(each) for each in made.inputs])
        return self._results[made][node.place]

    def stacked(self, node: Node) -> jax.Array:
        """Returns a node's value in all iterations of its loops, stacked along leading axes."""
        if node.source is not None:
            return self.stacked(node.source)
        made = node.made_by
        if made is None:
            return self._given(node)
        if made not in self._results:
            self._results[made] = self._stacked(made)
        return self._results[made][node.place]

    def _given(self, node: Node) -> jax.Array:
        return node.value if node.index is None else self._leaves[node.index]

    def _stacked(self, made: Evaluation) -> list[jax.Array]:
        values = [self.stacked(each) for each in made.inputs]
        if self._wide is not None and made.eqn.primitive.name == "convert_element_type":
            return [values[0].astype(self._wide)]

        def apply(*given: jax.Array) -> Sequence[jax.Array]:
            return evaluate(made.eqn, given)

        loops = [each.loops for each in made.inputs]
        if not made.linear:
            # If every operand is stacked, JAX differentiates each iteration; for an operand that is
            # not, it may differentiate once, with the summed cotangent.
            values = [
                _in_all_turns(x, own, made.loops) for x, own in zip(values, loops, strict=True)
            ]
            loops = [made.loops] * len(loops)
        for loop in reversed(made.loops):
            axes = tuple(0 if loop in own else None for own in loops)
            apply = jax.vmap(apply, in_axes=axes)
        return [jnp.asarray(x) for x in apply(*values)]


def _in_all_turns(
    value: jax.Array, own: tuple[ScanLoop, ...], loops: tuple[ScanLoop, ...]
) -> jax.Array:
    """Repeats a value that is stacked over some loops along the iterations of the others."""
    value = jnp.asarray(value)
    for axis, loop in enumerate(loops):
        if loop not in own:
            shape = (*value.shape[:axis], loop.length, *value.shape[axis:])
            value = jnp.broadcast_to(jnp.expand_dims(value, axis), shape)
    return value


class _LossEvaluation:
    """One evaluation of the loss of one example."""

    def __init__(
        self, program: TracedLoss, leaves: Sequence[jax.Array], zero: jax.Array | None
    ) -> None:
        self._program = program
        self._leaves = leaves
        self._zero = zero
        self._taps: dict[int, tuple[jax.Array, ...]] = {}
        self._kept: dict[int, tuple[jax.Array, ...]] = {}

    def loss(
        self, taps: _PerMeeting, args: Sequence[jax.Array]
    ) -> tuple[jax.Array, chex.ArrayTree]:
        """Returns the loss, with the auxiliary outputs and the kept operands."""
        self._taps = dict(enumerate(taps))
        level = self._program.level
        count = len(self._program.leaves)
        data = dict(zip(level.jaxpr.invars[count:], args, strict=True))
        found = self._level(level, data, _Memo(self._leaves))
        loss, aux = jax.tree.unflatten(self._program.returned, found)
        return loss, (aux, [self._kept[i] for i in range(len(self._program.meetings))])

    def _level(self, level: Level, env: dict[core.Var, jax.Array], memo: _Memo) -> list[jax.Array]:
        def read(atom: core.Var | core.Literal) -> jax.Array:
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

    def _meet(self, meeting: Meeting, values: Sequence[jax.Array]) -> list[jax.Array]:
        found = list(values if meeting.eqn is None else evaluate(meeting.eqn, values))
        for place, tap in zip(meeting.tapped, self._taps[meeting.number], strict=True):
            found[place] = found[place] + tap
        self._kept[meeting.number] = tuple(values[i] for i in meeting.kept)
        return found

    def _call(self, step: Call, values: Sequence[jax.Array], memo: _Memo) -> list[jax.Array]:
        level = step.level
        pairs = zip(level.jaxpr.invars, values, strict=True)
        return self._level(level, {v: x for v, x in pairs if v not in level.nodes}, memo)

    def _scan(self, step: Scan, values: Sequence[jax.Array], memo: _Memo) -> list[jax.Array]:
        parameters = step.eqn.params
        consts, carries = parameters["num_consts"], parameters["num_carry"]
        values = list(values)
        for i, forced in step.forced.items():
            values[i] = self._meet(forced, [values[i]])[0]
        invars = step.level.jaxpr.invars
        outer = self._taps
        mine = [meeting.number for meeting in step.meetings]

        def body(
            carry: list[jax.Array], given: chex.ArrayTree
        ) -> tuple[list[jax.Array], chex.ArrayTree]:
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


def _values(memo: _Memo, site: Site) -> list[jax.Array]:
    """Returns the values of all nodes at a site's meeting; none if its gradient ignores them."""
    return (
        [] if site.product is not None else [memo.stacked(n) for n in site.meeting.nodes.values()]
    )


def _pull_to_leaves(
    block: Block, leaves: Sequence[jax.Array]
) -> Callable[[Mapping[Node, jax.Array]], list[jax.Array]]:
    """Returns the function from gradients of the sites' nodes to gradients of the block's leaves.

    All nodes are differentiated at once, so that cotangents that reach a value from several sites
    are added before they go on: a derivative that is not linear needs the sum.
    """
    nodes = dict.fromkeys(site.node for site in block.sites)
    rearranged = [node for node in nodes if node.preserves]
    computed = [node for node in nodes if not node.preserves]

    def value(*own: jax.Array) -> list[jax.Array]:
        memo = _Memo(dict(zip(block.leaves, own, strict=True)))
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
