"""How long a run takes on one core, from what an example and a step cost with each network."""

from typing import NamedTuple

from dpjax import _checks
from dpjax.reproduce.greedy import GreedySearch
from dpjax.reproduce.recipe import Run
from dpjax.reproduce.sizes import training_size

__all__ = [
    "Cost",
    "Network",
    "cost_of",
    "estimated_search_seconds",
    "estimated_seconds",
    "network_of",
]

_SIDES = {
    **dict.fromkeys(("mnist", "fashion_mnist"), 28),
    **dict.fromkeys(("cifar10", "cifar100", "svhn"), 32),
    **dict.fromkeys(("celeba_male", "celeba_smiling"), 64),
    "imagenette": 160,
    "names": 20,
    **dict.fromkeys(("ag_news", "ag_news_subset", "sst2"), 64),
    **dict.fromkeys(("qnli", "qqp", "mnli"), 128),
}


_TRIALS = 10  # in an epoch of a greedy search
_LAYERS, _WIDTH = 12, 768  # of BERT and RoBERTa as they are measured


class Network(NamedTuple):
    """What decides the cost of an example.

    Attributes:
        model: the network.
        side: of the images, or the length of the texts.
        engine: of the gradients.
        scale: layers times the square of their width, beside the network's own.
    """

    model: str
    side: int
    engine: str = "ghost"
    scale: float = 1.0


class Cost(NamedTuple):
    """Seconds of one core.

    Attributes:
        example: for each example.
        step: for each step, whatever its batch: noise and optimizer.
    """

    example: float
    step: float


# Printed by scripts/measure_costs.py, on one of two cores; RoBERTa at 64 is half of it at 128.
_COSTS = {
    Network("alexnet", 160): Cost(0.051, 0.93),
    Network("alexnet", 160, "vmap"): Cost(0.59, 1.7),
    Network("bert", 128): Cost(0.34, 0.11),
    Network("bilstm", 64): Cost(0.0024, 0.022),
    Network("lin_b1", 28): Cost(0.00016, 0.0016),
    Network("lin_b1", 28, "vmap"): Cost(0.0016, 0.004),
    Network("lin_b2", 32): Cost(0.0043, 0.0091),
    Network("lin_b2", 32, "vmap"): Cost(0.0096, 0.01),
    Network("lin_b3", 28): Cost(0.00031, 0.0028),
    Network("lin_b3", 28, "vmap"): Cost(0.0019, 0.0074),
    Network("lin_b4", 32): Cost(0.0011, 0.002),
    Network("lin_b4", 32, "vmap"): Cost(0.0037, 0.0044),
    Network("linear", 32): Cost(2.1e-05, 0.00053),
    Network("lstm", 20): Cost(0.00064, 0.0028),
    Network("nf_resnet18", 32): Cost(0.075, 0.28),
    Network("resnet18", 32): Cost(0.026, 0.13),
    Network("resnet18", 160): Cost(0.13, 0.12),
    Network("resnet34", 32): Cost(0.063, 0.28),
    Network("resnet9", 64): Cost(0.16, 0.037),
    Network("resnet9", 160): Cost(0.74, 0.09),
    Network("roberta", 64): Cost(0.47, 1.2),
    Network("roberta", 128): Cost(0.94, 1.2),
    Network("small_cnn", 28): Cost(0.00014, 0.00053),
}


def network_of(run: Run) -> Network:
    """Returns what decides the cost of a run's examples.

    >>> from dpjax.train import Experiment
    >>> network_of(Run(Experiment.from_plain({"data": {"name": "mnist"}}), 0))
    Network(model='mlp', side=28, engine='vmap', scale=1.0)
    """
    name, model = run.experiment.data.name, run.experiment.model
    if name not in _SIDES:
        raise ValueError(f"data = {name!r}: {_checks.nearest(name, _SIDES)}")
    layers, width = model.options.get("layers", _LAYERS), model.options.get("width", _WIDTH)
    scale = (layers / _LAYERS) * (width / _WIDTH) ** 2
    return Network(model.name, _SIDES[name], run.experiment.train.engine, scale)


def cost_of(network: Network) -> Cost:
    """Returns what a network's examples and steps cost.

    RoBERTa-large is not measured: it is RoBERTa-base times layers times the square of the width,
    3.6 times as much.
    """
    plain = network._replace(scale=1.0)
    if plain not in _COSTS:
        known = sorted({entry.model for entry in _COSTS})
        raise ValueError(
            f"{plain.model} at {plain.side} by {plain.engine}: no cost was measured; expected one "
            f"of {', '.join(known)} as the tables use it"
        )
    cost = _COSTS[plain]
    return Cost(network.scale * cost.example, network.scale * cost.step)


def estimated_seconds(run: Run) -> float:
    """Returns how long a run takes on one core, about.

    ``T step + E N example`` with the network's two costs; inner momentum over K_0 iterates takes
    K_0 + 1 gradients of each example. Evaluations are left out.

    Args:
        run: the run; its data need not be at hand.
    """
    train, size = run.experiment.train, training_size(run.experiment.data.name)
    cost, batch = cost_of(network_of(run)), train.batch_size or size
    steps = train.steps if train.steps is not None else (train.epochs or 0) * size / batch
    return steps * (cost.step + batch * _gradients(run) * cost.example)


def _gradients(run: Run) -> int:
    method = run.experiment.method
    return 1 + int(method.get("length", 1)) if method.get("name") == "psasc_momentum" else 1


def estimated_search_seconds(search: GreedySearch) -> float:
    """Returns how long a greedy search takes on one core, about.

    An epoch is trained for one threshold after another until accuracy falls; how often is not
    known before, and ten is taken.
    """
    run = Run(search.experiment, 0)
    epochs = search.experiment.train.epochs or 1
    first = search.repeats - 1  # the first epoch again, with other seeds
    return _TRIALS * estimated_seconds(run) * (1 + first / epochs)
