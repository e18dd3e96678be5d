"""What is claimed for a method, and what runs in its place when the audit itself is tested."""

from dataclasses import replace
from typing import NamedTuple

from dpjax import accounting, schedules
from dpjax.accounting import auto_dp_sgd_epsilon_as_printed
from dpjax.methods import Method
from dpjax.sampling import FullBatch, Poisson

__all__ = ["Claim", "claim_of", "with_noise_times"]

_PRINTED = {
    schedules.geometric: "linear",
    schedules.time_decay: "time",
    schedules.step_decay: "step",
    schedules.exponential_decay: "exponential",
}
_LARGE = 1_000_000  # a data set of which every rate is a whole number of examples, nearly


class Claim(NamedTuple):
    """An epsilon, and who claims it.

    Attributes:
        epsilon: the claim.
        source: "accounted", or "printed": a paper's formula for what has no guarantee.
    """

    epsilon: float
    source: str


def claim_of(method: Method, rate: float, steps: int, delta: float) -> Claim:
    """Returns the epsilon that is claimed for some steps of a method.

    Args:
        method: the method.
        rate: the probability with which a step takes an example; 1 for every step.
        steps: how many steps are released.
        delta: the target.

    Example:
        >>> import dpjax
        >>> claim = claim_of(dpjax.methods.dp_sgd(noise_multiplier=1.0), 1.0, 1, delta=1e-3)
        >>> round(claim.epsilon, 2), claim.source
        (3.14, 'accounted')
    """
    if method.mechanism.rule.no_bound is None:
        sampling = FullBatch() if rate == 1 else Poisson.with_rate(rate)
        return Claim(float(accounting.epsilon(method, sampling, steps, delta)), "accounted")
    return Claim(_printed(method, rate, steps, delta), "printed")


def _printed(method: Method, rate: float, steps: int, delta: float) -> float:
    noise = method.mechanism.noise_multiplier
    decay = _PRINTED.get(type(noise))
    if decay is None:
        raise ValueError(f"noise_multiplier = {noise!r}: expected one of Auto DP-SGD's decays")
    return auto_dp_sgd_epsilon_as_printed(
        decay,
        noise.init,
        _LARGE,
        round(rate * _LARGE),
        max(1, round(steps * rate)),
        delta,
        rate=getattr(noise, "rate", None),
        **({"every": noise.every} if decay == "step" else {}),
    ).epsilon


def with_noise_times(method: Method, factor: float) -> Method:
    """Returns the method with all its noise, gradient and statistic jointly, times a factor.

    A factor below 1 makes a method that breaks the claim of the one it was made of: what an audit
    must find.

    Example:
        >>> import dpjax
        >>> weak = with_noise_times(dpjax.methods.dp_sgd(noise_multiplier=1.0), 0.5)
        >>> weak.mechanism.noise_multiplier
        0.5
    """
    if factor == 1:
        return method
    noise = method.mechanism.noise_multiplier
    less = schedules.scaled(noise, factor) if callable(noise) else factor * noise
    return replace(method, mechanism=replace(method.mechanism, noise_multiplier=less))
