"""Auto DP-SGD: as printed, without a guarantee, and in a sound form."""

from typing import Any

from dpjax import _checks, rules, schedules, thresholds
from dpjax.mechanism import Mechanism
from dpjax.methods.base import Method

__all__ = ["auto_dp_sgd", "auto_dp_sgd_sound"]

_DECAYS = ("linear", "time", "step", "exponential")


def auto_dp_sgd(
    noise_multiplier: float,
    steps_per_epoch: float,
    epochs: int,
    decay: str = "step",
    scale: float = 1.0,
) -> Method:
    """Auto DP-SGD as printed: it runs, and its `guarantee` says why it gives none.

    Args:
        noise_multiplier: sigma_0.
        steps_per_epoch: N / B.
        epochs: E, which sets the rate of the "time" decay.
        decay: "linear" (geometric, in truth), "time", "step" or "exponential".
        scale: the paper's W, in (0, 1].

    >>> auto_dp_sgd(1.0, steps_per_epoch=10, epochs=5).guarantee.private
    False
    """
    sigma = _noise_decay(decay, noise_multiplier, steps_per_epoch, epochs)
    return Method("auto_dp_sgd", Mechanism(rules.auto_dp_as_printed(scale), 1.0, sigma))


def auto_dp_sgd_sound(
    noise_multiplier: float,
    steps_per_epoch: float,
    epochs: int,
    decay: str = "step",
    scale: float = 1.0,
    c0: float = 1.0,
    sigma_s: float | None = None,
    groups: Any = None,
) -> Method:
    """Auto DP-SGD made sound: real clipping at `scale` times the *private* mean norm.

    The noise decays as in the paper; the accounting reads the same schedule. Norms enter the
    private mean up to twice the mean that C stands for (kappa = 2 / scale).

    >>> auto_dp_sgd_sound(1.0, steps_per_epoch=10, epochs=5).guarantee.private
    True
    """
    sigma = _noise_decay(decay, noise_multiplier, steps_per_epoch, epochs)
    scale = _checks.fraction("scale", scale, one=True)
    threshold = thresholds.private_mean(scale, 2 / scale, c0, sigma_s)
    return Method("auto_dp_sgd_sound", Mechanism(rules.abadi(), threshold, sigma, groups))


def _noise_decay(
    decay: str, sigma0: float, steps_per_epoch: float, epochs: int
) -> schedules.Schedule:
    """Returns the decay of the paper's table 1, with the paper's rates."""
    epochs = _checks.integer("epochs", epochs, at_least=1)
    _checks.choice("decay", decay, _DECAYS)
    if decay == "linear":
        return schedules.geometric(sigma0, steps_per_epoch)
    if decay == "time":
        rate = _checks.positive("noise_multiplier", sigma0) / epochs
        return schedules.time_decay(sigma0, steps_per_epoch, rate)
    if decay == "step":
        return schedules.step_decay(sigma0, steps_per_epoch)
    return schedules.exponential_decay(sigma0, steps_per_epoch)
