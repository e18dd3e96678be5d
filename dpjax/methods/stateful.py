"""Methods that carry more than a threshold from step to step: momentum and AdaCliP."""

from typing import Any

from dpjax import _checks, rules
from dpjax.adaclip import adaclip as preconditioner
from dpjax.mechanism import Mechanism
from dpjax.methods.base import Method
from dpjax.momentum import inner_momentum
from dpjax.schedules import FloatOrSchedule
from dpjax.stored_momentum import stored_momentum

__all__ = ["adaclip", "psasc_momentum", "psasc_momentum_full_batch"]


def psasc_momentum(
    noise_multiplier: FloatOrSchedule,
    gamma0: float = 0.5,
    gamma1: float = 0.1,
    length: int = 1,
    r: float = 0.01,
    s: float = 0.9,
    threshold: FloatOrSchedule = 1.0,
    groups: Any = None,
) -> Method:
    """DP-PSASC with inner and outer momentum (algorithm 3), in the form that can be run.

    ``m_i = sum_l gamma0^(k - l) grad f(w_l, x_i)`` over the last `length` iterates and this one;
    the rule; ``M_k = (1 - gamma1) M_{k-1} + noisy sum``. The paper gives no values of its own.

    Args:
        noise_multiplier: sigma.
        gamma0: inner decay, in (0, 1).
        gamma1: outer rate, in (0, 1).
        length: K0; a step costs K0 + 1 gradients.
        r: see `dpjax.rules.psasc`.
        s: see `dpjax.rules.psasc`.
        threshold: C.
        groups: see `Mechanism`.
    """
    return Method(
        "psasc_momentum",
        Mechanism(rules.psasc(r, s), threshold, noise_multiplier, groups),
        momentum=inner_momentum(gamma0, length),
        outer_momentum=1 - _checks.fraction("gamma1", gamma1),
    )


def psasc_momentum_full_batch(
    noise_multiplier: FloatOrSchedule,
    dataset_size: int,
    gamma: float = 0.5,
    r: float = 0.01,
    s: float = 0.9,
    threshold: FloatOrSchedule = 1.0,
    groups: Any = None,
) -> Method:
    """DP-PSASC with stored momentum (algorithm 2): full batches, no amplification by sampling."""
    return Method(
        "psasc_momentum_full_batch",
        Mechanism(rules.psasc(r, s), threshold, noise_multiplier, groups),
        momentum=stored_momentum(gamma, dataset_size),
    )


def adaclip(
    noise_multiplier: FloatOrSchedule,
    beta1: float = 0.9,
    beta2: float = 0.99,
    h_floor: float = 1e-5,
    h_ceiling: float = 1e-3,
) -> Method:
    """AdaCliP (Pichapati et al. 2019): clip gradients standardised by private moments.

    >>> adaclip(noise_multiplier=1.0).mechanism
    Mechanism(rule=abadi(), threshold=1.0, noise_multiplier=1.0, groups=None)
    """
    return Method(
        "adaclip",
        Mechanism(rules.abadi(), 1.0, noise_multiplier),
        preconditioner=preconditioner(beta1, beta2, h_floor, h_ceiling),
    )
