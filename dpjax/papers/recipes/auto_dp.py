"""Auto DP-SGD's tables 2 to 6 and 9 to 17 as experiments (its section 5 and appendix B)."""

import math

from dpjax.papers.plateaus import PlateauSearch
from dpjax.papers.prerequisites import Findings
from dpjax.papers.printed_numbers import Cell, training_size
from dpjax.papers.recipe import Recipe
from dpjax.papers.recipes.auto_dp_numbers import (
    BATCH,
    DECAYS,
    EPOCHS,
    RHO_MU,
    THRESHOLD,
    computed,
    decay_of,
)
from dpjax.train import Experiment

__all__ = ["recipe"]

_MODELS: dict[str, dict[str, object]] = {
    "custom CNN": {"name": "small_cnn", "start": "pytorch"},
    "NFNet-F0 pretrained": {"name": "nfnet_f0"},
    "NFNet-F1 pretrained": {"name": "nfnet_f1"},
    "BiLSTM": {"name": "bilstm"},
}
_RATE = 1e-3
_PLATEAU = "Auto DP-L ReduceLRPlateau"
_ONE_CYCLE = {"name": "cosine_onecycle_schedule", "peak_value": _RATE}
# Nothing is clipped, and the noise is too small to affect training: no guarantee at all.
_PLAIN = {"name": "dp_sgd", "threshold": 1e3, "noise_multiplier": 1e-6}


def recipe(cell: Cell, found: Findings) -> Recipe:
    """Returns how a cell of Auto DP-SGD's tables is reproduced."""
    number = computed(cell)
    if number is not None:
        return Recipe(None, computed=number.value, ours=number.how)
    if cell.metric == "epsilon" and cell.method == "Dynamic (Du)":
        return Recipe(
            None,
            obstacle="a setting, not a result: rho_mu, which the paper does not give, is chosen so "
            "that GDP's formula gives this epsilon",
        )
    if cell.method == _PLATEAU:
        return _with_plateaus(cell, found)
    sound = None
    if cell.table in ("2", "3", "4", "5", "14", "15", "16", "17") and decay_of(cell):
        sound = _experiment(cell, {"name": "auto_dp_sgd_sound", **_schedule(cell)})
    return Recipe(
        _experiment(cell, _method(cell)), sound=sound, needs=_needs(cell), ours=_ours(cell)
    )


def _with_plateaus(cell: Cell, found: Findings) -> Recipe:
    """Returns a recipe whose learning rate falls at the same epochs as on public data."""
    experiment = _experiment(cell, _method(cell))
    search = PlateauSearch(experiment.set("data.name", "fashion_mnist"))
    falls = found.plateaus.get(search.key)
    if falls is None:
        return Recipe(experiment, waits_for=search, ours=_ours(cell))
    scales = tuple((epoch, search.factor) for epoch in falls)
    rate = _steps(cell, *scales) if falls else _RATE
    return Recipe(experiment.with_values({"optimizer.learning_rate": rate}), ours=_ours(cell))


def _method(cell: Cell) -> dict[str, object]:
    noise = {"noise_multiplier": cell.sigma0}
    name, _, setting = cell.method.partition(" C=")
    threshold = float(setting) if setting else THRESHOLD[cell.data]
    if cell.method == "non-DP":
        return _PLAIN
    if name == "DP-SGD":
        return {"name": "dp_sgd", **noise, "threshold": threshold}
    if name == "Adaptive (Zhang)":
        per_epoch = {"steps_per_epoch": _schedule(cell)["steps_per_epoch"]}
        return {"name": "zhang_adaptive", **noise, "threshold": threshold, **per_epoch}
    if name == "Dynamic (Du)":
        rho_mu = RHO_MU[cell.data, cell.sigma0 or 0.0]
        return {"name": "du", **noise, "c0": threshold, "rho_c": 0.5, "rho_mu": rho_mu}
    scale = cell.method.partition(" W=")[2]
    return {
        "name": "auto_dp_sgd",
        **_schedule(cell),
        **({"scale": float(scale)} if scale and float(scale) != 1 else {}),
    }


def _schedule(cell: Cell) -> dict[str, object]:
    return {
        "noise_multiplier": cell.sigma0,
        "decay": decay_of(cell) or DECAYS["L"],
        "steps_per_epoch": _steps_per_epoch(cell),
        "epochs": EPOCHS[cell.data],
    }


def _steps_per_epoch(cell: Cell) -> float:
    return training_size(_data(cell)) / BATCH[cell.data]


def _experiment(cell: Cell, method: dict[str, object]) -> Experiment:
    return Experiment.from_plain(
        {
            "data": {"name": _data(cell)},
            "model": _MODELS[cell.model],
            "method": method,
            "optimizer": _optimizer(cell),
            "train": {
                "batch_size": BATCH[cell.data],
                "epochs": EPOCHS[cell.data],
                "engine": "ghost",
            },
            "privacy": {"delta": 1e-5, "accountant": "rdp"},
        }
    )


