"""What a person sees while a run goes: a bar, lines, curves. All of it is released."""

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
    """Is told how a run goes: released numbers only, and its speed. It shows nothing itself.

    Args:
        callback: called after every evaluation with its numbers, a table for each member.
    """

    def __init__(self, callback: Callable[[Sequence[Evaluation]], None] | None = None) -> None:
        """Keeps the function."""
        self._callback = callback

    def begin(self, plan: Plan, step: int) -> None:
        """A run begins, or resumes at a step."""

    def stepped(self, step: int, rate: float) -> None:
        """Steps were taken, `rate` of them a second."""

    def evaluated(self, rows: Sequence[Evaluation]) -> None:
        """The parameters were evaluated: the public numbers of each member."""
        if self._callback is not None:
            self._callback(rows)

    def end(self) -> None:
        """The run is over."""


class Lines(Progress):
    """A line every ten seconds at most, for logs.

    Args:
        label: what the run is called.
    """

    _printed = -math.inf  # when; runs one after another share it, and a log stays short

    def __init__(self, label: str = "") -> None:
        """Prints nothing yet."""
        self._label = f"{label}: " if label else ""
        self._numbers = ""

    def begin(self, plan: Plan, step: int) -> None:
        """Keeps how many steps there are."""
        self._steps, self._step, self._rate = plan.steps, step, 0.0

    def stepped(self, step: int, rate: float) -> None:
        """Prints how far the run is, if the last line is old."""
        self._step, self._rate = step, rate
        self._print(2 * _SECONDS_PER_LINE)

    def evaluated(self, rows: Sequence[Evaluation]) -> None:
        """Prints the newest numbers, if the last line is old."""
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
    """A bar with accuracy, threshold, epsilon and steps a second.

    Args:
        label: what the run is called.
        stderr: whether it is shown on stderr, and not on stdout.
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
        """Leaves the bar as it is."""
        self._bar.stop()


class TensorBoard(Progress):
    """Curves of the released numbers in TensorBoard; needs ``dpjax[watch]``.

    Args:
        folder: where its files go; several members have folders inside.
    """

    def __init__(self, folder: Path) -> None:
        """Makes no file yet."""
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
        """Writes what is left."""
        for writer in self._writers:
            writer.close()


def progress_for(label: str = "", quiet: bool = False) -> Progress:
    """Returns a bar if stderr or stdout is a terminal, lines if not, nothing if asked for."""
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
