"""Stores written by hand, as the tests of figures need them."""

from collections.abc import Iterable

import numpy as np

from dpjax.papers import CurvePoint, RunRecord, SeededRun, Store, Thresholds, recipe_of, select
from dpjax.papers.figures.sensitivity import sensitivity_runs
from dpjax.papers.recipes.lin import search_for

EPOCHS = 4
LIN = select("lin/2", ["mnist", "2.93"])
DC_SGD = select("dc-sgd/IV", ["mnist", "2"])


def add_run(
    store: Store, run: SeededRun, accuracy: float, thresholds: Iterable[float | None]
) -> None:
    """Adds a run with an evaluation per epoch."""
    method, data = str(run.experiment.method["name"]), run.experiment.data.name
    own = (run.key.rpartition("-")[0], run.seed, data, run.experiment.model.name, method)
    spent = (1.0, 100, 256, 1e-5, 2.0, 2.0, 1.8)
    values = list(thresholds)
    points = [
        CurvePoint(run.key, float(epoch), accuracy, threshold, 1.0)
        for epoch, threshold in enumerate(values, start=1)
    ]
    store.add(run, RunRecord(*own, *spent, accuracy, values[-1], 60.0, "dice"), points)


def add_table(store: Store, cells) -> None:
    """Adds the searches and the first two seeds of cells; C falls from (i + seed) as 1 / epoch."""
    for i, cell in enumerate(cells):
        recipe = recipe_of(cell, store.findings)
        for place, run in enumerate(recipe.candidates()):
            add_run(store, run, 0.8 + 0.01 * place, [1.0] * EPOCHS)
        for run in recipe.results(store.choice(recipe), seeds=2):
            add_run(store, run, 0.9, (i + run.seed) / np.arange(1.0, EPOCHS + 1))


def full_store(path) -> Store:
    """Returns a store with all that the figures read but the measured gradients."""
    store = Store(path)
    found = Thresholds((1.3, 0.9, 0.5, 0.3), (0.5, 0.6, 0.7, 0.8), 20, (1.3, 1.1))
    (transfer,) = (cell for cell in LIN if cell.method == "Transfer")
    store.add_finding(search_for(transfer), found)
    add_table(store, LIN)
    add_table(store, DC_SGD)
    for runs in sensitivity_runs().values():
        for place, run in enumerate(runs):
            add_run(store, run, 0.9 + 0.005 * place, [1.0] * EPOCHS)
    return store
