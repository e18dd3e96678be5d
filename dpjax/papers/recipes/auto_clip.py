"""Automatic Clipping's tables 1 to 4 as experiments (its section 6)."""

from dpjax.data import DATASETS
from dpjax.papers.prerequisites import Findings
from dpjax.papers.printed_numbers import Cell, training_size
from dpjax.papers.recipe import Recipe
from dpjax.train import Experiment

__all__ = ["recipe"]

_MODELS: dict[str, dict[str, object]] = {
    "4-layer CNN": {"name": "small_cnn", "activation": "tanh", "start": "pytorch"},
    "ResNet9": {"name": "resnet9"},
    "SimCLRv2 features": {"name": "linear"},
    "RoBERTa-base": {"name": "roberta", "pretrained": "roberta-base"},
    "RoBERTa-large": {
        "name": "roberta",
        "pretrained": "roberta-large",
        "layers": 24,
        "width": 1024,
        "heads": 16,
        "hidden": 4096,
    },
}
_METHODS: dict[str, dict[str, object]] = {
    "Abadi": {"name": "dp_sgd", "threshold": 0.1},
    "full": {"name": "dp_sgd", "threshold": 0.1},
    "AUTO-S": {"name": "auto_s", "gamma": 0.01, "threshold": 0.1},
    "AUTO-V": {"name": "auto_v", "threshold": 0.1},
    # Nothing is clipped, and the noise is too small to affect training: no guarantee at all.
    "non-DP": {"name": "dp_sgd", "threshold": 1e3, "noise_multiplier": 1e-6},
}
# Batch size and epochs, which the paper does not give.
_SETTINGS: dict[str, tuple[int, int]] = {
    "4-layer CNN": (512, 20),
    "SimCLRv2 features": (1024, 40),
    "ResNet9": (512, 10),  # CelebA; Imagenette below
}
_IMAGENETTE = (256, 50)  # DP-PSASC's table II, for the same network and budget
_DATA = {"SimCLRv2 features": "cifar10_simclr"}
# Li et al.'s program, whose hyper-parameters the paper uses for language: B and E grow with the
# data, N / B stays similar; 256 tokens; Adam at 5e-4, decaying to 0; delta 1 / 2N.
_LI_FACTORS = {"sst2": 1, "qnli": 2, "qqp": 6, "mnli": 6, "mnli_mm": 6}
_LI_LENGTH = 256
# By theorem 1, rate 12 at threshold 0.1 equals rate 4 at 0.3, DP-PSASC's best on MNIST here.
_RATE = 12.0
_PLAIN_RATE = 0.3


def recipe(cell: Cell, found: Findings) -> Recipe:
    """Returns how a cell of Automatic Clipping's tables is reproduced."""
    del found  # nothing here has prerequisites
    obstacle = _obstacle(cell)
    if obstacle:
        return Recipe(None, obstacle=obstacle)
    batch, epochs = _batch_and_epochs(cell)
    text, private = cell.model.startswith("RoBERTa"), cell.method != "non-DP"
    if text:
        delta = 1 / (2 * training_size(cell.data))
    else:
        delta = cell.delta if cell.delta is not None else 1e-5
    experiment = Experiment.from_plain(
        {
            "data": {
                "name": _DATA.get(cell.model, cell.data),
                **({"length": _LI_LENGTH} if text else {}),
            },
            "model": _MODELS[cell.model],
            "method": _METHODS[cell.method],
            "optimizer": _optimizer(text, private),
            "train": {"batch_size": batch, "epochs": epochs, "engine": "ghost"},
            "privacy": {
                "delta": delta,
                "accountant": "rdp",
                **({"epsilon": cell.epsilon} if private else {}),
            },
        }
    )
    return Recipe(experiment, needs=_needs(cell), ours=_ours(cell))


def _batch_and_epochs(cell: Cell) -> tuple[int, int]:
    if cell.data == "imagenette":
        return _IMAGENETTE
    factor = _LI_FACTORS.get(cell.data)
    return _SETTINGS[cell.model] if factor is None else (1000 * factor, 3 * factor)


def _optimizer(text: bool, private: bool) -> dict[str, object]:
    if text:
        rate = 5e-4 if private else 5e-5
        falling = {"name": "linear_schedule", "init_value": rate, "end_value": 0.0}
        return {"name": "adam", "learning_rate": falling}
    return {"name": "sgd", "learning_rate": _RATE if private else _PLAIN_RATE}


def _obstacle(cell: Cell) -> str:
    if cell.method == "RGP":
        return "not a method of these papers: RGP changes the network's layers"
    if cell.dataset == "E2E":
        return (
            "text is generated and scored by BLEU and ROUGE-L: no task of `dpjax train`, but of "
            "`python scripts/finetune_e2e.py --cell CELL --pretrained DIR`"
        )
    if cell.data not in DATASETS:
        return f"there is no data set {cell.data} yet"
    return ""


def _needs(cell: Cell) -> str:
    return "pre-trained RoBERTa weights" if cell.model.startswith("RoBERTa") else ""


def _ours(cell: Cell) -> str:
    batch, epochs = _batch_and_epochs(cell)
    if cell.model.startswith("RoBERTa"):
        said = [
            f"batches of {batch}, {epochs} epochs, 256 tokens, delta 1 / 2N: Li et al.'s program "
            "(private-transformers), which the paper follows",
            "a new classifier on the first token, where Li et al. fill in a masked word",
        ]
    else:
        whose = "DP-PSASC's" if cell.data == "imagenette" else "ours"
        said = [f"batches of {batch}, {epochs} epochs, {whose}: the text gives none"]
    if not cell.model.startswith("RoBERTa"):
        said.append("SGD; the learning rate times the threshold is DP-PSASC's best here")
    if cell.method == "non-DP":
        said.append("DP-SGD that clips nothing, with noise of 1e-6: epsilon is of no use")
    return "; ".join(said)
