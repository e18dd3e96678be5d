"""Auto DP-SGD's settings, and the numbers of its tables that follow from its formulas."""

import math
from functools import cache
from typing import NamedTuple

from dpjax import accounting, methods
from dpjax.papers.auto_dp_epsilon import auto_dp_sgd_epsilon_as_printed
from dpjax.papers.printed_numbers import Cell, cells, training_size
from dpjax.sampling import Poisson

__all__ = [
    "BATCH",
    "DECAYS",
    "EPOCHS",
    "FORMULA_EPOCHS",
    "RHO_MU",
    "THRESHOLD",
    "ComputedNumber",
    "as_printed",
    "computed",
    "decay_of",
    "implied_sensitivity",
]

EPOCHS = {"mnist": 100, "cifar10": 100, "cifar100": 100, "ag_news": 40}
"""The epochs of appendix B.1."""

FORMULA_EPOCHS = 100
"""The epochs in the printed epsilons, even those of AG News, which is trained for 40."""

BATCH = {"mnist": 64, "cifar10": 64, "cifar100": 64, "ag_news": 256}
"""The batch sizes of appendix B.1."""

THRESHOLD = {"mnist": 50.0, "cifar10": 10.0, "cifar100": 20.0, "ag_news": 10.0}
"""The best fixed thresholds (section 5)."""

RHO_MU = {
    ("mnist", 1.4929): 1.142632,
    ("mnist", 0.9584): 1.108417,
    ("mnist", 0.6630): 1.112689,
    ("mnist", 0.5517): 1.103091,
    ("cifar10", 1.6082): 1.147104,
    ("cifar10", 1.0134): 1.111938,
    ("cifar10", 0.6848): 1.110026,
    ("cifar10", 0.5649): 1.101001,
    ("cifar100", 1.6082): 1.147104,
    ("cifar100", 1.0134): 1.111938,
    ("cifar100", 0.6848): 1.110026,
    ("cifar100", 0.5649): 1.101001,
}
"""Du's rho_mu at which GDP's central limit gives the printed epsilon over 100 epochs."""

DECAYS = {"L": "linear", "T": "time", "S": "step", "E": "exponential"}
"""The noise decays by the letters of the variants."""

_SMALLEST, _LARGEST = 1e-6, 1e6  # the range of sensitivities


def decay_of(cell: Cell) -> str | None:
    """Returns the decay of an Auto DP-SGD cell; None for other methods."""
    method = cell.method.removeprefix("Auto DP-")
    return DECAYS[method[0]] if method != cell.method else None


class ComputedNumber(NamedTuple):
    """A number computed by a formula.

    Attributes:
        value: the number.
        how: the formula in words.
    """

    value: float
    how: str


def computed(cell: Cell) -> ComputedNumber | None:
    """Returns a cell's number by the paper's formulas; None if a run is needed."""
    if cell.metric in ("epsilon change", "accuracy gain"):
        return _relative(cell)
    if cell.metric != "epsilon" or cell.sigma0 is None:
        return None
    if cell.method == "DP-SGD":
        value = _rdp(cell.sigma0, training_size(cell.data), BATCH[cell.data], EPOCHS[cell.data])
        return ComputedNumber(value, "RDP of sigma_0 over all steps, with Poisson sampling")
    if cell.method == "Adaptive (Zhang)":
        value = as_printed(cell, THRESHOLD[cell.data])
        how = f"table 8's formula for linear decay with C = {THRESHOLD[cell.data]:g}, E = 100"
        return ComputedNumber(value, how)
    return None


def as_printed(cell: Cell, sensitivity: float) -> float:
    """Returns the epsilon of table 8's formula, as printed; it is not a guarantee.

    Args:
        cell: a row of Auto DP-SGD's or of Zhang's method.
        sensitivity: C, the threshold or the average sensitivity.
    """
    if cell.sigma0 is None:
        raise ValueError(f"{cell.name}: expected a cell with a noise multiplier")
    return auto_dp_sgd_epsilon_as_printed(
        decay_of(cell) or DECAYS["L"],
        cell.sigma0,
        training_size(cell.data),
        BATCH[cell.data],
        FORMULA_EPOCHS,
        threshold=sensitivity,
    ).epsilon


def implied_sensitivity(cell: Cell) -> float:
    """Returns the average sensitivity at which the formula gives the printed epsilon.

    Epsilon increases with C, so bisection finds it.

    Args:
        cell: an epsilon of Auto DP-SGD's tables.

    Example:
        >>> from dpjax.papers.printed_numbers import cell_named
        >>> name = "auto-dp/17/ag-news/bilstm/2.04/sigma1.3768/auto-dp-s/epsilon"
        >>> round(implied_sensitivity(cell_named(name)), 2)
        7.22
    """
    low, high = math.log(_SMALLEST), math.log(_LARGEST)
    for _ in range(60):
        middle = (low + high) / 2
        above = as_printed(cell, math.exp(middle)) > cell.value
        low, high = (low, middle) if above else (middle, high)
    return math.exp(low)


@cache
def _rdp(sigma: float, size: int, batch: int, epochs: int) -> float:
    method = methods.dp_sgd(threshold=1.0, noise_multiplier=sigma)
    steps = math.ceil(epochs * size / batch)
    spent = accounting.epsilon(method, Poisson(batch, size), steps, 1e-5, accountant="rdp")
    return float(spent)


def _relative(cell: Cell) -> ComputedNumber:
    """Returns the change in percent from the best other method of the row."""
    row = [
        other
        for other in cells()
        if other.table_name == cell.table_name
        and other.sigma0 == cell.sigma0
        and other.metric == "accuracy"
    ]
    own = next(other for other in row if other.method == cell.method)
    best = max((other for other in row if other is not own), key=lambda other: other.value)
    if cell.metric == "epsilon change":
        value = 100 * ((own.epsilon or 0.0) / (best.epsilon or 1.0) - 1)
    else:
        value = 100 * (own.value / best.value - 1)
    return ComputedNumber(value, f"the change from {best.method}, the best other of the row")
