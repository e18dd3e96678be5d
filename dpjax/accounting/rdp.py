"""Renyi differential privacy: dp-accounting's orders and conversions, whole schedules at once."""

from collections.abc import Sequence
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import rdp as library
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from dpjax.accounting.leaves import (
    Fixed,
    Gaussians,
    Poisson,
    Truncated,
    leaves,
    releases,
    truncation,
)
from dpjax.accounting.rdp_fixed import rdp_fixed_size
from dpjax.accounting.rdp_poisson import rdp_poisson

__all__ = [
    "ORDERS",
    "TAIL_ORDERS",
    "RdpAccountant",
    "rdp",
    "rdp_delta",
    "rdp_epsilon",
    "truncation_mass",
]

ORDERS: tuple[float, ...] = tuple(library.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
"""dp-accounting's default orders."""

TAIL_ORDERS: tuple[float, ...] = (
    *ORDERS[:-4],
    *range(64, 128, 4),
    *range(128, 256, 8),
    *range(256, 1025, 32),
)
"""The default orders and more beyond 63, where the best one lies for a delta of 1e-15 and less."""


class RdpAccountant(library.RdpAccountant):  # type: ignore[misc]
    """dp-accounting's accountant, with all noise multipliers of a schedule worked out together.

    Divergences of composed releases add up. What is no Gaussian, and what stands around Gaussians
    (`RepeatAndSelectDpEvent`), is left to dp-accounting. Under replace-one the event's Gaussians
    are halved already, see `dpjax.accounting.event`. Of truncated Poisson sampling it has the
    divergence given that no batch was full; `truncation_mass` is the rest.
    """

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> Any:
        parts = leaves(event)
        for other, times in parts.others:
            error = super()._maybe_compose(other, count * times, do_compose)
            if error is not None:
                return error
        for gaussians in parts.gaussians if do_compose else ():
            self._rdp += count * (gaussians.counts @ self._one_release(gaussians))
        return None

    def _one_release(self, gaussians: Gaussians) -> np.ndarray:
        sampling, replace = gaussians.sampling, NeighboringRelation.REPLACE_ONE
        replaced = self.neighboring_relation is replace
        if isinstance(sampling, Truncated) and not replaced:
            return rdp_poisson(sampling.rate, gaussians.sigmas, self._orders)
        if isinstance(sampling, Poisson) and (sampling.rate == 1 or not replaced):
            return rdp_poisson(sampling.rate, gaussians.sigmas, self._orders)
        if isinstance(sampling, Fixed) and replaced:
            rate = sampling.size / sampling.dataset_size
            return rdp_fixed_size(rate, gaussians.sigmas, self._orders)
        relation = self.neighboring_relation.name.lower()
        raise ValueError(f"{sampling!r} under {relation}: RDP has no bound for it")


def rdp(
    event: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    orders: Sequence[float] = ORDERS,
) -> np.ndarray:
    """Returns the Renyi divergence of an event at every order.

    >>> rdp(dp_accounting.GaussianDpEvent(2.0), NeighboringRelation.ADD_OR_REMOVE_ONE, [8.0])
    array([1.])
    """
    return RdpAccountant(orders, relation).compose(event).rdp


def truncation_mass(event: dp_accounting.DpEvent) -> float:
    """Returns at most the probability that a truncated batch was full without the example.

    The pair of outputs that dominates a step under truncated Poisson sampling is a mixture: with
    probability p that of a full batch, and else that of Poisson sampling; p depends on no example,
    and both outputs may show which it was. So delta is at most that of Poisson sampling plus the
    sum of p over the steps.

    Raises:
        ValueError: for a random number of truncated runs, where this does not hold.

    Reference: arXiv 2508.15089, as in dp-accounting's PLD.
    """
    gaussians, others = releases(event)
    for other, _ in others:
        if isinstance(other, RepeatAndSelectDpEvent) and truncation_mass(other.event) > 0:
            raise ValueError(
                "TruncatedPoisson in a search with a random number of runs: no bound is known; "
                "expected Poisson sampling, or grid_composition"
            )
    return sum(float(each.counts.sum()) * truncation(each.sampling) for each in gaussians)


def rdp_epsilon(
    event: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    delta: float,
    orders: Sequence[float] = ORDERS,
) -> float:
    """Returns the smallest epsilon over the orders, by dp-accounting's conversion.

    Raises:
        ValueError: if truncation takes half of delta or more.
    """
    truncated = truncation_mass(event)
    if not truncated < delta / 2:
        raise ValueError(
            f"delta = {delta:g} with accountant = 'rdp': a batch is truncated with probability "
            f"{truncated:.2g} over these steps, expected less than half of delta: a larger "
            "max_size, or accountant = 'pld'"
        )
    values = rdp(event, relation, orders)
    left = delta - truncated
    return float(library.rdp_privacy_accountant.compute_epsilon(orders, values, left)[0])


def rdp_delta(
    event: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    epsilon: float,
    orders: Sequence[float] = ORDERS,
) -> float:
    """Returns the smallest delta over the orders, by dp-accounting's conversion."""
    values = rdp(event, relation, orders)
    delta = float(library.rdp_privacy_accountant.compute_delta(orders, values, epsilon)[0])
    return min(1.0, delta + truncation_mass(event))
