"""Truncated concentrated differential privacy: lemmas with their conditions checked."""

import math
from typing import NamedTuple

import dp_accounting
from dp_accounting import NeighboringRelation

from dpjax.accounting.gaussians import FixedSampling, Gaussians, PoissonSampling, leaves

__all__ = ["NOT_PROVEN", "TCdp", "tcdp", "tcdp_delta", "tcdp_epsilon"]

NOT_PROVEN = (
    "the subsampling lemma is proven for batches of fixed size; for Poisson sampling it was "
    "checked numerically (the true divergence is below a tenth of the lemma's), not proven"
)


class TCdp(NamedTuple):
    """(rho, omega)-tCDP: the Renyi divergence of order alpha is at most rho alpha up to omega."""

    rho: float
    omega: float


def tcdp(event: dp_accounting.DpEvent, relation: NeighboringRelation) -> TCdp:
    """Returns the (rho, omega) of an event of Gaussian releases.

    A Gaussian is ``(1 / (2 sigma^2), inf)``, with four times that rho under replace-one. Sampling
    at a rate q makes (rho, inf) into ``(13 q^2 rho, log(1/q) / (4 rho))``. Composition, step by
    step, adds rho and takes the smallest omega.

    Args:
        event: a composition of Gaussians, Poisson sampled, in batches of fixed size or not sampled.
        relation: the neighbouring relation.

    Raises:
        ValueError: where the lemma's conditions do not hold; there is no number then.

    Reference: Bun, Dwork, Rothblum and Steinke, Composable and Versatile Privacy via Truncated CDP,
    2018, https://doi.org/10.1145/3188745.3188946; Auto DP-SGD, section 3.
    """
    parts = leaves(event)
    if parts.others:
        raise ValueError(f"{parts.others[0][0]!r}: tCDP has no lemma for it; expected 'rdp'")
    rho, omega = 0.0, math.inf
    for gaussians in parts.gaussians:
        each = _each(gaussians, relation)
        rho += sum(int(n) * one.rho for n, one in zip(gaussians.counts, each, strict=True))
        omega = min(omega, *(one.omega for one in each))
    return TCdp(rho, omega)


def _each(gaussians: Gaussians, relation: NeighboringRelation) -> list[TCdp]:
    change = 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0
    sampling = gaussians.sampling
    if isinstance(sampling, FixedSampling):
        rate = sampling.size / sampling.dataset_size
    elif isinstance(sampling, PoissonSampling):
        rate = sampling.rate
    else:
        raise ValueError(f"{sampling!r}: tCDP has no lemma for it; expected 'pld'")
    plain = [(change / sigma) ** 2 / 2 for sigma in gaussians.sigmas.tolist()]
    if rate == 1.0:
        return [TCdp(rho, math.inf) for rho in plain]
    return [
        _sampled(rate, rho, sigma)
        for rho, sigma in zip(plain, gaussians.sigmas.tolist(), strict=True)
    ]


def _sampled(rate: float, rho: float, sigma: float) -> TCdp:
    gain = math.log(1 / rate)
    # The paper's logarithm inside is to base 2; both are implied by rho, q <= 0.1.
    if not (rho <= 0.1 and rate <= 0.1 and gain >= 3 * rho * (2 + math.log2(1 / rho))):
        raise ValueError(
            f"accountant = 'tcdp' at noise_multiplier = {sigma:g}, rate = {rate:g}: the "
            f"subsampling lemma needs rho <= 0.1 and rate <= 0.1, and rho = {rho:.4g} here; "
            "expected 'pld' or 'rdp', or more noise"
        )
    return TCdp(13 * rate**2 * rho, gain / (4 * rho))


def tcdp_epsilon(guarantee: TCdp, delta: float) -> float:
    """Returns the epsilon of (rho, omega)-tCDP.

    The best of ``rho alpha + log(1/delta) / (alpha - 1)`` over alpha < omega: ``rho + 2 sqrt(rho
    log(1/delta))`` where its alpha is allowed, and alpha = omega otherwise.

    >>> round(tcdp_epsilon(TCdp(0.02, math.inf), 1e-5), 4)
    0.9797
    """
    rho, omega = guarantee
    room = math.log(1 / delta)
    if room <= (omega - 1) ** 2 * rho and omega > 1:
        return rho + 2 * math.sqrt(rho * room)
    if not omega > 1:
        raise ValueError(
            f"(rho, omega) = ({rho:.4g}, {omega:.4g}): no epsilon follows; expected an omega > 1, "
            "that is more noise or a smaller rate"
        )
    return omega * rho + room / (omega - 1)


def tcdp_delta(guarantee: TCdp, epsilon: float) -> float:
    """Returns the delta of (rho, omega)-tCDP, at best ``e^(-(alpha-1)(epsilon - rho alpha))``."""
    rho, omega = guarantee
    if not omega > 1:
        return 1.0
    best = min((epsilon / rho + 1) / 2, omega)
    return min(1.0, math.exp(-(best - 1) * (epsilon - rho * best))) if best > 1 else 1.0
