"""Methods whose threshold adapts through a private statistic."""

from typing import Any

from dpjax import rules, thresholds
from dpjax.mechanism import Mechanism
from dpjax.methods.base import Method
from dpjax.schedules import FloatOrSchedule

__all__ = ["andrew", "dc_sgd_e", "dc_sgd_p", "global_adapt", "van_der_veen"]


def andrew(
    noise_multiplier: FloatOrSchedule,
    target: float = 0.5,
    lr: float = 0.2,
    c0: float = 1.0,
    sigma_b: float | None = None,
    groups: Any = None,
) -> Method:
    """Andrew et al. 2021: the threshold follows a quantile of the norms."""
    threshold = thresholds.quantile(target, lr, c0, sigma_b)
    return Method("andrew", Mechanism(rules.abadi(), threshold, noise_multiplier, groups))


def dc_sgd_p(
    noise_multiplier: FloatOrSchedule,
    p: float = 0.5,
    c0: float = 1.0,
    bins: int = 20,
    sigma_h: float | None = None,
    groups: Any = None,
) -> Method:
    """DC-SGD-P: the threshold is a percentile of a private histogram of the norms.

    >>> dc_sgd_p(noise_multiplier=1.0, p=0.3).mechanism.sigma_statistic()
    5.0
    """
    threshold = thresholds.dc_sgd_p(p, c0, bins, sigma_h)
    return Method("dc_sgd_p", Mechanism(rules.abadi(), threshold, noise_multiplier, groups))


def dc_sgd_e(
    noise_multiplier: FloatOrSchedule,
    c0: float = 1.0,
    bins: int = 20,
    sigma_h: float | None = None,
    negative: str = "nonneg",
    groups: Any = None,
) -> Method:
    """DC-SGD-E: the threshold minimises the expected squared error of the released gradient."""
    threshold = thresholds.dc_sgd_e(c0, bins, sigma_h, negative=negative)
    return Method("dc_sgd_e", Mechanism(rules.abadi(), threshold, noise_multiplier, groups))


def van_der_veen(
    noise_multiplier: FloatOrSchedule,
    alpha: float = 1.0,
    kappa: float = 2.0,
    c0: float = 1.0,
    sigma_s: float | None = None,
    groups: Any = None,
) -> Method:
    """Van der Veen et al. 2018: the threshold is `alpha` times the private mean norm."""
    threshold = thresholds.private_mean(alpha, kappa, c0, sigma_s)
    return Method("van_der_veen", Mechanism(rules.abadi(), threshold, noise_multiplier, groups))


def global_adapt(
    noise_multiplier: FloatOrSchedule,
    scale: float = 1.0,
    tau: float = 1.0,
    eta: float = 0.1,
    z0: float = 1.0,
    sigma_b: float | None = None,
    groups: Any = None,
) -> Method:
    """DP-SGD-Global-Adapt (Esipova et al. 2023): like Global, with a z that adapts."""
    threshold = thresholds.global_z(tau, eta, z0, sigma_b)
    rule = rules.global_adapt(scale)
    return Method("global_adapt", Mechanism(rule, threshold, noise_multiplier, groups))
