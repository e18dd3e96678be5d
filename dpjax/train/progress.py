"""Progress displays: a bar, lines or TensorBoard curves, all from released numbers only."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import rich.console
import rich.progress

from dpjax._toml import Table
from dpjax.accounting.bound import rounded_up
from dpjax.train.plan import Plan

__all__ = ["Bar", "Evaluation", "Lines", "Progress", "TensorBoard", "progress_for"]

_SECONDS_PER_LINE = 10.0

Evaluation: TypeAlias = Table
"""A line of ``released.jsonl``: step, epoch, accuracy, loss, threshold, sigma, epsilon, delta."""


class Progress:
    """Is notified of a run's released numbers and speed; this base class displays nothing.

    Args:
        callback: called after every evaluation with its numbers, one table per member.
    """

    def __init__(self, callback: Callable[[Sequence[Evaluation]], None] | None = None) -> None:
        """Stores the callback."""
        self._callback = callback

    def begin(self, plan: Plan, step: int) -> None:
        """Called when a run begins, or resumes at a step."""

    def stepped(self, step: int, rate: float) -> None:
        """Called after steps were taken, at `rate` steps per second."""

    def evaluated(self, rows: Sequence[Evaluation]) -> None:
        """Called after an evaluation, with the public numbers of each member."""
        if self._callback is not None:
            self._callback(rows)

    def end(self) -> None:
        """Called when the run is over, also after an error."""


class Lines(Progress):
    """Prints a line at most every ten seconds, for logs.

    Args:
        label: a name for the run.
    """

    _printed = -math.inf  # time of the last line; shared by successive runs, to keep logs short

    def __init__(self, label: str = "") -> None:
        """Prints nothing yet."""
        self._label = f"{label}: " if label else ""
        self._numbers = ""

    def begin(self, plan: Plan, step: int) -> None:
        """Stores the number of steps."""
        self._steps, self._step, self._rate = plan.steps, step, 0.0

    def stepped(self, step: int, rate: float) -> None:
        """Prints how far the run is, if the last line is old enough."""
        self._step, self._rate = step, rate
        self._print(2 * _SECONDS_PER_LINE)

    def evaluated(self, rows: Sequence[Evaluation]) -> None:
        """Prints the newest numbers, if the last line is old enough."""
        self._step, self._numbers = rows[0]["step"], describe(rows)
        self._print(_SECONDS_PER_LINE)

    def _print(self, seconds: float) -> None:
        now = time.monotonic()
        if now - Lines._printed < seconds:
            return
        rate = f"  {self._rate:.1f} steps/s" if self._rate else ""
        numbers = f"  {self._numbers}" if self._numbers else ""
        print(f"{self._label}step {self._step}/{self._steps}{numbers}{rate}", file=sys.stderr)
        Lines._printed = now


class Bar(Progress):
    """Shows a bar with accuracy, threshold, epsilon and steps per second.

    Args:
        label: a name for the run.
        stderr: whether to show it on stderr rather than stdout.
    """

    def __init__(self, label: str = "", stderr: bool = False) -> None:
        """Shows nothing yet."""
        self._label = label
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=24),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[numbers]}"),
            rich.progress.TextColumn("{task.fields[rate]}"),
            rich.progress.TimeRemainingColumn(),
            console=rich.console.Console(stderr=stderr),
        )

    def begin(self, plan: Plan, step: int) -> None:
        """Shows the bar."""
        name = self._label or plan.name
        self._bar.start()
        self._task = self._bar.add_task(
            name, total=plan.steps, completed=step, numbers="compiling", rate=""
        )

    def stepped(self, step: int, rate: float) -> None:
        """Moves the bar."""
        shown = f"{rate:.1f} steps/s" if rate else ""
        self._bar.update(self._task, completed=step, rate=shown)

    def evaluated(self, rows: Sequence[Evaluation]) -> None:
        """Shows the newest numbers."""
        self._bar.update(self._task, numbers=describe(rows))

    def end(self) -> None:
        """Leaves the bar on the screen."""
        self._bar.stop()


class TensorBoard(Progress):
    """Writes curves of the released numbers for TensorBoard; needs ``dpjax[watch]``.

    Args:
        folder: the folder for its files; with several members, each has a subfolder.
    """

    def __init__(self, folder: Path) -> None:
        """Creates no file yet."""
        from tensorboardX import SummaryWriter  # noqa: PLC0415 (an optional extra)

        self._folder, self._make = folder, SummaryWriter
        self._writers: list[SummaryWriter] = []

    def evaluated(self, rows: Sequence[Evaluation]) -> None:
        """Adds a point to every curve."""
        if not self._writers:
            inside = [f"member-{i}" if len(rows) > 1 else "" for i in range(len(rows))]
            self._writers = [self._make(str(self._folder / name)) for name in inside]
        for writer, row in zip(self._writers, rows, strict=True):
            for name, value in row.items():
                if isinstance(value, float | int) and name not in ("step", "delta"):
                    writer.add_scalar(name, value, row["step"])

    def end(self) -> None:
        """Flushes and closes the files."""
        for writer in self._writers:
            writer.close()


def progress_for(label: str = "", quiet: bool = False) -> Progress:
    """Returns a bar if stderr or stdout is a terminal, otherwise lines; if `quiet`, neither."""
    if quiet:
        return Progress()
    if sys.stderr.isatty() or sys.stdout.isatty():
        return Bar(label, stderr=sys.stderr.isatty())
    return Lines(label)


def describe(rows: Sequence[Evaluation]) -> str:
    """Returns the numbers of an evaluation in words.

    >>> row = {"accuracy": 0.912, "threshold": 0.51, "epsilon": 1.2345}
    >>> describe([row, {**row, "accuracy": 0.9}])
    'accuracy 90.60% (2 members)  C 0.51  epsilon 1.235'
    """
    several = f" ({len(rows)} members)" if len(rows) > 1 else ""
    parts = [f"accuracy {np.mean([row['accuracy'] for row in rows]):.2%}{several}"]
    if rows[0]["threshold"] is not None:
        values = np.atleast_1d(np.asarray(rows[0]["threshold"], np.float64))
        shown = (
            f"{values[0]:.3g}" if len(values) == 1 else f"{values.min():.3g}..{values.max():.3g}"
        )
        parts.append(f"C {shown}")
    epsilon = rows[0]["epsilon"]
    parts.append("no guarantee" if epsilon is None else f"epsilon {rounded_up(epsilon)}")
    return "  ".join(parts)
