"""What is kept of a finished run: a row of numbers, and its curve."""

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from dpjax.accounting import Ledger
from dpjax.reproduce.recipe import Run
from dpjax.train.folder import RunFolder

__all__ = ["Point", "Record", "recorded"]

_KINDS = {
    int: ("seed", "steps", "batch_size"),
    str: ("experiment", "data", "model", "method", "noise_definition"),
}  # of columns that hold no float


@dataclass(frozen=True)
class Record:
    """One finished run; a row of a store's runs.csv.

    Attributes:
        experiment: the hash of the experiment, as far as it names the run.
        seed: its seed.
        data: the data set.
        model: the network.
        method: the method's name.
        noise_multiplier: the first sigma.
        steps: T.
        batch_size: the expected one; None for full batches.
        delta: its delta.
        target: the epsilon that was asked for; None where the noise was given.
        epsilon_rdp: the epsilon of the run by RDP; None without a guarantee.
        epsilon_pld: the same by PLD.
        accuracy: on the test set at the end, as a fraction.
        threshold: the last threshold.
        seconds: how long it took, of one core mostly.
        noise_definition: how its noise was drawn, `dpjax.noise.DEFINITION` when it was begun.
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
    def from_row(cls, row: dict[str, str]) -> "Record":
        """Reads a row of runs.csv."""
        values: dict[str, Any] = {}
        for column in fields(cls):
            text = row[column.name]
            kind = next((k for k, names in _KINDS.items() if column.name in names), float)
            values[column.name] = kind(text) if text else None
        return cls(**values)

    def to_row(self) -> dict[str, Any]:
        """Returns a row of runs.csv; what is missing is empty."""
        return {
            column.name: "" if (value := getattr(self, column.name)) is None else value
            for column in fields(self)
        }


class Point(NamedTuple):
    """One evaluation of a run; a row of a store's curves.csv."""

    key: str
    epoch: float
    accuracy: float
    threshold: float | None
    sigma: float


def recorded(run: Run, folder: RunFolder, seconds: float) -> tuple[Record, list[Point]]:
    """Returns what is kept of a run that is at its end.

    Args:
        run: the run.
        folder: where it is.
        seconds: how long it took.
    """
    resolved, rows = folder.read_config(), folder.released()
    last, ledger = rows[-1], folder.read_ledger()
    delta = float(resolved.privacy.delta)
    record = Record(
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
        _number(last["threshold"]),
        round(seconds, 1),
        folder.identity().environment.noise,
    )
    points = [
        Point(
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
    """Returns the cost of a run; None without a guarantee, or where it is beyond all numbers."""
    if ledger is None:
        return None
    try:
        found = float(ledger.epsilon(delta, accountant))
    except (ArithmeticError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _number(value: Any) -> float | None:
    """Returns a number; of thresholds by group, their root of summed squares."""
    if isinstance(value, list):
        return math.sqrt(sum(float(v) ** 2 for v in value))
    return None if value is None or not math.isfinite(float(value)) else float(value)
