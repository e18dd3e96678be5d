"""Auto DP-SGD's tables 2 to 5, 14 and 17 as experiments (its section 5 and appendix B)."""

from typing import Any

from dpjax.papers.prerequisites import Findings
from dpjax.papers.printed_numbers import Cell, training_size
from dpjax.papers.recipe import Recipe
from dpjax.train import Experiment

__all__ = ["EPOCHS", "FACTOR", "decay_of", "recipe"]

FACTOR = 10
"""How many of the paper's epochs one epoch here stands for in the noise schedules."""

EPOCHS = {"mnist": 100, "cifar10": 100, "cifar100": 100, "ag_news": 40}
"""The paper's epochs."""

_MODELS: dict[str, dict[str, Any]] = {
    "custom CNN": {"name": "small_cnn", "start": "pytorch"},
    "NFNet-F0 pretrained": {"name": "nf_resnet18"},
    "NFNet-F1 pretrained": {"name": "nf_resnet18"},
    "BiLSTM": {"name": "bilstm"},
}
_BATCH = {"ag_news": 256}
_THRESHOLD = {"mnist": 50.0, "cifar10": 10.0, "cifar100": 20.0, "ag_news": 10.0}
_DECAYS = {
    "Auto DP-L": "linear",
    "Auto DP-T": "time",
    "Auto DP-S": "step",
    "Auto DP-E": "exponential",
}


def decay_of(cell: Cell) -> str | None:
    """Returns the decay of an Auto DP-SGD cell; None for the methods it is compared with."""
    return _DECAYS.get(cell.method)


def recipe(cell: Cell, found: Findings) -> Recipe:
    """Returns how a cell of Auto DP-SGD's tables is reproduced.

    The paper's 100 epochs are run as ten: the noise goes through the whole schedule, ten times as
    fast. The epsilon of a cell is that of the run, not the printed one.
    """
    del found  # nothing here waits for anything
    decay = decay_of(cell)
    if decay is None:
        return Recipe(_experiment(cell, _compared(cell)), needs=_needs(cell), ours=_ours(cell))
    schedule = {"noise_multiplier": cell.sigma0, "decay": decay, **_schedule(cell)}
    return Recipe(
        _experiment(cell, {"name": "auto_dp_sgd", **schedule}),
        sound=_experiment(cell, {"name": "auto_dp_sgd_sound", **schedule}),
        needs=_needs(cell),
        ours=_ours(cell),
    )


def _schedule(cell: Cell) -> dict[str, Any]:
    size, batch = training_size(_data(cell)), _BATCH.get(cell.data, 64)
    return {"steps_per_epoch": size / batch / FACTOR, "epochs": EPOCHS[cell.data]}


def _compared(cell: Cell) -> dict[str, Any]:
    noise = {"noise_multiplier": cell.sigma0}
    threshold = _THRESHOLD[cell.data]
    if cell.method == "DP-SGD":
        return {"name": "dp_sgd", **noise, "threshold": threshold}
    if cell.method == "Adaptive (Zhang)":
        per_epoch = _schedule(cell)["steps_per_epoch"]
        return {
            "name": "zhang_adaptive",
            **noise,
            "threshold": threshold,
            "steps_per_epoch": per_epoch,
        }
    return {"name": "du", **noise, "c0": threshold, "rho_c": 0.5, "rho_mu": 2.0}


def _experiment(cell: Cell, method: dict[str, Any]) -> Experiment:
    return Experiment.from_plain(
        {
            "data": {"name": _data(cell)},
            "model": _MODELS[cell.model],
            "method": method,
            "optimizer": {
                "name": "adamw",
                "learning_rate": {"name": "cosine_onecycle_schedule", "peak_value": 1e-3},
                "weight_decay": 1e-3,
            },
            "train": {
                "batch_size": _BATCH.get(cell.data, 64),
                "epochs": EPOCHS[cell.data] / FACTOR,
                "engine": "ghost",
            },
            "privacy": {"delta": 1e-5, "accountant": "rdp"},
        }
    )


def _data(cell: Cell) -> str:
    return "ag_news_subset" if cell.data == "ag_news" else cell.data


def _needs(cell: Cell) -> str:
    return "pre-trained NFNet weights" if cell.model.startswith("NFNet") else ""


def _ours(cell: Cell) -> str:
    said = [f"{EPOCHS[cell.data] // FACTOR} epochs for {EPOCHS[cell.data]}, the noise's schedule "]
    said[0] += "ten times as fast; the noise multiplier is the printed one"
    if cell.model == "custom CNN":
        said.append("the network is DC-SGD's: no sizes are given")
    if cell.method == "Dynamic (Du)":
        said.append("rho_c 0.5, rho_mu 2, and Zhang's threshold as C_0: none are given")
    if cell.data == "ag_news":
        said.append("the AG News subset, 38,659 descriptions without titles")
    return "; ".join(said)
