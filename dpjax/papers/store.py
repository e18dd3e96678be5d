"""A store of finished runs: text files that can be committed, and folders of unfinished runs."""

import csv
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dpjax import _json, noise
from dpjax._files import write_atomically
from dpjax.accounting import Ledger
from dpjax.papers.greedy_thresholds import GreedySearch, Thresholds
from dpjax.papers.plateaus import PlateauSearch
from dpjax.papers.prerequisites import Findings, Prerequisite
from dpjax.papers.recipe import Override, Recipe, SeededRun
from dpjax.train.folder import RunFolder

__all__ = ["CurvePoint", "RunRecord", "Store", "recorded"]

_KINDS = {
    int: ("seed", "steps", "batch_size"),
    str: ("experiment", "data", "model", "method", "noise_definition"),
}  # the types of columns that are not floats


@dataclass(frozen=True)
class RunRecord:
    """One finished run; a row of a store's runs.csv.

    Attributes:
        experiment: the leading digits of the experiment's hash.
        seed: its seed.
        data: the data set.
        model: the network.
        method: the method's name.
        noise_multiplier: the first sigma.
        steps: T.
        batch_size: the expected batch size; None for full batches.
        delta: its delta.
        target: the requested epsilon; None if the noise was given.
        epsilon_rdp: the epsilon of the run by RDP; None without a guarantee.
        epsilon_pld: the same by PLD.
        accuracy: the final test accuracy, as a fraction.
        threshold: the last threshold.
        seconds: wall-clock time, mostly on one core.
        noise_definition: `dpjax.noise.DEFINITION` when the run started.
    """

    experiment: str
    seed: int
    data: str
    model: str
    method: str
    noise_multiplier: float
    steps: int
    batch_size: int | None
    delta: float
    target: float | None
    epsilon_rdp: float | None
    epsilon_pld: float | None
    accuracy: float
    threshold: float | None
    seconds: float
    noise_definition: str

    @property
    def key(self) -> str:
        """The run's name in the store."""
        return f"{self.experiment}-{self.seed}"

    @classmethod
    def from_row(cls, row: dict[str, str]) -> "RunRecord":
        """Reads a row of runs.csv.

        Args:
            row: the cells by column.

        Returns:
            The record; an empty cell becomes None.
        """
        values: dict[str, Any] = {}
        for column in fields(cls):
            text = row[column.name]
            kind = next((k for k, names in _KINDS.items() if column.name in names), float)
            values[column.name] = kind(text) if text else None
        return cls(**values)

    def to_row(self) -> dict[str, Any]:
        """Returns a row of runs.csv; None becomes an empty cell."""
        return {
            column.name: "" if (value := getattr(self, column.name)) is None else value
            for column in fields(self)
        }


class CurvePoint(NamedTuple):
    """One evaluation of a run; a row of a store's curves.csv.

    Attributes:
        key: the run's name in the store.
        epoch: the epochs that were trained.
        accuracy: the test accuracy, as a fraction.
        threshold: the threshold; None if there is none.
        sigma: the noise multiplier of the step.
    """

    key: str
    epoch: float
    accuracy: float
    threshold: float | None
    sigma: float


def recorded(
    run: SeededRun, folder: RunFolder, seconds: float
) -> tuple[RunRecord, list[CurvePoint]]:
    """Returns the record of a finished run, and its evaluations.

    Args:
        run: the run.
        folder: its folder.
        seconds: how long it took.
    """
    resolved, rows = folder.read_config(), folder.released()
    # Auto DP-SGD as printed has no public threshold; its formula uses this data-dependent number.
    seen = [
        row["average_sensitivity"] for row in folder.diagnostics() if "average_sensitivity" in row
    ]
    last, ledger = rows[-1], folder.read_ledger()
    delta = float(resolved.privacy.delta)
    record = RunRecord(
        run.key.rpartition("-")[0],
        run.seed,
        resolved.data.name,
        resolved.model.name,
        str(run.experiment.method["name"]),
        _number(rows[0]["sigma"]) or 0.0,
        int(last["step"]),
        resolved.train.batch_size,
        delta,
        run.experiment.privacy.epsilon,
        _epsilon(ledger, delta, "rdp"),
        _epsilon(ledger, delta, "pld"),
        round(float(last["accuracy"]), 6),
        _number(seen[-1] if seen else last["threshold"]),
        round(seconds, 1),
        str(folder.identity().environment["noise"]),
    )
    points = [
        CurvePoint(
            run.key,
            round(float(row["epoch"]), 4),
            round(float(row["accuracy"]), 6),
            _number(row["threshold"]),
            _number(row["sigma"]) or 0.0,
        )
        for row in rows
    ]
    return record, points


