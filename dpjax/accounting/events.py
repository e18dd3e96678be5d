"""From what runs to what is accounted: the event of a mechanism under a sampler."""

import math
from typing import Any

import attrs
import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpjax import _checks, schedules
from dpjax.accounting.relation import as_relation, check_supported
from dpjax.mechanism import Mechanism
from dpjax.methods import Method
from dpjax.sampling import FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson

__all__ = ["Event", "check_method", "event", "event_of_runs", "noise_multipliers"]


@attrs.frozen
class Event(dp_accounting.ComposedDpEvent):
    """A composed event of dp-accounting that knows its neighbouring relation.

    Attributes:
        events: one (self-composed) event per run of equal noise multipliers, in order.
        neighboring_relation: what two data sets differ by.
        accountant: whose reading it is written for: under replace-one RDP needs another one.
    """

    neighboring_relation: NeighboringRelation
    accountant: str


def event(
    mechanism: Mechanism | Method,
    sampling: Sampling,
    steps: int,
    start: int = 0,
    *,
    relation: Any = None,
    accountant: str | None = None,
) -> Event:
    """Returns the dp-accounting event of `steps` steps of a mechanism.

    Step t is one Gaussian of noise multiplier sigma_t under the sampling that chose its batch. The
    gradient and an adaptive threshold's statistic are released together from one batch, so they
    are one Gaussian with ``sigma_t^-2 = sigma_T^-2 + sigma_S^-2``: two Poisson events in their
    place would report too little. Groups change the bound and not the event: noise is scaled by
    the bound over all groups.

    Momentum adds nothing. Inner momentum changes what an example contributes, within the same
    bound and from released iterates and that example alone; outer momentum and the optimizer see
    released gradients only. Momentum stored per example makes every example take part in every
    step, and so is accounted without amplification.

    Args:
        mechanism: the `Method` that runs, or its `Mechanism`.
        sampling: the sampler that draws the batches.
        steps: how many steps are released, empty batches among them.
        start: how many were released before, where schedules are read from.
        relation: "add_or_remove_one" or "replace_one"; None takes the sampler's own, which is
            replace-one for `FixedSize` and add-or-remove-one otherwise.
        accountant: who will read the event. The noise multiplier is the noise's standard deviation
            over one example's bound; "rdp" does not know that under replace-one an example can
            change the sum by two bounds, so it is handed half of it. None means "rdp" for
            `FixedSize` and "pld" otherwise.

    Returns:
        The event, with its `neighboring_relation`.

    Example:
        >>> from dpjax import methods, schedules
        >>> method = methods.dc_sgd_e(schedules.table((1.5, 1.0), steps_per_epoch=100))
        >>> for run in event(method, Poisson.with_rate(0.01), steps=150).events:
        ...     print(run.count, run.event)
        100 PoissonSampledDpEvent(...0.01, event=GaussianDpEvent(noise_multiplier=1.5))
        50 PoissonSampledDpEvent(...0.01, event=GaussianDpEvent(noise_multiplier=1.0))

    Raises:
        ValueError: for a mechanism without a guarantee, with the reason and what to use instead.
    """
    if accountant is None:
        accountant = "rdp" if isinstance(sampling, FixedSize) else "pld"
    relation = as_relation(relation, sampling)
    check_supported(sampling, accountant, relation)
    check_method(mechanism, sampling)
    runs = noise_multipliers(mechanism, steps, start)
    return event_of_runs(runs, sampling, relation, accountant)


def event_of_runs(
    runs: list[tuple[float, int]],
    sampling: Sampling,
    relation: NeighboringRelation,
    accountant: str,
) -> Event:
    """Returns the event of runs of (sigma, number of steps), as `noise_multipliers` gives them."""
    halved = accountant == "rdp" and relation is NeighboringRelation.REPLACE_ONE
    events = [
        dp_accounting.SelfComposedDpEvent(_one_step(sampling, sigma / 2 if halved else sigma), n)
        for sigma, n in runs
    ]
    return Event(events, relation, accountant)  # type: ignore[call-arg]


