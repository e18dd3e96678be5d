"""Methods whose threshold or noise follows a public schedule: Yu, Du, Lin, Zhang."""

from collections.abc import Sequence
from typing import Any

from dpjax import _checks, rules, schedules
from dpjax.mechanism import Mechanism
from dpjax.methods.base import Method
from dpjax.schedules import FloatOrSchedule

__all__ = ["du", "lin_decay", "lin_transfer", "yu", "zhang_adaptive"]


def yu(
    noise_multiplier: FloatOrSchedule, steps: int, c0: float = 1.0, groups: Any = None
) -> Method:
    """Yu et al. 2019: the threshold falls to one half over the run.

    >>> yu(noise_multiplier=1.0, steps=100).mechanism.threshold
    yu_linear(init=1.0, steps=100)
    """
    curve = schedules.yu_linear(c0, steps)
    return Method("yu", Mechanism(rules.abadi(), curve, noise_multiplier, groups))


def du(
    noise_multiplier: float,
    steps: int,
    c0: float = 1.0,
    rho_c: float = 0.5,
    rho_mu: float = 1.0,
    groups: Any = None,
) -> Method:
    """Du et al. 2021, Dynamic DP-SGD: threshold and noise both fall geometrically.

    Args:
        noise_multiplier: sigma_0.
        steps: T.
        c0: the first threshold.
        rho_c: the last threshold over the first, in (0, 1].
        rho_mu: the last 1/sigma over the first, >= 1; 1 keeps the noise constant.
        groups: see `Mechanism`.
    """
    if not _checks.normal("rho_mu", rho_mu) >= 1:
        raise ValueError(f"rho_mu = {rho_mu!r}: expected a number >= 1")
    sigma = schedules.du_decay(noise_multiplier, 1 / rho_mu, steps)
    curve = schedules.du_decay(c0, rho_c, steps)
    return Method("du", Mechanism(rules.abadi(), curve, sigma, groups))


def lin_decay(
    noise_multiplier: FloatOrSchedule,
    steps_per_epoch: float,
    c0: float = 1.0,
    exponent: float = 0.5,
    groups: Any = None,
) -> Method:
    """Lin et al. 2022, Decay: the threshold falls as a power of the epoch."""
    curve = schedules.power_decay(c0, steps_per_epoch, exponent)
    return Method("lin_decay", Mechanism(rules.abadi(), curve, noise_multiplier, groups))


def lin_transfer(
    noise_multiplier: FloatOrSchedule,
    thresholds: Sequence[float],
    steps_per_epoch: float,
    groups: Any = None,
) -> Method:
    """Lin et al. 2022, Transfer: one threshold per epoch, found on a public data set."""
    if not isinstance(thresholds, list | tuple):
        raise TypeError(f"thresholds = {thresholds!r}: expected a list of numbers, one per epoch")
    curve = schedules.table(tuple(thresholds), steps_per_epoch)
    return Method("lin_transfer", Mechanism(rules.abadi(), curve, noise_multiplier, groups))


def zhang_adaptive(
    noise_multiplier: float,
    steps_per_epoch: float,
    threshold: FloatOrSchedule = 1.0,
    rate: float = 0.99,
    groups: Any = None,
) -> Method:
    """Zhang et al. 2021, Adaptive DP-SGD: the noise's variance falls by `rate` every epoch."""
    sigma = schedules.geometric(noise_multiplier, steps_per_epoch, rate)
    return Method("zhang_adaptive", Mechanism(rules.abadi(), threshold, sigma, groups))
