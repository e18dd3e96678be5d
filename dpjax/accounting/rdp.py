"""Renyi differential privacy: dp-accounting's orders and conversions, whole schedules at once."""

from collections.abc import Sequence

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import rdp as library

from dpjax.accounting.leaves import Fixed, Gaussians, Poisson, leaves
from dpjax.accounting.rdp_fixed import rdp_fixed_size
from dpjax.accounting.rdp_poisson import rdp_poisson

__all__ = ["ORDERS", "TAIL_ORDERS", "rdp", "rdp_delta", "rdp_epsilon"]

ORDERS: tuple[float, ...] = tuple(library.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
"""dp-accounting's default orders."""

TAIL_ORDERS: tuple[float, ...] = (
    *ORDERS[:-4],
    *range(64, 128, 4),
    *range(128, 256, 8),
    *range(256, 1025, 32),
)
"""The default orders and more beyond 63, where the best one lies for a delta of 1e-15 and less."""


def rdp(
    event: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    orders: Sequence[float] = ORDERS,
) -> np.ndarray:
    """Returns the Renyi divergence of an event at every order.

    Divergences of composed releases add up. All noise multipliers of a schedule are worked out
    together; what is not a Gaussian is left to dp-accounting's own accountant.

    Args:
        event: any event; under replace-one its Gaussians are halved already, see `event`.
        relation: the neighbouring relation.
        orders: (A,) orders.
    """
    parts = leaves(event)
    total = np.zeros(len(orders))
    for gaussians in parts.gaussians:
        total += gaussians.counts @ _one_release(gaussians, relation, orders)
    if parts.others:
        accountant = library.RdpAccountant(orders, relation)
        for other, count in parts.others:
            accountant.compose(other, count)
        total += accountant.rdp
    return total


def _one_release(
    gaussians: Gaussians,
    relation: NeighboringRelation,
    orders: Sequence[float],
) -> np.ndarray:
    sampling, replace = gaussians.sampling, NeighboringRelation.REPLACE_ONE
    if isinstance(sampling, Poisson) and (sampling.rate == 1 or relation is not replace):
        return rdp_poisson(sampling.rate, gaussians.sigmas, orders)
    if isinstance(sampling, Fixed) and relation is replace:
        return rdp_fixed_size(sampling.size / sampling.dataset_size, gaussians.sigmas, orders)
    raise ValueError(f"{sampling!r} under {relation.name.lower()}: RDP has no bound for it")


def rdp_epsilon(
    event: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    delta: float,
    orders: Sequence[float] = ORDERS,
) -> float:
    """Returns the smallest epsilon over the orders, by dp-accounting's conversion."""
    values = rdp(event, relation, orders)
    return float(library.rdp_privacy_accountant.compute_epsilon(orders, values, delta)[0])


def rdp_delta(
    event: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    epsilon: float,
    orders: Sequence[float] = ORDERS,
) -> float:
    """Returns the smallest delta over the orders, by dp-accounting's conversion."""
    values = rdp(event, relation, orders)
    return float(library.rdp_privacy_accountant.compute_delta(orders, values, epsilon)[0])
