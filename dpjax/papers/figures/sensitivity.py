"""DC-SGD's accuracy against its hyper-parameters: p, the bins, and the histogram's noise."""

from typing import NamedTuple

from dpjax.papers.printed_numbers import cell_named
from dpjax.papers.recipe import SEARCH_SEED, SeededRun
from dpjax.papers.recipes import recipe_of
from dpjax.papers.store import Store
from dpjax.train import Experiment

__all__ = ["SERIES", "Sensitivity", "sensitivity_of", "sensitivity_runs"]

_P, _E = (f"dc-sgd/IV/mnist/cnn/2/dc-sgd-{kind}" for kind in "pe")
_BINS, _SIGMAS = (5, 10, 20, 40), (1.0, 2.0, 5.0, 10.0)
# These are the defaults: leaving the number out gives the same run.
_DEFAULTS = {"bins": 20, "sigma_h": 5.0}
# The sigma of epsilon 2 by RDP, rounded up. Calibration starts at a sigma of 1, which is not
# possible with a sigma_H of 1; the total sigma does not depend on sigma_H.
_SIGMA = 0.841397

SERIES: dict[str, tuple[str, dict[str, object], str, tuple[float, ...]]] = {
    "p, DC-SGD-P": (_P, {}, "p", (0.3, 0.5, 0.7, 0.9)),
    "bins, DC-SGD-P": (_P, {"p": 0.9}, "bins", _BINS),
    "bins, DC-SGD-E": (_E, {}, "bins", _BINS),
    "sigma_h, DC-SGD-P": (_P, {"p": 0.9}, "sigma_h", _SIGMAS),
    "sigma_h, DC-SGD-E": (_E, {}, "sigma_h", _SIGMAS),
}
"""Each series: the cell whose experiment it changes, what is fixed, what varies, and its values."""


class Sensitivity(NamedTuple):
    """The results of one series.

    Attributes:
        accuracies: by value, as fractions.
        missing: the values without a run.
    """

    accuracies: dict[float, float]
    missing: list[float]


def sensitivity_runs() -> dict[str, list[SeededRun]]:
    """Returns the runs of every series, in the order of its values, at the search's seed.

    >>> [run.experiment.method["p"] for run in sensitivity_runs()["p, DC-SGD-P"]]
    [0.3, 0.5, 0.7, 0.9]
    """
    return {name: [run for _, run in _runs(name)] for name in SERIES}


def sensitivity_of(name: str, store: Store) -> Sensitivity:
    """Returns the accuracies of a series, and the values without a stored run.

    Args:
        name: a name in `SERIES`.
        store: the finished runs.
    """
    runs, records = _runs(name), store.records
    return Sensitivity(
        {value: records[run.key].accuracy for value, run in runs if run.key in records},
        [value for value, run in runs if run.key not in records],
    )


def _runs(name: str) -> list[tuple[float, SeededRun]]:
    cell, fixed, varied, values = SERIES[name]
    base = recipe_of(cell_named(cell)).experiment
    if base is None:
        raise RuntimeError(f"{cell} has no experiment")
    return [(v, SeededRun(_varied(base, fixed, varied, v), SEARCH_SEED, "search")) for v in values]


def _varied(base: Experiment, fixed: dict[str, object], varied: str, value: float) -> Experiment:
    changes = dict(fixed)
    if value != _DEFAULTS.get(varied):
        changes[varied] = value
    if changes.get("sigma_h") == 1.0:
        changes["noise_multiplier"] = _SIGMA
    return base.with_values({f"method.{key}": number for key, number in changes.items()})
