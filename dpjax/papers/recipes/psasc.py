"""DP-PSASC's table III as experiments (its section V and table II)."""

from collections.abc import Mapping

from dpjax.papers.prerequisites import Findings
from dpjax.papers.printed_numbers import Cell
from dpjax.papers.recipe import Override, Recipe
from dpjax.train import Experiment

__all__ = ["recipe"]

_MODELS: dict[str, dict[str, object]] = {
    "4-layer CNN": {"name": "cnn4", "activation": "tanh", "start": "pytorch"},
    "ResNet9": {"name": "resnet9"},
    "SimCLRv2 features": {"name": "linear"},
}
_DATA = {"SimCLRv2 features": "cifar10_simclr"}
# Table II: batch size, epochs, r, C.
_SETTINGS: dict[str, tuple[int, int, float, float]] = {
    "mnist": (512, 20, 1e-4, 0.3),
    "fashion_mnist": (512, 60, 1e-3, 0.25),
    "cifar10": (1024, 40, 1e-4, 0.1),
    "celeba_male_full": (512, 10, 1e-4, 0.2),
    "imagenette": (256, 50, 1e-2, 0.2),
}
_RATES = (1.0, 2.0, 4.0, 8.0, 16.0)
# Inner momentum changes no norm after the rule; outer momentum sums about ten gradients.
_MOMENTUM_RATES = (0.0625, 0.125, 0.25, 0.5, 1.0)


def recipe(cell: Cell, found: Findings) -> Recipe:
    """Returns how a cell of DP-PSASC's table is reproduced."""
    del found  # nothing here has prerequisites
    batch, epochs, r, threshold = _SETTINGS[cell.data]
    s = float(cell.note.partition("s=")[2] or 1.0)
    methods: dict[str, dict[str, object]] = {
        "DP-SGD": {"name": "dp_sgd"},
        "Auto-S": {"name": "auto_s", "gamma": r},
        "DP-PSAC": {"name": "psac", "r": r},
        "DP-PSASC": {"name": "psasc", "r": r, "s": s},
        "DP-PSASC*": {"name": "psasc_momentum", "r": r, "s": s},
    }
    experiment = Experiment.from_plain(
        {
            "data": {"name": _DATA.get(cell.model, cell.data)},
            "model": _MODELS[cell.model],
            "method": {**methods[cell.method], "threshold": threshold},
            "optimizer": {"name": "sgd", "learning_rate": _RATES[0]},
            "train": {"batch_size": batch, "epochs": epochs, "engine": "ghost"},
            "privacy": {"epsilon": cell.epsilon, "delta": cell.delta, "accountant": "rdp"},
        }
    )
    return Recipe(
        experiment,
        grid=_grid(cell.method),
        searched=_searched(experiment, methods["Auto-S"], threshold),
        ours=_ours(cell),
    )


def _searched(experiment: Experiment, auto_s: Mapping[str, object], threshold: float) -> Experiment:
    """Returns the search's experiment; the three rules that normalise share Auto-S's."""
    if experiment.method["name"] not in ("psac", "psasc"):
        return experiment
    return Experiment.from_plain(
        {**experiment.to_plain(), "method": {**auto_s, "threshold": threshold}}
    )


def _grid(method: str) -> tuple[Override, ...]:
    rates = _MOMENTUM_RATES if method == "DP-PSASC*" else _RATES
    return tuple({"optimizer.learning_rate": rate} for rate in rates)


def _ours(cell: Cell) -> str:
    said = [
        "learning rates from a coarse grid at one seed (PSAC and PSASC: Auto-S's): none are given"
    ]
    if cell.model == "4-layer CNN":
        said.append("widths of Opacus' CIFAR-10 example, which has the same layers, and tanh units")
    if cell.method == "DP-PSASC*":
        said.append("gamma_0 0.5, gamma_1 0.1, K_0 1: the paper gives none")
    if cell.data == "fashion_mnist":
        said.append("60,000 examples, where the paper prints 40,000")
    return "; ".join(said)
