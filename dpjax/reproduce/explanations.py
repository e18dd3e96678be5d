"""Runs that change one suspected setting of a cell that does not come out as printed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpjax.reproduce.book import recipe_of
from dpjax.reproduce.printed import cell_named
from dpjax.reproduce.recipe import Run
from dpjax.reproduce.store import Store

__all__ = ["EXPLANATIONS", "Explanation"]


@dataclass(frozen=True)
class Explanation:
    """A suspicion, as a run.

    Attributes:
        cell: the name of the cell.
        values: what is changed in its experiment.
        suspicion: why it might matter.
    """

    cell: str
    values: Mapping[str, Any]
    suspicion: str

    def run(self, store: Store) -> Run | None:
        """Returns the run, of the first seed of the results; None while the cell's is not known."""
        recipe = recipe_of(cell_named(self.cell), store.findings)
        choice = store.choice(recipe)
        results = [] if choice is None else recipe.results(choice, 1)
        if not results:
            return None
        return Run(results[0].experiment.with_values(self.values), results[0].seed, "explanation")

    def accuracy(self, store: Store) -> float | None:
        """Returns what the run came to, in percent; None while it is not made."""
        run = self.run(store)
        record = None if run is None else store.records.get(run.key)
        return None if record is None else 100 * record.accuracy

    @property
    def changed(self) -> str:
        """What is changed, in words."""
        return ", ".join(f"{path} = {value}" for path, value in self.values.items())


_NARROW = {"model.hidden": 32, "model.embedding": 16}

EXPLANATIONS = (
    Explanation(
        "dc-sgd/VIII/mnist/cnn/2/autoclip",
        {"model.start": "lecun"},
        "PyTorch's initial parameters have a third of the usual variance",
    ),
    Explanation(
        "dc-sgd/IV/mnist/cnn/2/dp-sgd",
        {"model.start": "lecun"},
        "the same, for the method that it is compared with",
    ),
    Explanation(
        "dc-sgd/III/mnist/cnn/2/du",
        {"method.c0": 1.0},
        "the grid was searched at a fifth of this noise, where larger thresholds win",
    ),
    Explanation(
        "lin/2/mnist/cnn-b1/2.93/papernot",
        {"optimizer.learning_rate": 2.0},
        "thirty epochs at the printed learning rate may be too short a way",
    ),
    Explanation(
        "lin/2/mnist/cnn-b1/2.93/abadi",
        {"optimizer.learning_rate": 4.0},
        "the same, for a threshold of 0.3",
    ),
    Explanation(
        "lin/2/mnist/cnn-b1/2.93/transfer",
        {"optimizer.learning_rate": 0.5},
        "thresholds of 5 and more, found on other data, at a learning rate of 1",
    ),
    Explanation(
        "dc-sgd/IV/mnist/cnn/1/dc-sgd-p",
        {"method.p": 0.7},
        "p was chosen at epsilon 2, with less noise",
    ),
    Explanation(
        "dc-sgd/III/mnist/cnn/2/andrew",
        {"method.target": 0.7},
        "the quantile was chosen with a fifth of this noise",
    ),
    Explanation(
        "dc-sgd/VIII/names/lstm/4/dp-sgd",
        _NARROW,
        "the paper gives no widths; ours are those of Opacus' example",
    ),
    Explanation(
        "dc-sgd/VIII/names/lstm/4/dc-sgd-p",
        _NARROW,
        "the same",
    ),
    Explanation(
        "dc-sgd/VIII/names/lstm/4/dc-sgd-e",
        _NARROW,
        "the same",
    ),
    Explanation(
        "dc-sgd/VIII/names/lstm/4/autoclip",
        _NARROW,
        "the same",
    ),
    Explanation(
        "lin/2/mnist/cnn-b1/2.93/andrew",
        {"method.target": 0.5},
        "the quantile is from the paper's appendix; half is what Andrew et al. advise",
    ),
    Explanation(
        "auto-dp/2/mnist/custom-cnn/2/sigma0.9584/dp-sgd",
        {"train.epochs": 30.0},
        "ten epochs stand for the paper's hundred",
    ),
    Explanation(
        "auto-dp/2/mnist/custom-cnn/2/sigma0.9584/dynamic-du",
        {"method.c0": 10.0},
        "C_0 is taken from the other rows' 50: the paper gives none",
    ),
    Explanation(
        "auto-dp/2/mnist/custom-cnn/16.86/sigma0.9584/adaptive-zhang",
        {"method.threshold": 10.0},
        "a smaller threshold than the paper's 50, whose noise ten epochs do not average out",
    ),
)
"""The suspicions; the report has those whose run is made. A new one is one row."""
