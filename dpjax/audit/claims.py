"""What is claimed for a method, and what runs in its place when the audit itself is tested."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from dpjax import accounting, schedules
from dpjax.mechanism import Mechanism, Release
from dpjax.sampling import FullBatch, Poisson

__all__ = ["Claim", "PrintedEpsilon", "claim_of", "with_noise_times"]

Noisy = TypeVar("Noisy", bound=Release)

PrintedEpsilon = Callable[[Release, float, int, float], float]
"""A paper's formula for a method without a guarantee: (method, rate, steps, delta) -> epsilon."""


class Claim(NamedTuple):
    """An epsilon, and who claims it.

    Attributes:
        epsilon: the claim.
        source: "accounted", or "printed": a paper's formula for what has no guarantee.
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
        rate: the probability with which a step takes an example; 1 for every step.
        steps: how many steps are released.
        delta: the target.
        printed: the claim to test where the accounting has none, because the method
            has no guarantee.

    Raises:
        ValueError: the method has no guarantee, and `printed` is None.

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
    """Returns the method with all its noise, gradient and statistic jointly, times a factor.

    A factor below 1 makes a method that breaks the claim of the one it was made of: what an audit
    must find.

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
