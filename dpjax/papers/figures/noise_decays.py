"""Auto DP-SGD's noise over epochs, and its epsilon as printed and as accounted (its figure 1)."""

import math
from typing import NamedTuple

import numpy as np

from dpjax import accounting, methods
from dpjax.mechanism import Mechanism
from dpjax.papers.auto_dp_epsilon import auto_dp_sgd_epsilon_as_printed
from dpjax.sampling import Poisson
from dpjax.schedules import steps_of

__all__ = ["DECAYS", "NoiseDecay", "noise_decay"]

DECAYS = ("linear", "time", "step", "exponential")
"""The paper's names; its "linear" is geometric."""


class NoiseDecay(NamedTuple):
    """One decay over a run.

    Attributes:
        name: one of `DECAYS`.
        sigmas: sigma_e of each epoch, from 0.
        epochs: the numbers of epochs at which epsilon is computed.
        epsilons: epsilon of the sound method at this noise, by RDP.
        printed: epsilon by the paper's formula, which is not a guarantee.
    """

    name: str
    sigmas: np.ndarray
    epochs: np.ndarray
    epsilons: np.ndarray
    printed: np.ndarray


def noise_decay(
    name: str,
    sigma_0: float = 1.0,
    dataset_size: int = 60_000,
    batch_size: int = 64,
    epochs: int = 100,
    delta: float = 1e-5,
    every: int = 10,
) -> NoiseDecay:
    """Returns a decay with the paper's rates, and both epsilons.

    Args:
        name: one of `DECAYS`.
        sigma_0: the first noise multiplier.
        dataset_size: M.
        batch_size: B.
        epochs: E.
        delta: the target.
        every: the number of epochs between two epsilons.
    """
    per_epoch = dataset_size / batch_size
    method = methods.auto_dp_sgd_sound(
        sigma_0, steps_per_epoch=per_epoch, epochs=epochs, decay=name
    )
    # The middle of an epoch, since the number of its first step is rounded.
    middles = [int((epoch + 0.5) * per_epoch) for epoch in range(epochs)]
    sigmas = [float(method.sigma(t)) for t in middles]
    reached = np.arange(every, epochs + 1, every)
    rate = sigma_0 / epochs if name == "time" else None  # of the whole run, at every epoch
    sampling = Poisson(batch_size, dataset_size)
    spent = [_spent(method, sampling, steps_of(float(e), per_epoch), delta) for e in reached]
    printed = [
        auto_dp_sgd_epsilon_as_printed(
            name, sigma_0, dataset_size, batch_size, int(e), delta, rate=rate
        ).epsilon
        for e in reached
    ]
    return NoiseDecay(name, np.asarray(sigmas), reached, np.asarray(spent), np.asarray(printed))


def _spent(method: Mechanism, sampling: Poisson, steps: int, delta: float) -> float:
    """Returns epsilon; +inf if so little noise is left that there is none at this delta."""
    try:
        return accounting.epsilon(method, sampling, steps, delta, "rdp").upper
    except ValueError:
        return math.inf