def _epsilon(ledger: Ledger | None, delta: float, accountant: str) -> float | None:
    """Returns the epsilon of a run; None if it has no guarantee, or no finite epsilon."""
    if ledger is None:
        return None
    try:
        found = float(ledger.epsilon(delta, accountant))
    except (ArithmeticError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _number(value: Any) -> float | None:
    """Returns a finite number or None; per-group thresholds become their L2 norm."""
    if isinstance(value, list):
        return math.sqrt(sum(float(v) ** 2 for v in value))
    return None if value is None or not math.isfinite(float(value)) else float(value)


@dataclass(frozen=True)
class Store:
    """Finished runs, by experiment and seed.

    ``runs.csv`` has a row for each run, ``curves.csv`` one for each evaluation,
    ``experiments.jsonl`` the experiments by their hashes, ``findings.jsonl`` the thresholds and
    noises that experiments waited for, and ``work/`` the folders of unfinished runs.

    Args:
        path: the folder.

    Example:
        >>> store = Store(Path("empty"))
        >>> store.records, store.findings.noises
        ({}, {})
    """

    path: Path

    def work(self, run: SeededRun) -> RunFolder:
        """Returns the folder in which a run trains."""
        return RunFolder(self.path / "work" / run.key)

    @cached_property
    def records(self) -> dict[str, RunRecord]:
        """The finished runs by their keys, as of the first access."""
        with self._as_written("runs.csv"):
            return {row.key: row for row in map(RunRecord.from_row, self._rows("runs.csv"))}

    @cached_property
    def curves(self) -> dict[str, list[CurvePoint]]:
        """The evaluations of the finished runs, by the runs' keys."""
        found: dict[str, list[CurvePoint]] = {}
        with self._as_written("curves.csv"):
            for row in self._rows("curves.csv"):
                threshold = float(row["threshold"]) if row["threshold"] else None
                epoch, accuracy, sigma = (float(row[n]) for n in ("epoch", "accuracy", "sigma"))
                point = CurvePoint(row["key"], epoch, accuracy, threshold, sigma)
                found.setdefault(point.key, []).append(point)
        return found

    @cached_property
    def experiments(self) -> dict[str, dict[str, Any]]:
        """The experiments of the finished runs as plain data, by their hashes."""
        with self._as_written("experiments.jsonl"):
            return {line["experiment"]: line for line in self._lines("experiments.jsonl")}

    @cached_property
    def findings(self) -> Findings:
        """The known results of prerequisites."""
        thresholds, noises, plateaus = {}, {}, {}
        with self._as_written("findings.jsonl"):
            for line in self._lines("findings.jsonl"):
                if "noise" in line:
                    noises[line["key"]] = line["noise"]
                elif "epochs" in line:
                    plateaus[line["key"]] = tuple(line["epochs"])
                else:
                    thresholds[line["key"]] = Thresholds(
                        tuple(line["thresholds"]),
                        tuple(line["accuracies"]),
                        int(line["trials"]),
                        tuple(line["first"]),
                    )
        return Findings(thresholds, noises, plateaus)

    def add(self, run: SeededRun, record: RunRecord, points: Sequence[CurvePoint]) -> None:
        """Adds a finished run, unless the store already has it."""
        fresh = Store(self.path)
        if run.key in fresh.records:
            return
        names = [field.name for field in fields(RunRecord)]
        self._append("curves.csv", CurvePoint._fields, [_row(point) for point in points])
        if record.experiment not in fresh.experiments:
            plain = run.experiment.to_plain()
            del plain["run"]
            self._append_line("experiments.jsonl", {"experiment": record.experiment, **plain})
        # The row comes last: it marks the run as finished.
        self._append("runs.csv", names, [record.to_row()])
        self._forget()

    def add_finding(
        self, wanted: Prerequisite, found: Thresholds | tuple[int, ...] | float
    ) -> None:
        """Adds the result of a prerequisite, together with the prerequisite."""
        line: dict[str, Any] = {"key": wanted.key}
        plain = wanted.experiment.to_plain()
        del plain["run"]
        if isinstance(wanted, GreedySearch) and isinstance(found, Thresholds):
            numbers = {"start": wanted.start, "step": wanted.step, "fall": wanted.fall}
            line |= {**found._asdict(), **numbers, "repeats": wanted.repeats}
            line["noise_definition"] = noise.DEFINITION
        elif isinstance(wanted, PlateauSearch):
            numbers = {"factor": wanted.factor, "patience": wanted.patience}
            line |= {"epochs": found, **numbers, "threshold": wanted.threshold}
            line["noise_definition"] = noise.DEFINITION
        elif not isinstance(wanted, GreedySearch):
            line |= {"noise": found, "way": wanted.way, "candidates": wanted.candidates}
        self._append_line("findings.jsonl", {**line, "experiment": plain})
        self._forget()

    def done(self, runs: Iterable[SeededRun]) -> list[RunRecord]:
        """Returns the records of those runs that are finished."""
        return [self.records[run.key] for run in runs if run.key in self.records]

    def choice(self, recipe: Recipe) -> Override | None:
        """Returns the best candidate of a recipe; None while the search is unfinished."""
        candidates = recipe.candidates()
        if not candidates:
            return recipe.only_choice
        scores = [self.records[run.key].accuracy for run in candidates if run.key in self.records]
        if len(scores) < len(candidates):
            return None
        return recipe.grid[scores.index(max(scores))]

    def discard_work(self, run: SeededRun) -> None:
        """Removes the folder of a recorded run, because its checkpoints hold keys."""
        shutil.rmtree(self.work(run).path, ignore_errors=True)

    @contextmanager
    def _as_written(self, name: str) -> Iterator[None]:
        """Turns errors in the contents of a file into a ValueError that names the file."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, RecursionError) as error:
            raise ValueError(f"{self.path / name}: expected what dpjax wrote: {error!r}") from error
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path / name}: expected what dpjax wrote: {error}") from error

    def _forget(self) -> None:
        for name in ("records", "curves", "experiments", "findings"):
            self.__dict__.pop(name, None)

    def _rows(self, name: str) -> list[dict[str, str]]:
        file = self.path / name
        if not file.exists():
            return []
        with file.open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))

    def _lines(self, name: str) -> list[dict[str, Any]]:
        file = self.path / name
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def _append(self, name: str, header: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
        file = self.path / name
        self.path.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_atomically(file, ",".join(header) + "\n")
        with file.open("a", newline="", encoding="utf-8") as stream:
            csv.DictWriter(stream, header, lineterminator="\n").writerows(rows)

    def _append_line(self, name: str, line: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / name).open("a", encoding="utf-8") as stream:
            stream.write(_json.dumps(line) + "\n")


def _row(point: CurvePoint) -> dict[str, Any]:
    return {name: "" if value is None else value for name, value in point._asdict().items()}
