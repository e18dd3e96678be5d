"""The loop: steps, evaluations and checkpoints of runs that go in step with each other."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.experimental import multihost_utils

from dpjax.accounting import Ledger
from dpjax.train import mesh
from dpjax.train.diagnostics import Probe
from dpjax.train.feed import Runner, stacked
from dpjax.train.folder import RunFolder
from dpjax.train.plan import Plan
from dpjax.train.progress import Evaluation, Progress
from dpjax.train.run import Run
from dpjax.train.step import TrainState, released_of

if TYPE_CHECKING:
    import pandas

__all__ = ["Loop", "Preempted", "Result"]

_SECONDS_PER_CALL = 1.0  # about how often a person wants to see the bar move
_EXACT = 100  # as many evaluations have an epsilon of their own, which takes up to half a second
_LONG = 12  # of more, so many and a few at the start
_SECONDS_PER_CHECKPOINT = 60.0  # about how much work a kill may cost, unless asked otherwise


class Preempted(Exception):
    """The process was told to end; the run is saved, and can be resumed."""


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
    threshold: float | list[float] | None
    seconds: float
    state: TrainState

    def frame(self) -> "pandas.DataFrame":
        """Returns the evaluations as a pandas frame, a row each; needs ``dpjax[watch]``."""
        import pandas  # noqa: PLC0415 (an optional extra)

        return pandas.DataFrame(self.folder.released())


class Loop:
    """Takes all steps of runs that go in step with each other; one alone, mostly.

    However the steps are cut into calls, and however often the process is killed and the runs are
    resumed from a checkpoint in the same place, they end with the same bytes.

    Args:
        runs: the runs, all at the same step, with the same released before and to be released.
        runner: where they run; for several, one that takes stacked states.
        watching: are told how it goes.
        probe: looks at gradients without noise at every evaluation, if given.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        runner: Runner,
        watching: Sequence[Progress],
        probe: Probe | None,
    ) -> None:
        """Begins where the runs are."""
        self._runs = list(runs)
        self._runner = runner
        self._watching = watching
        self._probe = probe
        self._plan = runs[0].plan
        config = self._plan.experiment.run
        self._begun = time.monotonic()
        self._evaluate_every = config.evaluate_every or max(1, round(self._plan.steps_per_epoch))
        self._save_every = config.checkpoint_every
        self._saved = self._begun
        self._rate = 0.0
        self._state = stacked([run.state for run in runs])
        self._step = int(runs[0].state.step)
        self._first = self._saved_step = self._step
        self._stop = _StopRequest()
        self._last: list[Evaluation] = []
        self._spent: tuple[int, float | None] | None = None
        self._trace, self._tracing = config.trace, False

    def to_the_end(self) -> list[Result]:
        """Takes the steps that are left, and returns how each run ended."""
        for each in self._watching:
            each.begin(self._plan, self._step)
        try:
            with self._stop.listening():
                self._take_all_steps()
            self._last = self._last or self._evaluated_before()
            if not self._last:
                self._evaluate()
            for run in self._runs:
                run.checkpoints.close()
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
                raise MemoryError(self._out_of_memory(error)) from error
            raise
        except BaseException:
            if jax.process_count() == 1:  # others would be waited for, which may never come
                with suppress(OSError):  # what went wrong first is told
                    self._wait()
            raise
        finally:
            self._end_trace()
            for each in self._watching:
                each.end()  # also on Ctrl-C: a bar hides the cursor
        return self._results()

    def _out_of_memory(self, error: Exception) -> str:
        folder, chunk = self._runs[0].folder.path, self._plan.experiment.train.chunk
        where = "host" if isinstance(error, MemoryError) else "device"
        return (
            f"{folder}: the {where} ran out of memory at step {self._step}, with train.chunk = "
            f"{chunk}: expected a smaller one; what was saved can be resumed"
        )

    def _take_all_steps(self) -> None:
        total = self._plan.steps
        while self._step < total:
            boundary = min(total, self._next(self._evaluate_every), *self._traced())
            if self._save_every is not None:
                boundary = min(boundary, self._next(self._save_every))
            for run in self._runs:
                run.announce(boundary)
            while self._step < boundary:
                self._advance(boundary)
                # Before anything is saved: a run that resumes at this step takes the next one.
                if self._step == total or self._step % self._evaluate_every == 0:
                    self._evaluate()
                if self._stop.asked():
                    self._leave()
                if self._step == total or self._save_is_due():
                    self._save()

    def _evaluated_before(self) -> list[Evaluation]:
        """Returns what the books of a run that was at its end say of its state, if they do."""
        rows = [run.folder.released()[-1:] for run in self._runs]
        found: list[Evaluation] = [row[0] for row in rows if row and row[0]["step"] == self._step]
        return found if len(found) == len(self._runs) else []

    def _traced(self) -> list[int]:
        """Starts or stops the profiler where that was asked for; returns where it will be next."""
        if not self._trace:
            return []
        first, last = self._trace
        if self._step == first:
            jax.profiler.start_trace(self._runs[0].folder.trace())
            self._tracing = True
        if self._step >= last:
            self._end_trace()
        return [step for step in self._trace if step > self._step]

    def _end_trace(self) -> None:
        if self._tracing:
            jax.profiler.stop_trace()
        self._tracing = False

    def _next(self, every: int) -> int:
        return (self._step // every + 1) * every

    def _save_is_due(self) -> bool:
        """Says whether to save here. When a run is saved changes nothing of what it computes."""
        if self._save_every is not None:
            return self._step % self._save_every == 0
        due = time.monotonic() - self._saved > _SECONDS_PER_CHECKPOINT
        return bool(mesh.agreed(np.asarray(due)))

    def _advance(self, boundary: int) -> None:
        """Takes as many steps as fit into about a second; the first call also compiles."""
        wanted = max(1, int(self._rate * _SECONDS_PER_CALL))
        steps = int(mesh.agreed(np.asarray(min(boundary - self._step, wanted, self._runner.most))))
        begun = time.monotonic()
        self._state, released = self._runner.advance(self._state, steps)
        jax.block_until_ready(self._state.step)
        if self._step == self._first:
            self._runs = [
                run.with_rerounding(float(np.ravel(self._of(released, i).rerounding)[0]))
                for i, run in enumerate(self._runs)
            ]
        taken = time.monotonic() - begun
        if self._step > self._first:  # not while compiling
            self._rate = steps / max(taken, 1e-9)
        if mesh.is_primary():
            for i, run in enumerate(self._runs):
                run.add_steps(self._step, self._of(released, i))
        self._step += steps
        for each in self._watching:
            each.stepped(self._step, self._rate)

    def _evaluate(self) -> None:
        scores = self._runner.evaluate(self._state)
        epsilon = self._epsilon()
        self._keep_states()
        released = released_of(self._state)
        self._last = [
            run.evaluation(self._step, self._of(scores, i), self._of(released, i), epsilon)
            for i, run in enumerate(self._runs)
        ]
        for run, row in zip(self._runs, self._last, strict=True):
            if mesh.is_primary():
                run.folder.add_released(row)
                if seen := run.plan.method.diagnostics(run.state.opt_state):
                    run.folder.add_diagnostics({"step": self._step, **seen})
            if self._probe is not None:
                run.folder.add_diagnostics(self._probe(run.state))
        for each in self._watching:
            each.evaluated(self._last)

    def _epsilon(self) -> float | None:
        """Returns an epsilon that holds here: exact, where there are few evaluations.

        Of more than `_EXACT` evaluations, those in between have the epsilon of the next one that is
        computed, which is larger: computing each would cost more than the steps do.
        """
        every, total = self._evaluate_every, self._plan.steps
        count, step = -(-total // every), self._step
        if count > _EXACT:
            here, stride = -(-step // every), -(-count // _LONG)
            # The first stride has the evaluations 1, 2, 4, ...
            turn = -(-here // stride) * stride if here > stride else 1 << (here - 1).bit_length()
            step = min(total, turn * every)
        if self._spent is None or self._spent[0] != step:
            self._spent = (step, self._runs[0].epsilon(step))
        return self._spent[1]

    def _save(self) -> None:
        self._keep_states()
        for run in self._runs:
            run.save()
        self._saved, self._saved_step = time.monotonic(), self._step

    def _leave(self) -> None:
        """Saves and ends, since the process was told to."""
        if self._saved_step < self._step:
            self._save()
        self._wait()
        raise Preempted(f"told to end (SIGTERM): saved at step {self._step} of {self._plan.steps}")

    def _wait(self) -> None:
        """Waits until what was saved is on the disk."""
        for run in self._runs:
            run.checkpoints.wait()

    def _keep_states(self) -> None:
        self._runs = [
            replace(run, state=self._of(self._state, i)) for i, run in enumerate(self._runs)
        ]

    def _of(self, tree: mesh.Tree, member: int) -> mesh.Tree:
        """Returns one member's part of what the runner gives."""
        if len(self._runs) == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf[member], tree)

    def _results(self) -> list[Result]:
        self._keep_states()
        seconds = time.monotonic() - self._begun
        return [
            self._result(run, row, seconds) for run, row in zip(self._runs, self._last, strict=True)
        ]

    def _result(self, run: Run, last: Evaluation, seconds: float) -> Result:
        if mesh.is_primary():
            run.folder.write_statement(run.statement(self._step))
            run.folder.write_timing(
                {
                    "steps": self._step - self._first,
                    "seconds": seconds,
                    "members": len(self._runs),
                }
            )
        mesh.wait_for_all("the statement is written")
        return Result(
            run.folder,
            run.plan,
            last["accuracy"],
            run.ledger(self._step),
            self._epsilon(),
            last["threshold"],
            seconds,
            run.state,
        )


class _StopRequest:
    """Hears SIGTERM, by which a machine is taken away; with several processes, all agree when."""

    def __init__(self) -> None:
        self._heard = threading.Event()
        self._asked = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listens while steps are taken; JAX listens itself where it runs several processes."""
        main = threading.current_thread() is threading.main_thread()
        if not main or jax.process_count() > 1:
            yield
            return
        before = signal.signal(signal.SIGTERM, lambda number, frame: self._heard.set())
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def asked(self) -> bool:
        """Says whether to end now; every process asks equally often."""
        self._asked += 1
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(self._asked)
        return self._heard.is_set()
