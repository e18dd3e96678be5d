"""De et al.'s CIFAR-10 result, a common baseline, as an experiment."""

from dpjax.papers.prerequisites import Findings
from dpjax.papers.printed_numbers import Cell
from dpjax.papers.recipe import Recipe
from dpjax.train import Experiment

__all__ = ["recipe"]


def recipe(cell: Cell, found: Findings) -> Recipe:
    """Returns how De et al.'s number is reproduced.

    It uses weight standardisation and group normalisation, large batches, 16 augmented copies of
    each example, and a moving average of the parameters. Batch size, learning rate, threshold,
    copies and average are from the authors' public configuration for WRN-16-4; sigma follows from
    the budget.

    Reference: De et al., Unlocking high-accuracy differentially private image classification
    through scale, 2022. https://arxiv.org/abs/2204.13650
    """
    del found  # nothing here has prerequisites
    experiment = Experiment.from_plain(
        {
            "data": {"name": cell.data},
            "model": {"name": "wide_resnet", "depth": 40, "width": 4},
            "method": {"name": "dp_sgd", "threshold": 1.0},
            # Their update divides clipped gradients by the threshold, which is 1.
            "optimizer": {"name": "sgd", "learning_rate": 2.0},
            "train": {
                "batch_size": 4096,
                "steps": 2000,
                "engine": "ghost",
                "ema": 0.9999,
                "augment": ["flip", "shift"],
                "multiplicity": 16,
            },
            "privacy": {"epsilon": cell.epsilon, "delta": cell.delta, "accountant": "rdp"},
        }
    )
    return Recipe(
        experiment,
        ours="2,000 steps, and the authors' public settings of WRN-16-4 at epsilon 1 for all else",
    )
