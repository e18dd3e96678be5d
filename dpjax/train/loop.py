"""The loop: steps, evaluations and checkpoints of runs that advance in lockstep."""

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

_SECONDS_PER_CALL = 1.0  # about how often the progress bar should move
_EXACT = 100  # up to this many evaluations compute an exact epsilon, which takes up to 0.5 s each
_LONG = 12  # with more evaluations, this many do, and a few more at the start
_SECONDS_PER_CHECKPOINT = 60.0  # about how much work a kill may cost, by default


class Preempted(Exception):
    """The process received SIGTERM; the run was saved and can be resumed."""


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        folder: the run's folder.
        plan: the plan that was run.
        accuracy: on the held-out examples.
        ledger: what was released; None without a guarantee.
        epsilon: what was spent; None without a guarantee.
        threshold: the last threshold; None if there is none.
        seconds: how long this process spent on it.
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
        """Returns the evaluations as a pandas frame, one row each; needs ``dpjax[watch]``."""
        import pandas  # noqa: PLC0415 (an optional extra)

        return pandas.DataFrame(self.folder.released())


class Loop:
    """Takes all steps of runs that advance in lockstep; usually there is only one.

    The final states are the same byte for byte however the steps are divided into calls, and
    however often the process is killed and resumes from a checkpoint in the same environment.

    Args:
        runs: the runs, all at the same step, with the same releases so far and still to come.
        runner: takes their steps; for several runs, one for stacked states.
        watching: progress displays, notified of steps and evaluations.
        probe: measures gradients without noise at every evaluation; None for no measurements.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        runner: Runner,
        watching: Sequence[Progress],
        probe: Probe | None,
    ) -> None:
        """Starts at the step that the runs have reached."""
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
        """Takes the remaining steps, and returns the result of each run."""
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
            if jax.process_count() == 1:  # waiting for other processes might never end
                with suppress(OSError):  # the first error is the one to report
                    self._wait()
            raise
        finally:
            self._end_trace()
            for each in self._watching:
                each.end()  # also on Ctrl-C, because a bar hides the cursor
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
                # Evaluate before saving: a run that resumes here goes straight to the next step.
                if self._step == total or self._step % self._evaluate_every == 0:
                    self._evaluate()
                if self._stop.asked():
                    self._leave()
                if self._step == total or self._save_is_due():
                    self._save()

    def _evaluated_before(self) -> list[Evaluation]:
        """Returns the stored evaluations of runs that were complete; [] if any is missing."""
        rows = [run.folder.released()[-1:] for run in self._runs]
        found: list[Evaluation] = [row[0] for row in rows if row and row[0]["step"] == self._step]
        return found if len(found) == len(self._runs) else []

    def _traced(self) -> list[int]:
        """Starts or stops the profiler if it is due; returns the later steps at which it is."""
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
        """Returns whether to save here; when a run is saved does not affect its results."""
        if self._save_every is not None:
            return self._step % self._save_every == 0
        due = time.monotonic() - self._saved > _SECONDS_PER_CHECKPOINT
        return bool(mesh.agreed(np.asarray(due)))

    def _advance(self, boundary: int) -> None:
        """Takes as many steps as fit in about a second; the first call also compiles."""
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
        """Returns an upper bound on the epsilon so far: the exact one if evaluations are few.

        With more than `_EXACT` evaluations, it is computed for some of them only, since it would
        take longer than the steps. The others report the next computed value, which is larger.
        """
        every, total = self._evaluate_every, self._plan.steps
        count, step = -(-total // every), self._step
        if count > _EXACT:
            here, stride = -(-step // every), -(-count // _LONG)
            # Within the first stride, it is computed at evaluations 1, 2, 4, ...
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
        """Saves and stops, because the process was asked to."""
        if self._saved_step < self._step:
            self._save()
        self._wait()
        raise Preempted(f"told to end (SIGTERM): saved at step {self._step} of {self._plan.steps}")

    def _wait(self) -> None:
        """Waits until the checkpoints are on disk."""
        for run in self._runs:
            run.checkpoints.wait()

    def _keep_states(self) -> None:
        self._runs = [
            replace(run, state=self._of(self._state, i)) for i, run in enumerate(self._runs)
        ]

    def _of(self, tree: mesh.Tree, member: int) -> mesh.Tree:
        """Returns one member's part of what the runner returns."""
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
    """Catches SIGTERM, sent before a machine is taken away; processes agree on when to stop."""

    def __init__(self) -> None:
        self._heard = threading.Event()
        self._asked = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listens while steps are taken; with several processes, JAX itself listens."""
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
        """Returns whether to stop now; every process must ask equally often."""
        self._asked += 1
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(self._asked)
        return self._heard.is_set()
