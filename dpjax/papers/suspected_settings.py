"""Runs that change one suspected setting of a cell that does not come out as printed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpjax.papers.printed_numbers import cell_named
from dpjax.papers.recipe import SeededRun
from dpjax.papers.recipes import recipe_of
from dpjax.papers.store import Store

__all__ = ["SUSPECTED_SETTINGS", "SuspectedSetting"]


@dataclass(frozen=True)
class SuspectedSetting:
    """A setting that may explain why a cell does not come out as printed.

    Attributes:
        cell: the name of the cell.
        values: what is changed in its experiment.
        suspicion: why it might matter.
    """

    cell: str
    values: Mapping[str, Any]
    suspicion: str

    def run(self, store: Store) -> SeededRun | None:
        """Returns the run, with seed 1; None while the cell's own experiment is not known."""
        recipe = recipe_of(cell_named(self.cell), store.findings)
        choice = store.choice(recipe)
        results = [] if choice is None else recipe.results(choice, 1)
        if not results:
            return None
        return SeededRun(
            results[0].experiment.with_values(self.values), results[0].seed, "explanation"
        )

    def accuracy(self, store: Store) -> float | None:
        """Returns the run's accuracy in percent; None if it has not been made."""
        run = self.run(store)
        record = None if run is None else store.records.get(run.key)
        return None if record is None else 100 * record.accuracy

    @property
    def changed(self) -> str:
        """What is changed, in words."""
        return ", ".join(f"{path} = {value}" for path, value in self.values.items())


_NARROW = {"model.hidden": 32, "model.embedding": 16}

SUSPECTED_SETTINGS = (
    SuspectedSetting(
        "dc-sgd/VIII/mnist/cnn/2/autoclip",
        {"model.start": "lecun"},
        "PyTorch's initial parameters have a third of the usual variance",
    ),
    SuspectedSetting(
        "dc-sgd/IV/mnist/cnn/2/dp-sgd",
        {"model.start": "lecun"},
        "the same, for the method that it is compared with",
    ),
    SuspectedSetting(
        "dc-sgd/III/mnist/cnn/2/du",
        {"method.c0": 1.0},
        "the grid was searched at a fifth of this noise, where larger thresholds win",
    ),
    SuspectedSetting(
        "lin/2/mnist/cnn-b1/2.93/papernot",
        {"optimizer.learning_rate": 2.0},
        "thirty epochs at the printed learning rate may be too short a way",
    ),
    SuspectedSetting(
        "lin/2/mnist/cnn-b1/2.93/abadi",
        {"optimizer.learning_rate": 4.0},
        "the same, for a threshold of 0.3",
    ),
    SuspectedSetting(
        "lin/2/mnist/cnn-b1/2.93/transfer",
        {"optimizer.learning_rate": 0.5},
        "thresholds of 5 and more, found on other data, at a learning rate of 1",
    ),
    SuspectedSetting(
        "dc-sgd/IV/mnist/cnn/1/dc-sgd-p",
        {"method.p": 0.7},
        "p was chosen at epsilon 2, with less noise",
    ),
    SuspectedSetting(
        "dc-sgd/III/mnist/cnn/2/andrew",
        {"method.target": 0.7},
        "the quantile was chosen with a fifth of this noise",
    ),
    SuspectedSetting(
        "dc-sgd/VIII/names/lstm/4/dp-sgd",
        _NARROW,
        "the paper gives no widths; ours are those of Opacus' example",
    ),
    SuspectedSetting(
        "dc-sgd/VIII/names/lstm/4/dc-sgd-p",
        _NARROW,
        "the same",
    ),
    SuspectedSetting(
        "dc-sgd/VIII/names/lstm/4/dc-sgd-e",
        _NARROW,
        "the same",
    ),
    SuspectedSetting(
        "dc-sgd/VIII/names/lstm/4/autoclip",
        _NARROW,
        "the same",
    ),
    SuspectedSetting(
        "lin/2/mnist/cnn-b1/2.93/andrew",
        {"method.target": 0.5},
        "the quantile is from the paper's appendix; half is what Andrew et al. advise",
    ),
    SuspectedSetting(
        "auto-dp/2/mnist/custom-cnn/2/sigma0.9584/dp-sgd",
        {"train.epochs": 30.0},
        "ten epochs stand for the paper's hundred",
    ),
    SuspectedSetting(
        "auto-dp/2/mnist/custom-cnn/2/sigma0.9584/dynamic-du",
        {"method.c0": 10.0},
        "C_0 is taken from the other rows' 50: the paper gives none",
    ),
    SuspectedSetting(
        "auto-dp/2/mnist/custom-cnn/16.86/sigma0.9584/adaptive-zhang",
        {"method.threshold": 10.0},
        "a smaller threshold than the paper's 50, whose noise ten epochs do not average out",
    ),
)
"""All suspicions; the report lists those whose run has been made. A new one is one row."""
