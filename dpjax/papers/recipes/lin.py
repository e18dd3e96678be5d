"""Lin et al.'s tables 1, 2 and 3 as experiments (their section 5, appendices B and D)."""

from dpjax.papers.greedy_thresholds import GreedySearch, Thresholds
from dpjax.papers.prerequisites import Findings
from dpjax.papers.printed_numbers import Cell, training_size
from dpjax.papers.recipe import Recipe
from dpjax.train import Experiment

__all__ = ["PUBLIC", "recipe", "search_for"]

PUBLIC = {"mnist": "fashion_mnist", "fashion_mnist": "mnist", "cifar10": "cifar100"}
"""The public data set on which the thresholds for a private one are found."""

_MODELS = {
    "CNN-B1": "lin_b1",
    "CNN-B2": "lin_b2",
    "CNN-B3": "lin_b3",
    "CNN-B4": "lin_b4",
    "AlexNet": "alexnet",
    "ResNet18-noBN": "resnet18",
}
_OPTIONS = {"ResNet18-noBN": {"norm": "none"}}  # "BN removed"; no replacement is mentioned
# The paper gives no epochs. With thirty, Papernot's row on MNIST comes near its printed number.
_EPOCHS = 30
_PER_SEARCHED = 3  # the epochs that each epoch of the reduced search stands for

# Tables D1 and D3: the thresholds by data set and epsilon. For Papernot on MNIST at 4.5 the text
# of the rotated page has 9.0, which is 0.6 upside down. (For Papernot on MNIST at 2.93 and on
# Fashion-MNIST at 2.7, section 5.2.1 has 0.4 and 0.5, and table D1 the reverse; we use D1.)
_THRESHOLDS: dict[str, dict[tuple[str, float], tuple[float, float, float, float]]] = {
    "2": {
        ("mnist", 1.2): (0.6, 0.5, 0.6, 0.8),
        ("mnist", 2.93): (0.3, 0.5, 0.8, 0.8),
        ("mnist", 4.5): (0.5, 0.6, 0.8, 1.2),
        ("fashion_mnist", 1.5): (0.3, 0.7, 0.8, 0.8),
        ("fashion_mnist", 2.7): (0.3, 0.4, 1.0, 1.0),
        ("fashion_mnist", 4.5): (0.8, 0.8, 1.0, 1.2),
        ("cifar10", 3.0): (1.0, 0.6, 1.0, 1.0),
        ("cifar10", 6.78): (1.0, 0.5, 1.2, 1.5),
        ("cifar10", 7.53): (1.0, 0.6, 1.5, 1.5),
        ("imagenette", 11.0): (5.0, 5.0, 6.0, 5.0),
        ("imagenette", 46.6): (7.0, 7.0, 10.0, 6.0),
        ("imagenette", 130.5): (10.0, 10.0, 10.0, 6.0),
    },
    "3": {
        ("mnist", 1.0): (0.7, 0.7, 0.8, 0.8),
        ("fashion_mnist", 1.0): (0.7, 0.7, 0.8, 0.8),
        ("cifar10", 1.5): (0.7, 0.6, 1.0, 1.0),
        ("imagenette", 11.0): (4.0, 5.0, 5.0, 4.0),
    },
}
_CONSTANT = ("Abadi", "Papernot", "Yu", "Du")

# Tables D2 and D4: AdaCliP's h_1, h_2 (the smaller is the floor) and Andrew's gamma.
_OTHERS: dict[str, dict[tuple[str, float], tuple[float, float, float]]] = {
    "2": {
        ("mnist", 1.2): (1e-2, 1e-4, 0.7),
        ("mnist", 2.93): (1e-2, 1e-4, 0.7),
        ("mnist", 4.5): (1e-2, 1e-4, 0.9),
        ("fashion_mnist", 1.5): (1e-3, 1e-5, 0.7),
        ("fashion_mnist", 2.7): (1e-3, 1e-5, 0.7),
        ("fashion_mnist", 4.5): (1e-2, 1e-4, 0.7),
        ("cifar10", 3.0): (1e-3, 1e-5, 0.1),
        ("cifar10", 6.78): (1e-3, 1e-5, 0.1),
        ("cifar10", 7.53): (1e-3, 1e-5, 0.3),
        ("imagenette", 11.0): (1e-3, 1e-5, 0.025),
        ("imagenette", 46.6): (1e-3, 1e-5, 0.04),
        ("imagenette", 130.5): (1e-3, 1e-5, 0.05),
    },
    "3": {
        ("mnist", 1.0): (1e-4, 1e-5, 0.7),
        ("fashion_mnist", 1.0): (1e-3, 1e-5, 0.6),
        ("cifar10", 1.5): (1e-3, 1e-5, 0.1),
        ("imagenette", 11.0): (1e-3, 1e-5, 0.02),  # the table has no h for Imagenette
    },
}


