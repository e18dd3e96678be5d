"""Thresholds over epochs: of a table's stored runs, and of the greedy search beside them."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dpjax.reproduce.outcome import outcome_of
from dpjax.reproduce.papers.lin import search_for
from dpjax.reproduce.printed import Cell
from dpjax.reproduce.store import Store

__all__ = ["ThresholdCurve", "greedy_curve", "threshold_curves"]


class ThresholdCurve(NamedTuple):
    """C_t of one method.

    Attributes:
        method: as printed.
        epochs: when it was evaluated.
        thresholds: (seeds, evaluations).
    """

    method: str
    epochs: np.ndarray
    thresholds: np.ndarray


def threshold_curves(cells: Iterable[Cell], store: Store) -> dict[str, ThresholdCurve | None]:
    """Returns the curve of every cell by its method; None for a cell without a finished run.

    Args:
        cells: cells of different methods.
        store: the finished runs; all their seeds count.
    """
    return {cell.method: _curve(cell, store) for cell in cells}


def greedy_curve(cell: Cell, store: Store) -> ThresholdCurve | None:
    """Returns what the greedy search on public data found for a cell of Lin et al.'s; or None."""
    found = store.findings.thresholds.get(search_for(cell).key)
    if found is None:
        return None
    epochs = np.arange(1, len(found.thresholds) + 1, dtype=float)
    return ThresholdCurve("Greedy", epochs, np.asarray([found.thresholds], float))


def _curve(cell: Cell, store: Store) -> ThresholdCurve | None:
    curves = [store.curves[record.key] for record in outcome_of(cell, store).records]
    values = [[point.threshold for point in curve] for curve in curves]
    if not curves or any(value is None for row in values for value in row):
        return None
    epochs = np.asarray([point.epoch for point in curves[0]], float)
    return ThresholdCurve(cell.method, epochs, np.asarray(values, float))
