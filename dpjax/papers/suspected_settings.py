"""Runs that change one suspected setting of a cell that is not reproduced as printed."""

from collections.abc import Mapping
from dataclasses import dataclass

from dpjax.papers.printed_numbers import cell_named
from dpjax.papers.recipe import SEEDS, SeededRun
from dpjax.papers.recipes import recipe_of
from dpjax.papers.store import Store

__all__ = ["SUSPECTED_SETTINGS", "SuspectedSetting"]


@dataclass(frozen=True)
class SuspectedSetting:
    """A setting that may explain why a cell is not reproduced as printed.

    Attributes:
        cell: the name of the cell.
        values: what is changed in its experiment.
        suspicion: why it might matter.
        fitted: whether the value was chosen for this row alone, which explains nothing.
    """

    cell: str
    values: Mapping[str, object]
    suspicion: str
    fitted: bool = False

    def run(self, store: Store) -> SeededRun | None:
        """Returns the run, with seed 1; None while the cell's own experiment is not known."""
        return next(iter(self._runs(store, 1)), None)

    def accuracy(self, store: Store) -> float | None:
        """Returns the mean accuracy of the runs in percent; None if none has been made."""
        records = store.done(self._runs(store, SEEDS))
        if not records:
            return None
        return 100 * sum(record.accuracy for record in records) / len(records)

    def _runs(self, store: Store, seeds: int) -> list[SeededRun]:
        recipe = recipe_of(cell_named(self.cell), store.findings)
        choice = store.choice(recipe)
        if choice is None and recipe.grid and set(recipe.grid[0]) <= set(self.values):
            choice = recipe.grid[0]  # the search's choice is overridden here
        results = [] if choice is None else recipe.results(choice, seeds)
        return [
            SeededRun(run.experiment.with_values(self.values), run.seed, "explanation")
            for run in results
        ]

    @property
    def changed(self) -> str:
        """What is changed, as text."""
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
        fitted=True,
    ),
    SuspectedSetting(
        "lin/2/mnist/cnn-b1/2.93/abadi",
        {"optimizer.learning_rate": 4.0},
        "the same, for a threshold of 0.3",
        fitted=True,
    ),
    SuspectedSetting(
        "lin/2/mnist/cnn-b1/2.93/transfer",
        {"optimizer.learning_rate": 0.5},
        "thresholds of 5 and more, found on other data, at a learning rate of 1",
        fitted=True,
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
    # As in the authors' public program: three equal channels, and pixels from 0 to 1.
    *(
        SuspectedSetting(
            "dc-sgd/VIII/mnist/cnn/2/autoclip",
            values,
            "the authors' program has three equal channels (28,058 parameters, as printed), or "
            "pixels from 0 to 1",
        )
        for values in (
            {"model.channels": 3},
            {"model.channels": 3, "data.scale": "unit"},
            {"data.scale": "unit"},
        )
    ),
    *(
        SuspectedSetting(
            f"dc-sgd/VIII/names/lstm/4/{method}",
            {"model.padding": "read"},
            "Opacus' example reads the state after the padding",
        )
        for method in ("dp-sgd", "dc-sgd-p", "dc-sgd-e", "autoclip")
    ),
    SuspectedSetting(
        "dc-sgd/IV/mnist/cnn/2/dc-sgd-e",
        {"method.sigma_h": 2.0},
        "noise on the histogram makes the range shrink, and C with it",
    ),
    SuspectedSetting(
        "dc-sgd/IV/mnist/cnn/2/dc-sgd-e",
        {"method.negative": "raw"},
        "the authors' program takes negative bins as they are",
    ),
    SuspectedSetting(
        "lin/2/mnist/cnn-b1/2.93/andrew",
        {"model.activation": "relu"},
        "the paper does not say which rows have tanh units",
    ),
    SuspectedSetting(
        "lin/2/mnist/cnn-b1/2.93/pichapati",
        {"method.estimate": "per_example"},
        "our own estimate of the variance, B times the published one",
    ),
    *(
        SuspectedSetting(
            f"lin/2/mnist/cnn-b1/2.93/{method}",
            {"train.epochs": epochs},
            "the paper gives no epochs: the same number for all rows",
        )
        for epochs in (60.0, 100.0)
        for method in ("abadi", "papernot", "yu", "andrew", "du")
    ),
    *(
        SuspectedSetting(
            f"psasc/III/mnist/4-layer-cnn/3/{method}",
            {"model.name": "small_cnn", "optimizer.learning_rate": rate},
            "the network of the works that it follows, two convolutions and two dense layers",
        )
        for method, rate in (
            ("dp-sgd", 4.0),
            ("auto-s", 4.0),
            ("dp-psac", 4.0),
            ("dp-psasc", 4.0),
            ("dp-psasc*", 0.25),
        )
    ),
)
"""All suspicions; the report lists those that have been run. A new one is one row."""
