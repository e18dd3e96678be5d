"""What an audit compares: the claimed epsilon, and the lower bound that an attack found."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from dpjax import accounting, schedules
from dpjax.mechanism import Mechanism, Release
from dpjax.sampling import FullBatch, Poisson

__all__ = ["Claim", "Finding", "PrintedEpsilon", "claim_of", "with_noise_times"]

Noisy = TypeVar("Noisy", bound=Release)

PrintedEpsilon = Callable[[Release, float, int, float], float]
"""A paper's formula for a method without a guarantee: (method, rate, steps, delta) -> epsilon."""


class Claim(NamedTuple):
    """An epsilon, and who claims it.

    Attributes:
        epsilon: the claim.
        source: "accounted", or "printed" for a paper's formula where there is no guarantee.

    Example:
        >>> Claim(epsilon=2.0, source="printed")
        Claim(epsilon=2.0, source='printed')
    """

    epsilon: float
    source: str


def claim_of(
    method: Release,
    rate: float,
    steps: int,
    delta: float,
    printed: PrintedEpsilon | None = None,
) -> Claim:
    """Returns the epsilon that is claimed for some steps of a method.

    Args:
        method: the method.
        rate: the probability with which a step takes an example; 1 if every step does.
        steps: how many steps are released.
        delta: the target.
        printed: the formula to test if the method has no guarantee, and so no accounting.

    Raises:
        ValueError: if the method has no guarantee, and `printed` is None.

    Example:
        >>> import dpjax
        >>> claim = claim_of(dpjax.methods.dp_sgd(noise_multiplier=1.0), 1.0, 1, delta=1e-3)
        >>> round(claim.epsilon, 2), claim.source
        (3.14, 'accounted')
    """
    if isinstance(method, Mechanism):
        sampling = FullBatch() if rate == 1 else Poisson.with_rate(rate)
        return Claim(float(accounting.epsilon(method, sampling, steps, delta)), "accounted")
    if printed is None:
        raise ValueError(f"{method.name} has no guarantee: expected a formula for `printed`")
    return Claim(printed(method, rate, steps, delta), "printed")


def with_noise_times(method: Noisy, factor: float) -> Noisy:
    """Returns the method with the noise of both gradient and statistic multiplied by a factor.

    A factor below 1 breaks the claim of the original method, which an audit must detect.

    Args:
        method: the method.
        factor: the factor, > 0.

    Returns:
        The method with the new noise; everything else is unchanged.

    Example:
        >>> import dpjax
        >>> weak = with_noise_times(dpjax.methods.dp_sgd(noise_multiplier=1.0), 0.5)
        >>> weak.noise_multiplier
        0.5
    """
    noise = method.noise_multiplier
    if factor == 1 or noise is None:
        return method
    less = schedules.scaled(noise, factor) if callable(noise) else factor * noise
    return method.replace(noise_multiplier=less)


@dataclass(frozen=True, eq=False)
class Finding:
    """One attack on one method.

    Attributes:
        name: the method's name.
        attack: "step", "one run" or "final model".
        detail: which pair and score, or how many canaries.
        claimed: the epsilon that is claimed at `delta`.
        source: who claims it: "accounted", or "printed" where there is no guarantee.
        bound: the lower bound on epsilon.
        confidence: the probability with which this bound and the others computed from the same
            draws all hold.
        tried: how many bounds hold together with that confidence; the best is reported.
        delta: the delta of claim and bound.
        draws: how many scores there are in each world.
        included: scores with the canary; -inf where the attack named another one.
        excluded: scores without it.
        claim_at: returns the epsilon that is claimed at another delta.
    """

    name: str
    attack: str
    detail: str
    claimed: float
    source: str
    bound: float
    confidence: float
    delta: float
    draws: int
    included: np.ndarray = field(repr=False)
    excluded: np.ndarray = field(repr=False)
    claim_at: Callable[[float], float] = field(repr=False)
    tried: int = 1

    @property
    def refuted(self) -> bool:
        """Whether the lower bound lies above the claim."""
        return not self.bound <= self.claimed

    @property
    def verdict(self) -> str:
        """The verdict in one word; "holds" only means that this attack did not refute the claim."""
        return "REFUTED" if self.refuted else "holds"