def noise_multipliers(
    mechanism: Mechanism | Method, steps: int, start: int = 0
) -> list[tuple[float, int]]:
    """Returns the total noise multipliers of the steps as runs of (sigma, number of steps).

    They are read from the mechanism's own schedule, in the float32 in which it runs.

    Args:
        mechanism: a mechanism or a method with a guarantee.
        steps: how many steps.
        start: the first step.

    >>> from dpjax import methods
    >>> noise_multipliers(methods.zhang_adaptive(2.0, steps_per_epoch=2, rate=0.25), steps=5)
    [(2.0, 2), (1.0, 2), (0.5, 1)]
    """
    mechanism = mechanism.mechanism if isinstance(mechanism, Method) else mechanism
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism = {mechanism!r}: expected a dpjax.Mechanism or dpjax.Method")
    steps = _checks.integer("steps", steps, at_least=1)
    start = _checks.integer("start", start, at_least=0)
    if not mechanism.guarantee.private:
        raise ValueError(f"{mechanism.guarantee.statement} Expected {_instead(mechanism)}")
    sigmas = _read(mechanism, steps, start)
    _check_sigmas(mechanism, sigmas, start)
    if not callable(mechanism.noise_multiplier):
        return [(float(sigmas[0]), steps)]
    first = np.flatnonzero(np.diff(sigmas, prepend=np.nan) != 0)
    counts = np.diff(first, append=sigmas.size)
    return list(zip(sigmas[first].tolist(), counts.tolist(), strict=True))


def _instead(mechanism: Mechanism) -> str:
    if mechanism.rule.no_bound is None:
        return "a noise_multiplier > 0."
    return (
        "a method with a bound: dpjax.methods.auto_dp_sgd_sound has the same noise schedules, with "
        "real clipping."
    )


def _read(mechanism: Mechanism, steps: int, start: int) -> np.ndarray:
    """Reads sigma_t as it runs; one value when it is a number."""
    number = steps if callable(mechanism.noise_multiplier) else 1
    if start + steps >= 2**31 or number > 2**24:
        raise ValueError(
            f"steps = {steps} from {start}: expected fewer than 2^31, which t counts, and at most "
            "2^24 of a schedule"
        )
    # In a few sizes only, so that a growing run does not compile anew each time.
    padded = start + np.arange(1 << (number - 1).bit_length())
    with jax.ensure_compile_time_eval():
        sigmas = jax.vmap(mechanism.sigma)(jnp.asarray(np.minimum(padded, 2**31 - 1), jnp.int32))
    if isinstance(sigmas, jax.core.Tracer):
        raise ValueError(
            f"noise_multiplier = {mechanism.noise_multiplier!r} depends on a traced value: "
            "expected one that can be read, as epsilon is computed from it"
        )
    return np.asarray(sigmas, np.float64)[:number]


def _check_sigmas(mechanism: Mechanism, sigmas: np.ndarray, start: int) -> None:
    largest, expected = math.inf, "a finite number > 0"
    if mechanism.adaptive:
        # None where it follows the batch size, which `privatize` knows; it looks at the largest.
        sigma_s = mechanism.threshold.sigma_statistic(
            schedules.largest(mechanism.noise_multiplier), None
        )
        if sigma_s is not None:
            largest = math.sqrt(0.75) * sigma_s
            expected = f"a number in (0, {largest:g}], sqrt(3)/2 of the statistic's sigma_S"
    bad = ~((sigmas > 0) & (sigmas < math.inf) & (sigmas <= largest * (1 + 1e-6)))
    if bad.any():
        step = int(bad.argmax())
        raise ValueError(
            f"noise_multiplier = {sigmas[step]:g} at step {start + step}: expected {expected}"
        )


def check_method(mechanism: Any, sampling: Sampling) -> None:
    """Refuses a sampler that the method, or its mechanism, does not run with."""
    bare = mechanism.mechanism if isinstance(mechanism, Method) else mechanism
    if isinstance(bare, Mechanism) and bare.full_batch and not isinstance(sampling, FullBatch):
        raise ValueError(
            f"sampling = {sampling!r} with momentum stored per example: expected FullBatch(), "
            "since every example takes part in every step"
        )


def _one_step(sampling: Sampling, sigma: float) -> dp_accounting.DpEvent:
    gaussian = dp_accounting.GaussianDpEvent(sigma)
    if isinstance(sampling, Poisson) and sampling.rate < 1:
        return dp_accounting.PoissonSampledDpEvent(sampling.rate, gaussian)
    if isinstance(sampling, TruncatedPoisson):
        return dp_accounting.TruncatedSubsampledGaussianDpEvent(
            sampling.dataset_size, sampling.rate, sampling.max_size, sigma
        )
    if isinstance(sampling, FixedSize):
        return dp_accounting.SampledWithoutReplacementDpEvent(
            sampling.dataset_size, sampling.size, gaussian
        )
    return gaussian