def recipe(cell: Cell, found: Findings) -> Recipe:
    """Returns how a cell of Lin et al.'s tables is reproduced.

    Args:
        cell: the cell.
        found: the thresholds of finished searches.
    """
    ours = f"{_EPOCHS} epochs: the paper gives none"
    if cell.method not in ("Transfer", "Decay") and not cell.method.startswith("Decay"):
        return Recipe(_experiment(cell, _method(cell)), ours=f"{ours}{_ours(cell)}")
    if cell.data not in PUBLIC:
        return Recipe(
            None,
            obstacle="the ten classes of ImageNet that the thresholds come from are no data set",
        )
    search = search_for(cell)
    ours += f"; the search on {search.experiment.data.name} is reduced: from C = {search.start:g} "
    ours += f"in steps of {search.step:g}, {search.repeats} first epochs, and ten epochs at the "
    ours += f"same epsilon, each of which stands for {_PER_SEARCHED}"
    thresholds = found.thresholds.get(search.key)
    if thresholds is None:
        placeholder = _experiment(cell, {"name": "lin_decay"})
        return Recipe(placeholder, waits_for=search, ours=ours)
    return Recipe(_experiment(cell, _found_method(cell, thresholds)), ours=ours)


def search_for(cell: Cell) -> GreedySearch:
    """Returns the search on public data whose thresholds a cell of Transfer or Decay uses.

    The paper's own search takes steps of 0.01 from 0.05 and repeats the first epoch five times:
    about two thousand epochs of training. This one is coarser.
    """
    private = _experiment(cell, {"name": "dp_sgd", "threshold": 1.0})
    public = private.with_values(
        {"data.name": PUBLIC[cell.data], "train.epochs": _EPOCHS / _PER_SEARCHED}
    )
    return GreedySearch(public, start=0.25, step=0.5, repeats=2)


def _experiment(cell: Cell, method: dict[str, object]) -> Experiment:
    imagenette = cell.data == "imagenette"
    adaclip = method["name"] == "adaclip"
    activation = "relu" if cell.method == "Abadi" else "tanh"
    options: dict[str, object] = {"activation": activation, **_OPTIONS.get(cell.model, {})}
    if cell.model.startswith("CNN"):
        options["start"] = "pytorch"
    return Experiment.from_plain(
        {
            "data": {"name": cell.data},
            "model": {"name": _MODELS[cell.model], **options},
            "method": method,
            "optimizer": {"name": "sgd", "learning_rate": 0.01 if imagenette else 1.0},
            "train": {
                "batch_size": _batch_size(cell),
                "epochs": _EPOCHS,
                "engine": "vmap" if adaclip else "ghost",  # AdaCliP needs the gradients themselves
            },
            "privacy": {"epsilon": cell.epsilon, "accountant": "rdp"},
        }
    )


def _batch_size(cell: Cell) -> int:
    return 64 if cell.data == "imagenette" else 1024


def _method(cell: Cell) -> dict[str, object]:
    setting = (cell.data, cell.epsilon or 0.0)
    if cell.method in _CONSTANT:
        c = _THRESHOLDS[cell.table][setting][_CONSTANT.index(cell.method)]
        return {
            "Abadi": {"name": "dp_sgd", "threshold": c},
            "Papernot": {"name": "dp_sgd", "threshold": c},
            "Yu": {"name": "yu", "c0": c},
            "Du": {"name": "du", "c0": c, "rho_c": 0.5},
        }[cell.method]
    ceiling, floor, gamma = _OTHERS[cell.table][setting]
    if cell.method == "Andrew":
        return {"name": "andrew", "target": gamma, "lr": 0.2}
    limits = {"h_floor": floor, "h_ceiling": ceiling}
    return {"name": "adaclip", **limits, "estimate": "published"}


def _found_method(cell: Cell, found: Thresholds) -> dict[str, object]:
    if cell.method == "Transfer":
        steps_per_epoch = training_size(cell.data) / _batch_size(cell)
        return {
            "name": "lin_transfer",
            "thresholds": list(found.thresholds),
            "steps_per_epoch": _PER_SEARCHED * steps_per_epoch,
        }
    exponent = float(cell.method.partition("a=")[2] or 0.5)
    return {"name": "lin_decay", "c0": found.initial, "exponent": exponent}


def _ours(cell: Cell) -> str:
    said = []
    if cell.method == "Papernot" and not cell.model.startswith("CNN"):
        said.append("tanh, a tempered sigmoid, in place of this network's ReLU")
    if cell.method not in ("Abadi", "Papernot"):
        said.append("tanh units, as in Papernot's row: the paper does not say")
    if cell.method == "Du":
        said.append("rho 0.5: the paper gives none")
    if cell.method == "Pichapati":
        said.append("noise on the sum, not on each sample, of which the paper speaks")
    if cell.data == "imagenette":
        said.append("images of 160 x 160: the paper does not say")
    return "".join(f"; {text}" for text in said)
