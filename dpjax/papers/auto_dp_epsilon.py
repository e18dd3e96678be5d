"""Auto DP-SGD's closed forms for epsilon, exactly as printed. None of them is a guarantee."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dpjax import _checks, schedules
from dpjax.mechanism import Release

__all__ = ["AsPrinted", "auto_dp_sgd_claim", "auto_dp_sgd_epsilon_as_printed"]

_DECAYS = {
    schedules.geometric: "linear",
    schedules.time_decay: "time",
    schedules.step_decay: "step",
    schedules.exponential_decay: "exponential",
}
_LARGE = 1_000_000  # a data set size at which any rate is close to a whole number of examples


class AsPrinted(NamedTuple):
    """What the paper prints for a decay: no guarantee, see `auto_dp_sgd_epsilon_as_printed`."""

    epsilon: float
    rho: float
    omega: float


def auto_dp_sgd_epsilon_as_printed(
    decay: str,
    sigma_0: float,
    dataset_size: int,
    batch_size: int,
    epochs: int,
    delta: float = 1e-5,
    threshold: float = 1.0,
    rate: float | None = None,
    every: int = 10,
) -> AsPrinted:
    """Returns Auto DP-SGD's printed epsilon, for reproduction only.

    With ``a = 13 (B/M)^2 C^2 / (2 sigma_0^2)`` and ``w = log(M/B) sigma_0^2 / (2 C^2)``:

        linear       rho = a (1 - R^E) / (R^(E-1) - R^E)             omega = w R^(E-1)
        time         rho = a (2 E + R E (E-1)) / 2                   omega = w / (1 + R (E-1))
        step         rho = a / D (1 - R^P) / (R^(P-1) - R^P), P=E/D  omega = w R^(P-1)
        exponential  rho = a (e^(R E) - 1) / (e^R - 1)               omega = w / e^(R (E-1))

    and ``epsilon = rho + 2 sqrt(rho log(1/delta))`` whatever omega is.

    Privacy:
        None. The mechanism has no bound, so no epsilon exists. The formulas have further errors:
        they compose E epochs instead of E M / B steps; C should cancel; the subsampling lemma needs
        rho <= 0.1, which holds for no printed sigma; the conversion needs a delta near 1, or an
        omega above 1; and the sum for "step" is too small by D^2. `dpjax.accounting.epsilon` of
        `dpjax.methods.auto_dp_sgd_sound` is the cost of the same schedule with real clipping.

    Args:
        decay: "linear", "time", "step" or "exponential".
        sigma_0: the first noise multiplier.
        dataset_size: M.
        batch_size: B.
        epochs: E.
        delta: the paper's 1e-5.
        threshold: C, the paper's data-dependent "threshold estimate".
        rate: R; None for the paper's .99, sigma_0 / E, .5 and .1.
        every: D, for step.

    Example:
        >>> printed = auto_dp_sgd_epsilon_as_printed("linear", 1.0, 60_000, 64, 100)
        >>> round(printed.epsilon, 4)
        0.2429

    Reference: Auto DP-SGD, table 8 and appendix D.
    """
    _checks.choice("decay", decay, _RHO_OMEGA)
    sigma_0 = _checks.positive("sigma_0", sigma_0)
    size = _checks.integer("dataset_size", dataset_size, at_least=1)
    batch = _checks.integer("batch_size", batch_size, at_least=1)
    epochs = _checks.integer("epochs", epochs, at_least=1)
    delta = _checks.fraction("delta", delta)
    threshold = _checks.positive("threshold", threshold)
    default = {"linear": 0.99, "time": sigma_0 / epochs, "step": 0.5, "exponential": 0.1}[decay]
    rate = default if rate is None else _checks.positive("rate", rate)
    a = 13 * (batch / size) ** 2 * threshold**2 / (2 * sigma_0**2)
    w = math.log(size / batch) * sigma_0**2 / (2 * threshold**2)
    factor, shrink = _RHO_OMEGA[decay](rate, epochs, every)
    rho = a * factor
    return AsPrinted(rho + 2 * math.sqrt(rho * math.log(1 / delta)), rho, w * shrink)


def auto_dp_sgd_claim(method: Release, rate: float, steps: int, delta: float) -> float:
    """Returns the epsilon that the paper's formula gives for some steps of a method.

    `dpjax.audit` tests this claim, passed as its argument `printed`. It is not a guarantee.

    Args:
        method: Auto DP-SGD, with one of the paper's noise decays.
        rate: the probability with which a step takes an example.
        steps: how many steps are released; the formula counts epochs, at least one.
        delta: the target.

    Example:
        >>> from dpjax.papers.auto_dp_sgd import auto_dp_sgd
        >>> method = auto_dp_sgd(1.0, steps_per_epoch=4, epochs=10, decay="linear")
        >>> round(auto_dp_sgd_claim(method, rate=0.25, steps=4, delta=1e-3), 3)
        3.757

    Raises:
        ValueError: if the noise is not one of the paper's decays.
    """
    noise: Any = method.noise_multiplier
    decay = _DECAYS.get(type(noise))
    if decay is None:
        raise ValueError(f"noise_multiplier = {noise!r}: expected one of Auto DP-SGD's decays")
    return auto_dp_sgd_epsilon_as_printed(
        decay,
        noise.init,
        _LARGE,
        round(rate * _LARGE),
        max(1, round(steps * rate)),
        delta,
        rate=_rate(noise),
        **({"every": noise.every} if decay == "step" else {}),
    ).epsilon


def _rate(noise: Any) -> float:
    by_length = isinstance(noise, schedules.time_decay) and noise.epochs is not None
    return noise.init / noise.epochs if by_length else noise.rate


def _geometric(ratio: float, terms: float) -> tuple[float, float]:
    last = ratio ** (terms - 1)
    factor = terms if ratio == 1 else (1 - ratio**terms) / (last - ratio**terms)
    return factor, last


def _step(rate: float, epochs: int, every: int) -> tuple[float, float]:
    factor, last = _geometric(rate, epochs / every)
    return factor / every, last


_RHO_OMEGA: dict[str, Callable[[float, int, int], tuple[float, float]]] = {
    "linear": lambda r, e, _: _geometric(r, e),
    "time": lambda r, e, _: ((2 * e + r * e * (e - 1)) / 2, 1 / (1 + r * (e - 1))),
    "step": _step,
    "exponential": lambda r, e, _: _geometric(math.exp(-r), e),
}
