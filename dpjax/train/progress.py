"""What a person sees while a run goes on: a bar on a terminal, lines elsewhere."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import rich.progress

from dpjax.accounting.bound import rounded_up
from dpjax.train.plan import Plan

__all__ = ["Bar", "Lines", "Progress", "progress_for"]


class Progress:
    """Is told how a run goes, and says nothing."""

    def begin(self, plan: Plan, step: int) -> None:
        """A run begins, or goes on from a step."""

    def stepped(self, step: int, rate: float) -> None:
        """Steps were taken, `rate` of them a second."""

    def evaluated(
        self, step: int, accuracies: Sequence[float], threshold: Any, epsilon: float | None
    ) -> None:
        """The parameters were evaluated."""

    def end(self) -> None:
        """The run is over."""


class Lines(Progress):
    """A line for each evaluation, for logs."""

    def __init__(self, label: str = "") -> None:
        """Takes what the run is called."""
        self._label = f"{label}: " if label else ""
        self._rate = 0.0

    def begin(self, plan: Plan, step: int) -> None:
        """Keeps how many steps there are."""
        self._steps = plan.steps

    def stepped(self, step: int, rate: float) -> None:
        """Keeps the rate."""
        self._rate = rate

    def evaluated(
        self, step: int, accuracies: Sequence[float], threshold: Any, epsilon: float | None
    ) -> None:
        """Prints the line."""
        numbers = describe(accuracies, threshold, epsilon)
        rate = f"  {self._rate:.1f} steps/s" if self._rate else ""
        print(f"{self._label}step {step}/{self._steps}  {numbers}{rate}", file=sys.stderr)


class Bar(Progress):
    """A bar with accuracy, threshold, epsilon and steps a second."""

    def __init__(self, label: str = "") -> None:
        """Takes what the run is called."""
        self._label = label
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=24),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[numbers]}"),
            rich.progress.TextColumn("{task.fields[rate]}"),
            rich.progress.TimeRemainingColumn(),
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

    def evaluated(
        self, step: int, accuracies: Sequence[float], threshold: Any, epsilon: float | None
    ) -> None:
        """Shows the newest numbers."""
        self._bar.update(self._task, numbers=describe(accuracies, threshold, epsilon))

    def end(self) -> None:
        """Leaves the bar as it is."""
        self._bar.stop()


def progress_for(label: str = "", quiet: bool = False) -> Progress:
    """Returns a bar on a terminal, lines elsewhere, nothing if that is asked for."""
    if quiet:
        return Progress()
    return Bar(label) if sys.stderr.isatty() and sys.stdout.isatty() else Lines(label)


def describe(accuracies: Sequence[float], threshold: Any, epsilon: float | None) -> str:
    """Returns the numbers of an evaluation in words.

    >>> describe([0.912, 0.9], 0.51, 1.2345)
    'accuracy 90.60% (2 members)  C 0.51  epsilon 1.235'
    """
    several = f" ({len(accuracies)} members)" if len(accuracies) > 1 else ""
    parts = [f"accuracy {np.mean(accuracies):.2%}{several}"]
    values = np.atleast_1d(np.asarray(threshold, np.float64))
    if not np.isnan(values).any():
        shown = (
            f"{values[0]:.3g}" if len(values) == 1 else f"{values.min():.3g}..{values.max():.3g}"
        )
        parts.append(f"C {shown}")
    parts.append("no guarantee" if epsilon is None else f"epsilon {rounded_up(epsilon)}")
    return "  ".join(parts)
