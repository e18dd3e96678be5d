"""Estimated core-hours of a run, from the measured cost of an example and of a step."""

from typing import NamedTuple

from dpjax import _checks
from dpjax.papers.greedy_thresholds import GreedySearch
from dpjax.papers.plateaus import PlateauSearch
from dpjax.papers.printed_numbers import training_size
from dpjax.papers.recipe import SeededRun

__all__ = [
    "CoreSeconds",
    "MeasuredNetwork",
    "cost_of",
    "estimated_search_seconds",
    "estimated_seconds",
    "is_measured",
    "network_of",
]

_SIDES = {
    "cifar10_simclr": 64,  # 4,096 features
    **dict.fromkeys(("mnist", "fashion_mnist"), 28),
    **dict.fromkeys(("cifar10", "cifar100", "svhn"), 32),
    **dict.fromkeys(("celeba_male_full", "celeba_smiling_full", "celeba_attributes_full"), 197),
    "imagenette": 160,
    "names": 20,
    **dict.fromkeys(("ag_news", "ag_news_subset", "sst2"), 64),
    **dict.fromkeys(("qnli", "qqp", "mnli", "mnli_mm"), 128),
}


_TRIALS = 10  # assumed in each epoch of a greedy search
_LAYERS, _WIDTH = 12, 768  # of BERT and RoBERTa as measured


class MeasuredNetwork(NamedTuple):
    """Everything the cost of an example depends on.

    Attributes:
        model: the network.
        side: height of the images, or length of the texts.
        engine: the gradient engine.
        scale: layers times squared width, relative to the measured network's.
    """

    model: str
    side: int
    engine: str = "ghost"
    scale: float = 1.0


class CoreSeconds(NamedTuple):
    """Seconds of one core.

    Attributes:
        example: per example.
        step: per step, for noise and optimizer, independent of the batch size.
    """

    example: float
    step: float


# Printed by scripts/measure_costs.py, on one of two cores. RoBERTa at 64 is taken as half of its
# cost at 128, and ResNet-9 at 197 (178 x 218 pixels) as 1.5 times its cost at 160, the ratio of the
# pixels.
_COSTS = {
    MeasuredNetwork("alexnet", 160): CoreSeconds(0.051, 0.93),
    MeasuredNetwork("alexnet", 160, "vmap"): CoreSeconds(0.59, 1.7),
    MeasuredNetwork("bert", 128): CoreSeconds(0.34, 0.11),
    MeasuredNetwork("bilstm", 64): CoreSeconds(0.0024, 0.022),
    MeasuredNetwork("cnn4", 28): CoreSeconds(0.001, 0.0028),
    MeasuredNetwork("lin_b1", 28): CoreSeconds(0.00016, 0.0016),
    MeasuredNetwork("lin_b1", 28, "vmap"): CoreSeconds(0.0016, 0.004),
    MeasuredNetwork("lin_b2", 32): CoreSeconds(0.0043, 0.0091),
    MeasuredNetwork("lin_b2", 32, "vmap"): CoreSeconds(0.0096, 0.01),
    MeasuredNetwork("lin_b3", 28): CoreSeconds(0.00031, 0.0028),
    MeasuredNetwork("lin_b3", 28, "vmap"): CoreSeconds(0.0019, 0.0074),
    MeasuredNetwork("lin_b4", 32): CoreSeconds(0.0011, 0.002),
    MeasuredNetwork("lin_b4", 32, "vmap"): CoreSeconds(0.0037, 0.0044),
    MeasuredNetwork("linear", 64): CoreSeconds(3e-05, 0.0018),
    MeasuredNetwork("lstm", 20): CoreSeconds(0.00064, 0.0028),
    MeasuredNetwork("resnet18", 32): CoreSeconds(0.026, 0.13),
    MeasuredNetwork("resnet18", 160): CoreSeconds(0.13, 0.12),
    MeasuredNetwork("resnet34", 32): CoreSeconds(0.063, 0.28),
    MeasuredNetwork("resnet9", 160): CoreSeconds(0.74, 0.09),
    MeasuredNetwork("resnet9", 197): CoreSeconds(1.1, 0.09),
    MeasuredNetwork("roberta", 64): CoreSeconds(0.47, 1.2),
    MeasuredNetwork("roberta", 128): CoreSeconds(0.94, 1.2),
    MeasuredNetwork("small_cnn", 28): CoreSeconds(0.00014, 0.00053),
}


def network_of(run: SeededRun) -> MeasuredNetwork:
    """Returns the network that a run's cost is looked up by.

    >>> from dpjax.train import Experiment
    >>> network_of(SeededRun(Experiment.from_plain({"data": {"name": "mnist"}}), 0))
    MeasuredNetwork(model='mlp', side=28, engine='vmap', scale=1.0)
    """
    name, model = run.experiment.data.name, run.experiment.model
    if name not in _SIDES:
        raise ValueError(f"data = {name!r}: {_checks.nearest(name, _SIDES)}")
    layers, width = model.options.get("layers", _LAYERS), model.options.get("width", _WIDTH)
    scale = (layers / _LAYERS) * (width / _WIDTH) ** 2
    return MeasuredNetwork(model.name, _SIDES[name], run.experiment.train.engine, scale)


def cost_of(network: MeasuredNetwork) -> CoreSeconds:
    """Returns the cost of a network's examples and steps.

    RoBERTa-large is not measured; its cost is estimated from RoBERTa-base by layers times squared
    width, a factor of 3.6.
    """
    plain = network._replace(scale=1.0)
    if plain not in _COSTS:
        known = sorted({entry.model for entry in _COSTS})
        raise ValueError(
            f"{plain.model} at {plain.side} by {plain.engine}: no cost was measured; expected one "
            f"of {', '.join(known)} as the tables use it"
        )
    cost = _COSTS[plain]
    return CoreSeconds(network.scale * cost.example, network.scale * cost.step)


def estimated_seconds(run: SeededRun) -> float:
    """Returns roughly how long a run takes on one core.

    ``T step + E N example`` with the network's two costs. Inner momentum over K_0 iterates takes
    K_0 + 1 gradients of each example, and K augmented copies take K times as long. Evaluations are
    left out.

    Args:
        run: the run; its data need not be present.
    """
    train, size = run.experiment.train, training_size(run.experiment.data.name)
    cost, batch = cost_of(network_of(run)), train.batch_size or size
    steps = train.steps if train.steps is not None else (train.epochs or 0) * size / batch
    return steps * (cost.step + batch * _gradients(run) * cost.example)


def is_measured(run: SeededRun) -> bool:
    """Returns whether the cost of a run's network has been measured."""
    return network_of(run)._replace(scale=1.0) in _COSTS


def _gradients(run: SeededRun) -> int:
    method, copies = run.experiment.method, run.experiment.train.multiplicity
    momentum = method.get("name") == "psasc_momentum"
    return copies * (1 + int(method.get("length", 1)) if momentum else 1)


def estimated_search_seconds(search: GreedySearch | PlateauSearch) -> float:
    """Returns roughly how long a search on public data takes on one core.

    A search of plateaus is one run. A greedy search trains each epoch with one threshold after
    another until accuracy falls; how many that takes is not known in advance, and ten are assumed.
    """
    run = SeededRun(search.experiment, 0)
    if isinstance(search, PlateauSearch):
        return estimated_seconds(run)
    epochs = search.experiment.train.epochs or 1
    first = search.repeats - 1  # repeats of the first epoch, with other seeds
    return _TRIALS * estimated_seconds(run) * (1 + first / epochs)