def _optimizer(cell: Cell) -> dict[str, object]:
    if cell.optimizer == "SGD":  # tables 9 and 10
        return {"name": "sgd", "learning_rate": 1e-4}
    rate = _rate(cell) if cell.table == "11" else _ONE_CYCLE
    return {"name": "adamw", "learning_rate": rate, "weight_decay": 1e-3}


def _rate(cell: Cell) -> object:
    """Returns a scheduler of table 11, with PyTorch's defaults where they exist."""
    name = cell.method.removeprefix("Auto DP-L ")
    if cell.method == _PLATEAU:
        return _RATE
    if name.startswith("LR("):
        return float(name[3:-1])

    def epochs(number: float) -> int:
        return math.ceil(number * _steps_per_epoch(cell))

    ten = {"init_value": _RATE, "peak_value": _RATE, "warmup_steps": 0, "decay_steps": epochs(10)}
    return {
        "StepLR": _steps(cell, (30, 0.1), (60, 0.1), (90, 0.1)),
        "MultiStepLR": _steps(cell, (30, 0.1), (80, 0.1)),
        "ConstantLR": _steps(cell, (5, 3.0), start=_RATE / 3),
        "LinearLR": {
            "name": "linear_schedule",
            "init_value": _RATE / 3,
            "end_value": _RATE,
            "transition_steps": epochs(5),
        },
        "ExponentialLR": {
            "name": "exponential_decay",
            "init_value": _RATE,
            "transition_steps": epochs(1),
            "decay_rate": 0.9,
            "staircase": True,
        },
        "PolynomialLR": {
            "name": "polynomial_schedule",
            "init_value": _RATE,
            "end_value": 0.0,
            "power": 1,
        },
        "CosineAnnealingLR": {"name": "cosine_decay_schedule", "init_value": _RATE},
        "CosineAnnealingWarmRestarts": {
            "name": "sgdr_schedule",
            "cosine_kwargs": [{**ten, "end_value": 0.0}] * 10,
        },
        "CyclicLR": _triangles(cell),
        "OneCycleLR": _ONE_CYCLE,
    }[name]


def _steps(cell: Cell, *scales: tuple[int, float], start: float = _RATE) -> dict[str, object]:
    """Returns a rate that is multiplied by each scale after its epoch."""
    per_epoch = _steps_per_epoch(cell)
    table = {str(math.ceil(epoch * per_epoch)): scale for epoch, scale in scales}
    named = {"name": "piecewise_constant_schedule", "init_value": start}
    return {**named, "boundaries_and_scales": table}


def _triangles(cell: Cell) -> dict[str, object]:
    """Returns a rate that rises and falls linearly between a tenth of the rate and the rate.

    PyTorch's CyclicLR takes 2,000 steps from one end to the other and has no defaults for the ends;
    its example has a factor of ten between them.
    """
    turns = range(2000, math.ceil(EPOCHS[cell.data] * _steps_per_epoch(cell)) + 2000, 2000)
    scales = {str(step): 10.0 if i % 2 == 0 else 0.1 for i, step in enumerate(turns)}
    named = {"name": "piecewise_interpolate_schedule", "interpolate_type": "linear"}
    return {**named, "init_value": _RATE / 10, "boundaries_and_scales": scales}


def _data(cell: Cell) -> str:
    return "ag_news_subset" if cell.data == "ag_news" else cell.data


def _needs(cell: Cell) -> str:
    return "pre-trained NFNet weights" if cell.model.startswith("NFNet") else ""


def _ours(cell: Cell) -> str:
    said = []
    if cell.model == "custom CNN":
        said.append("the network is DC-SGD's: no sizes are given")
    if cell.method == "Dynamic (Du)":
        said.append(
            "rho_c 0.5, Zhang's threshold as C_0, and the rho_mu that makes GDP's epsilon the "
            "printed one: none are given"
        )
    if cell.method == "non-DP":
        said.append("DP-SGD that clips nothing, with noise of 1e-6: epsilon is of no use")
    if cell.data == "ag_news":
        said.append("the AG News subset, 38,659 descriptions without titles")
    if cell.table == "11":
        said.append(
            "the schedulers' numbers are PyTorch's defaults, or those of its examples: the paper "
            "gives none"
        )
    if cell.model.startswith("NFNet"):
        said.append("images of 32 x 32, as they are: the paper does not say how they are resized")
    if cell.method == _PLATEAU:
        said.append(
            "the rate falls where it fell in a run on Fashion-MNIST: following the private data's "
            "own loss would cost privacy"
        )
    if cell.table in ("9", "10"):
        said.append("SGD at 1e-4 without a scheduler")
    if cell.metric == "sensitivity":
        said.append("the mean over all steps of the mean W |g_i| of a batch")
    return "; ".join(said)
