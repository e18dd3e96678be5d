"""A store of finished runs: text files that can be committed, and the runs' folders beside them."""

import csv
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from dpjax import _json, noise
from dpjax.reproduce.findings import Findings, Question
from dpjax.reproduce.greedy import GreedySearch, Thresholds
from dpjax.reproduce.recipe import Override, Recipe, Run
from dpjax.reproduce.record import Point, Record
from dpjax.train.folder import RunFolder, write_atomically

__all__ = ["Store"]


@dataclass(frozen=True)
class Store:
    """Finished runs, by experiment and seed.

    ``runs.csv`` a row for each; ``curves.csv`` a row for each evaluation; ``experiments.jsonl`` the
    experiments by their hashes; ``found.jsonl`` thresholds and noises that experiments waited for;
    ``work/`` the folders of runs that are not finished.

    Args:
        path: the folder.
    """

    path: Path

    def work(self, run: Run) -> RunFolder:
        """Returns the folder in which a run trains."""
        return RunFolder(self.path / "work" / run.key)

    @cached_property
    def records(self) -> dict[str, Record]:
        """The finished runs by their keys, as they were when first asked for."""
        with self._as_written("runs.csv"):
            return {row.key: row for row in map(Record.from_row, self._rows("runs.csv"))}

    @cached_property
    def curves(self) -> dict[str, list[Point]]:
        """The evaluations of the finished runs, by the runs' keys."""
        found: dict[str, list[Point]] = {}
        with self._as_written("curves.csv"):
            for row in self._rows("curves.csv"):
                threshold = float(row["threshold"]) if row["threshold"] else None
                epoch, accuracy, sigma = (float(row[n]) for n in ("epoch", "accuracy", "sigma"))
                point = Point(row["key"], epoch, accuracy, threshold, sigma)
                found.setdefault(point.key, []).append(point)
        return found

    @cached_property
    def findings(self) -> Findings:
        """The thresholds and noises that were found."""
        thresholds, noises = {}, {}
        with self._as_written("found.jsonl"):
            for line in self._lines("found.jsonl"):
                if "noise" in line:
                    noises[line["key"]] = line["noise"]
                else:
                    thresholds[line["key"]] = Thresholds(
                        tuple(line["thresholds"]),
                        tuple(line["accuracies"]),
                        int(line["trials"]),
                        tuple(line["first"]),
                    )
        return Findings(thresholds, noises)

    def add(self, run: Run, record: Record, points: Sequence[Point]) -> None:
        """Adds a finished run; one that is there already is left as it is."""
        fresh = Store(self.path)
        if run.key in fresh.records:
            return
        names = [field.name for field in fields(Record)]
        self._append("curves.csv", Point._fields, [_row(point) for point in points])
        known = {line["experiment"] for line in self._lines("experiments.jsonl")}
        if record.experiment not in known:
            plain = run.experiment.to_plain()
            del plain["run"]
            self._append_line("experiments.jsonl", {"experiment": record.experiment, **plain})
        # The row comes last: a run is finished when it is there.
        self._append("runs.csv", names, [record.to_row()])
        self._forget()

    def add_finding(self, question: Question, found: Thresholds | float) -> None:
        """Adds what an experiment waited for, with the question, so that it can be read."""
        line: dict[str, Any] = {"key": question.key}
        plain = question.experiment.to_plain()
        del plain["run"]
        if isinstance(question, GreedySearch) and isinstance(found, Thresholds):
            numbers = {"start": question.start, "step": question.step, "fall": question.fall}
            line |= {**found._asdict(), **numbers, "repeats": question.repeats}
            line["noise_definition"] = noise.DEFINITION
        elif not isinstance(question, GreedySearch):
            line |= {"noise": found, "way": question.way, "candidates": question.candidates}
        self._append_line("found.jsonl", {**line, "experiment": plain})
        self._forget()

    def done(self, runs: Iterable[Run]) -> list[Record]:
        """Returns the records of those runs that are finished."""
        return [self.records[run.key] for run in runs if run.key in self.records]

    def choice(self, recipe: Recipe) -> Override | None:
        """Returns the candidate of a recipe that did best; None while some are not finished."""
        candidates = recipe.candidates()
        if not candidates:
            return recipe.only_choice
        scores = [self.records[run.key].accuracy for run in candidates if run.key in self.records]
        if len(scores) < len(candidates):
            return None
        return recipe.grid[scores.index(max(scores))]

    def discard_work(self, run: Run) -> None:
        """Removes the folder of a run that is recorded: its checkpoints hold keys."""
        shutil.rmtree(self.work(run).path, ignore_errors=True)

    @contextmanager
    def _as_written(self, name: str) -> Iterator[None]:
        """Names the file that does not hold what dpjax writes."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, RecursionError) as error:
            raise ValueError(f"{self.path / name}: expected what dpjax wrote: {error!r}") from error
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path / name}: expected what dpjax wrote: {error}") from error

    def _forget(self) -> None:
        for name in ("records", "curves", "findings"):
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


def _row(point: Point) -> dict[str, Any]:
    return {name: "" if value is None else value for name, value in point._asdict().items()}
