"""Gaussian differential privacy: exact without sampling, a central-limit approximation with it."""

import math

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from scipy import special

from dpjax.accounting.gaussians import PoissonSampling, leaves

__all__ = ["APPROXIMATION", "gdp_delta", "gdp_epsilon", "gdp_mu"]

APPROXIMATION = (
    "the central-limit figure of Gaussian DP: an approximation that is usually too small, and no "
    "guarantee"
)


def gdp_mu(event: dp_accounting.DpEvent, relation: NeighboringRelation) -> tuple[float, bool]:
    """Returns mu, and whether it is exact.

    ``mu^2 = sum_t q^2 (e^(1/sigma_t^2) - 1)`` for Poisson sampling, in the limit of many steps at a
    small rate; ``mu^2 = sum_t 1 / sigma_t^2`` without sampling (four times that under replace-one),
    which is exact. Both kinds add up in mu^2.

    Reference: Dong, Roth and Su, Gaussian Differential Privacy, 2019,
    https://arxiv.org/abs/1905.02383; Bu, Dong, Long and Su, Deep Learning with Gaussian
    Differential Privacy, 2020, https://arxiv.org/abs/1911.11607
    """
    change = 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0
    parts = leaves(event)
    squared, exact = 0.0, True
    for sampling, sigmas, counts in parts.gaussians:
        if not isinstance(sampling, PoissonSampling) or (sampling.rate < 1 and change > 1):
            raise ValueError(f"{sampling!r}: GDP has no figure for it; expected 'pld' or 'rdp'")
        if sampling.rate == 1.0:
            squared += change**2 * float(counts @ sigmas**-2.0)
        else:
            exact = False
            with np.errstate(over="ignore"):
                squared += sampling.rate**2 * float(counts @ np.expm1(sigmas**-2.0))
    if parts.others:
        raise ValueError(f"{parts.others[0][0]!r}: GDP has no figure for it; expected 'rdp'")
    return math.sqrt(squared), exact


def gdp_epsilon(mu: float, delta: float) -> float:
    """Returns the epsilon of mu-GDP, which is that of a Gaussian with sigma = 1 / mu.

    >>> round(gdp_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    if mu == 0 or not mu < math.inf:
        return 0.0 if mu == 0 else math.inf
    with np.errstate(divide="ignore"):  # log(0), far from the solution
        return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta))


def gdp_delta(mu: float, epsilon: float) -> float:
    """Returns ``Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``.

    >>> round(gdp_delta(1.0, 1.0), 4)
    0.1269
    """
    if mu == 0 or not mu < math.inf:
        return 0.0 if mu == 0 else 1.0
    inside = special.log_ndtr(mu / 2 - epsilon / mu)
    outside = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return float(np.exp(inside) * -np.expm1(min(outside - inside, 0.0)))
