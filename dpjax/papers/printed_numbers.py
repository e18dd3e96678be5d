"""The papers' printed results: one cell for each number in their tables of results."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from dpjax import _checks
from dpjax.data import source_of

__all__ = [
    "METRICS",
    "PAPERS",
    "SCORES",
    "Cell",
    "cell_named",
    "cells",
    "select",
    "tables",
    "training_size",
]

PAPERS = {
    "DC-SGD": "dc-sgd",
    "Lin": "lin",
    "AutoDP": "auto-dp",
    "PSASC": "psasc",
    "AutoClip": "auto-clip",
    "De": "de",
}
"""The papers: their names in printed.csv, and their names in commands.

The last is not one of the five: De et al. 2022 print the usual baseline on CIFAR-10.
"""

METRICS = {
    "accuracy": "%",
    "BLEU": "%",
    "ROUGE-L": "%",
    "seconds": "s",
    "runs": "",
    "sensitivity": "",
    "epsilon": "",
    "epsilon change": "%",
    "accuracy gain": "%",
}
"""What is printed, and its unit."""

SCORES = ("accuracy", "BLEU", "ROUGE-L")
"""The metrics whose differences are measured in points."""

_AG_NEWS_SUBSET = 38_659  # of its 120,000 training examples; not known from the data set's files
_DATA = {
    "AG News": "ag_news",
    "CIFAR-10": "cifar10",
    "CelebA[Male]": "celeba_male_full",
    "CelebA[Smiling]": "celeba_smiling_full",
    "CelebA multi-label": "celeba_attributes_full",
    "MNLI-m": "mnli",
    "MNLI-mm": "mnli_mm",
}


@dataclass(frozen=True)
class Cell:
    """One printed number.

    Attributes:
        paper: the paper's short name.
        table: its number in the paper.
        dataset: the data set as printed.
        model: the network as printed.
        optimizer: the optimizer as printed.
        epsilon: the printed budget; infinity without privacy, None if the table has none.
        delta: the printed delta; None if the table has none.
        method: the method as printed, with its setting if the table compares settings.
        metric: what is printed, one of `METRICS`.
        value: the printed number.
        spread: what is printed after ±, a standard deviation or half a confidence interval; None
            if there is none.
        tuning_cost: "none", or how tuning is accounted: "LT" or "RDP".
        sigma0: the printed first noise multiplier; None if there is none.
        note: anything else that the table says about the row.
    """

    paper: str
    table: str
    dataset: str
    model: str
    optimizer: str
    epsilon: float | None
    delta: float | None
    method: str
    metric: str
    value: float
    spread: float | None
    tuning_cost: str
    sigma0: float | None
    note: str

    @property
    def table_name(self) -> str:
        """The table's name in commands, such as "dc-sgd/IV"."""
        return f"{PAPERS[self.paper]}/{self.table}"

    @property
    def name(self) -> str:
        """The cell's name in commands, such as "dc-sgd/IV/mnist/cnn/2/dp-sgd"."""
        budget = [] if self.epsilon is None else [f"{self.epsilon:g}"]
        sigma = [] if self.sigma0 is None else [f"sigma{self.sigma0:g}"]
        metric = [self.metric] if self.metric != "accuracy" else []
        parts = [self.dataset, self.model, *budget, *sigma, self.method, *metric]
        return "/".join([self.table_name, *map(_slug, parts)])

    @property
    def data(self) -> str:
        """The data set's name in `dpjax.data`, or what its name there would be."""
        plain = re.sub(r"\W+", "_", self.dataset.lower()).strip("_")
        return _DATA.get(self.dataset, plain)

    @property
    def is_score(self) -> bool:
        """Whether a difference from it is measured in points."""
        return self.metric in SCORES

    @property
    def budget(self) -> str:
        """The printed budget: epsilon or, if each method has its own, sigma_0."""
        if self.sigma0 is not None:
            return f"σ₀ {self.sigma0:g}"
        return "" if self.epsilon is None else f"{self.epsilon:g}"


@cache
def cells() -> tuple[Cell, ...]:
    """Returns all cells, in the order of the file.

    Example:
        >>> cells()[0].name
        'dc-sgd/I/mnist/cnn/dp-sgd/seconds'
    """
    text = files("dpjax.papers").joinpath("printed.csv").read_text(encoding="utf-8")
    return tuple(_cell(row) for row in csv.DictReader(text.splitlines()))


def tables() -> dict[str, list[Cell]]:
    """Returns the cells of each table, by the table's name.

    Example:
        >>> len(tables()["dc-sgd/IV"])
        90
    """
    found: dict[str, list[Cell]] = {}
    for cell in cells():
        found.setdefault(cell.table_name, []).append(cell)
    return found


def cell_named(name: str) -> Cell:
    """Returns a cell by its name.

    Args:
        name: a name such as "dc-sgd/IV/mnist/cnn/2/dp-sgd", see `Cell.name`.

    Raises:
        ValueError: if there is no such cell; suggests the nearest name.

    Example:
        >>> cell_named("dc-sgd/IV/mnist/cnn/2/dp-sgd").method
        'DP-SGD'
    """
    known = {cell.name: cell for cell in cells()}
    if name not in known:
        raise ValueError(f"cell = {name!r}: {_checks.nearest(name, known)}")
    return known[name]


def select(name: str, rows: Sequence[str] = ()) -> list[Cell]:
    """Returns the cells of a table whose names have all of the given parts, or one cell.

    Args:
        name: the name of a table, such as "dc-sgd/IV", or of a cell, such as
            "dc-sgd/IV/mnist/cnn/2/dp-sgd".
        rows: parts of names between slashes, such as "mnist" or "2"; parts joined by commas are
            alternatives.

    Raises:
        ValueError: if there is no such table, cell or part; suggests the nearest one.

    Example:
        >>> [cell.method for cell in select("dc-sgd/IV", ["mnist", "2", "dp-sgd,du"])]
        ['DP-SGD', 'Du']
        >>> [cell.method for cell in select("dc-sgd/IV/mnist/cnn/2/du")]
        ['Du']
    """
    known = tables()
    if name in known:
        chosen = known[name]
    elif name.count("/") > 1:
        chosen = [cell_named(name)]
    else:
        raise ValueError(f"table = {name!r}: {_checks.nearest(name, known)}")
    parts = {part for cell in chosen for part in _parts(cell)}
    for row in rows:
        wanted = set(row.split(","))
        for part in sorted(wanted - parts):
            raise ValueError(f"rows = {part!r}: {_checks.nearest(part, parts)}")
        chosen = [cell for cell in chosen if wanted & _parts(cell)]
    return chosen


def training_size(data: str) -> int:
    """Returns the number of training examples of a data set, without reading its files.

    >>> training_size("qnli")
    104743
    """
    if data == "ag_news_subset":
        return _AG_NEWS_SUBSET
    size = source_of(data).examples[0]
    if size is None:
        raise ValueError(f"data = {data!r}: expected a data set of known size")
    return size


def _parts(cell: Cell) -> set[str]:
    return set(cell.name.removeprefix(cell.table_name + "/").split("/"))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.*=]+", "-", text.lower()).strip("-")


def _cell(row: dict[str, str]) -> Cell:
    return Cell(
        row["paper"],
        row["table"],
        row["dataset"],
        row["model"],
        row["optimizer"],
        _number(row["epsilon"]),  # may be "inf"
        _number(row["delta"]),
        row["method"],
        row["metric"],
        float(row["value"]),
        _number(row["spread"]),
        row["tuning_cost"],
        _number(row["sigma0"]),
        row["note"],
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
