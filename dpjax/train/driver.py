"""Drives runs to their end: steps, evaluations, checkpoints, books and progress."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.accounting import Ledger
from dpjax.train.diagnostics import Probe
from dpjax.train.folder import RunFolder
from dpjax.train.launch import Member
from dpjax.train.program import TrainState, released_of
from dpjax.train.progress import Progress
from dpjax.train.resolve import Plan
from dpjax.train.runners import Runner
from dpjax.train.sections import RunConfig

__all__ = ["Result", "drive", "stacked"]

_SECONDS_PER_CALL = 1.0  # about how often a person wants to see the bar move
_SECONDS_PER_CHECKPOINT = 60.0  # about how much work a kill may cost, unless asked otherwise


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes:
        folder: where it is.
        plan: what ran.
        accuracy: on the held-out examples.
        ledger: what was released; None without a guarantee.
        epsilon: what was spent; None without a guarantee.
        threshold: the last threshold; None where there is none.
        seconds: how long this process took for it.
        state: the last state; private.
    """

    folder: RunFolder
    plan: Plan
    accuracy: float
    ledger: Ledger | None
    epsilon: float | None
    threshold: Any
    seconds: float
    state: TrainState


def drive(
    members: Sequence[Member],
    runner: Runner,
    run: RunConfig,
    progress: Progress,
    probe: Probe | None = None,
) -> list[Result]:
    """Takes all steps of runs that go in step with each other; one alone, mostly.

    However the steps are cut into calls, and however often the process is killed and the runs go
    on from a checkpoint in the same place, they end with the same bytes.

    Args:
        members: the runs, all at the same step, with the same released before and to be released.
        runner: where they run; for several, one that takes stacked states.
        run: how often to evaluate and to save.
        progress: is told how it goes.
        probe: looks at gradients without noise at every evaluation, if given.
    """
    return _Drive(members, runner, run, progress, probe).to_the_end()


class _Drive:
    def __init__(
        self,
        members: Sequence[Member],
        runner: Runner,
        run: RunConfig,
        progress: Progress,
        probe: Probe | None,
    ) -> None:
        self._members = list(members)
        self._runner = runner
        self._progress = progress
        self._probe = probe
        self._plan = members[0].book.plan
        self._begun = time.monotonic()
        epoch = max(1, round(self._plan.steps_per_epoch))
        self._evaluate_every = run.evaluate_every or epoch
        self._save_every = run.checkpoint_every
        self._saved = self._begun
        self._rate = 0.0
        self._state = stacked([member.state for member in members])
        self._step = int(members[0].state.step)
        self._first = self._step

    def to_the_end(self) -> list[Result]:
        self._progress.begin(self._plan, self._step)
        try:
            self._take_all_steps()
            if not self._evaluated_here():
                self._evaluate()
        finally:
            self._progress.end()  # also on Ctrl-C: a bar hides the cursor
        return self._results()

    def _take_all_steps(self) -> None:
        total = self._plan.steps
        while self._step < total:
            every = (self._evaluate_every, self._save_every or self._evaluate_every)
            boundary = min(total, *map(self._next, every))
            for member in self._members:
                member.book.announce(boundary)
            while self._step < boundary:
                self._advance(boundary)
            if boundary % self._evaluate_every == 0 or boundary == total:
                self._evaluate()
            if self._save_is_due() or boundary == total:
                self._save()

    def _evaluated_here(self) -> bool:
        """Says whether the last line of the books is about the state as it is."""
        last = self._members[0].book.folder.released()[-1:]
        return bool(last) and last[0]["step"] == self._step

    def _next(self, every: int) -> int:
        return (self._step // every + 1) * every

    def _save_is_due(self) -> bool:
        """Says whether to save here. When a run is saved changes nothing of what it computes."""
        if self._save_every is not None:
            return self._step % self._save_every == 0
        return time.monotonic() - self._saved > _SECONDS_PER_CHECKPOINT

    def _advance(self, boundary: int) -> None:
        """Takes as many steps as fit into about a second; the first call also compiles."""
        wanted = max(1, int(self._rate * _SECONDS_PER_CALL))
        steps = min(boundary - self._step, wanted, self._runner.most)
        begun = time.monotonic()
        self._state, released = self._runner.advance(self._state, steps)
        jax.block_until_ready(self._state.step)
        taken = time.monotonic() - begun
        if self._step > self._first:  # not while compiling
            self._rate = steps / max(taken, 1e-9)
        for i, member in enumerate(self._members):
            member.book.folder.add_steps(self._step, self._of(released, i))
        self._step += steps
        self._progress.stepped(self._step, self._rate)

    def _evaluate(self) -> None:
        scores = self._runner.evaluate(self._state)
        epsilon = self._members[0].book.epsilon(self._step)
        self._keep_states()
        for i, member in enumerate(self._members):
            own, last = self._of(scores, i), released_of(member.state)
            member.book.evaluated(self._step, own, last, epsilon)
            if self._probe is not None:
                member.book.folder.add_diagnostics(self._probe(member.state))
        accuracies = [float(a) for a in jnp.atleast_1d(scores.accuracy)]
        threshold = released_of(self._members[0].state).threshold
        self._progress.evaluated(self._step, accuracies, threshold, epsilon)

    def _save(self) -> None:
        self._keep_states()
        for member in self._members:
            member.save()
        self._saved = time.monotonic()

    def _keep_states(self) -> None:
        self._members = [
            replace(member, state=self._of(self._state, i))
            for i, member in enumerate(self._members)
        ]

    def _of(self, tree: Any, member: int) -> Any:
        """Returns one member's part of what the runner gives."""
        if len(self._members) == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf[member], tree)

    def _results(self) -> list[Result]:
        self._keep_states()
        seconds = time.monotonic() - self._begun
        return [self._result(member, seconds) for member in self._members]

    def _result(self, member: Member, seconds: float) -> Result:
        book, step = member.book, self._step
        book.folder.write_statement(book.state_in_words(step))
        book.folder.write_timing(
            {"steps": step - self._first, "seconds": seconds, "members": len(self._members)}
        )
        last = book.folder.released()[-1]
        return Result(
            book.folder,
            book.plan,
            last["accuracy"],
            book.ledger(step),
            book.epsilon(step),
            last["threshold"],
            seconds,
            member.state,
        )


def stacked(states: Sequence[TrainState]) -> TrainState:
    """Returns the states of several members with a leading axis; of one, as it is."""
    if len(states) == 1:
        return states[0]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
