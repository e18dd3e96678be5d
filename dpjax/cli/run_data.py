"""Runs as figures and tables show them: read from their folders, with a name each."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpjax.train.config import Experiment
from dpjax.train.folder import RunFolder, refuse_links

__all__ = ["Run", "read_run", "read_runs"]


@dataclass(frozen=True)
class Run:
    """What a run released.

    Attributes:
        label: its name in a figure.
        folder: where it is.
        experiment: its resolved config.
        released: its evaluations.
        steps: the public numbers of its steps, by column.
    """

    label: str
    folder: RunFolder
    experiment: Experiment
    released: list[dict[str, Any]]
    steps: dict[str, list[Any]]

    @property
    def plots(self) -> Path:
        """The folder of its figures, which is made if it is not there."""
        refuse_links(self.folder.path)
        folder = self.folder.path / "plots"
        folder.mkdir(exist_ok=True)
        return folder

    def column(self, name: str) -> list[Any]:
        """Returns a number of all evaluations."""
        return [row[name] for row in self.released]

    def thresholds(self) -> list[list[float]]:
        """Returns C_t of every step, one list for each group of parameters."""
        rows = [c if isinstance(c, list) else [c] for c in self.steps["threshold"]]
        return [list(group) for group in zip(*rows, strict=True)]


def read_run(folder: RunFolder, label: str = "") -> Run:
    """Reads a run; its label is its method's name unless one is given.

    A run without an evaluation is refused: there is nothing to show.
    """
    experiment = folder.read_config()
    released = folder.released()
    if not released:
        raise ValueError(f"{folder.path}: expected a line in released.jsonl, for an evaluation")
    name = label or str(experiment.method.get("name", "mechanism"))
    return Run(name, folder, experiment, released, folder.steps())


def read_runs(paths: Sequence[str]) -> list[Run]:
    """Reads runs, with folder names in the labels where methods are the same."""
    places = [Path(path).resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"{path}: given twice; expected every run once")
    runs = [read_run(RunFolder(Path(path))) for path in paths]
    runs = _told_apart(runs, lambda run: f"{run.label} ({run.folder.path.resolve().name})")
    return _told_apart(runs, lambda run: f"{run.label} ({run.folder.path})")


def _told_apart(runs: Sequence[Run], longer: Callable[[Run], str]) -> list[Run]:
    counts = Counter(run.label for run in runs)
    return [replace(run, label=longer(run)) if counts[run.label] > 1 else run for run in runs]
