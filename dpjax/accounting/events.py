"""The dp-accounting event of a mechanism under a sampling."""

import math

import attrs
import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpjax import _checks, schedules
from dpjax.accounting.relation import as_relation, check_supported
from dpjax.mechanism import Mechanism
from dpjax.sampling import FixedSize, Poisson, Sampling, TruncatedPoisson
from dpjax.thresholds import Threshold

__all__ = ["Event", "check_mechanism", "event", "event_of_runs", "noise_multipliers"]


@attrs.frozen
class Event(dp_accounting.ComposedDpEvent):  # type: ignore[misc]
    """A composed event of dp-accounting that records its neighbouring relation.

    Attributes:
        events: one (self-composed) event per run of equal noise multipliers, in order.
        neighboring_relation: how two neighbouring data sets differ.
        accountant: the accountant that will read it; under replace-one, "rdp" needs a different
            event.
    """

    neighboring_relation: NeighboringRelation
    accountant: str


def event(
    mechanism: Mechanism,
    sampling: Sampling,
    steps: int,
    start: int = 0,
    *,
    relation: str | NeighboringRelation | None = None,
    accountant: str | None = None,
) -> Event:
    """Returns the dp-accounting event of `steps` steps of a mechanism.

    Step t is one Gaussian of noise multiplier sigma_t under the sampling that chose its batch. The
    gradient and an adaptive threshold's statistic are released together from one batch, so they
    are one Gaussian with ``sigma_t^-2 = sigma_T^-2 + sigma_S^-2``; two Poisson events instead would
    give an epsilon that is too small. Groups change the bound but not the event, because the noise
    is scaled by the bound over all groups.

    Momentum adds no cost. Inner momentum changes an example's contribution, but within the same
    bound and using only that example and released iterates; outer momentum and the optimizer see
    released gradients only. With momentum stored per example, every example takes part in every
    step, so no amplification is accounted.

    Args:
        mechanism: the mechanism that runs.
        sampling: the sampling that draws the batches.
        steps: how many steps are released, >= 1; steps with an empty batch count.
        start: how many steps of this run were released before; schedules are read from there.
        relation: "add_or_remove_one" or "replace_one"; None takes that of the sampling, which is
            replace-one for `FixedSize` and add-or-remove-one otherwise.
        accountant: the accountant that will read the event; None means "rdp" for `FixedSize` and
            "pld" otherwise. The noise multiplier is the standard deviation of the noise divided by
            one example's bound. Under replace-one an example can change the sum by twice the bound,
            which dp-accounting's RDP does not take into account, so the event for "rdp" then has
            half the noise multiplier.

    Returns:
        The event, with its `neighboring_relation`.

    Raises:
        TypeError: if `mechanism` is not a `Mechanism`, or the sampling is unknown.
        ValueError: if the mechanism has no noise or is not calibrated, or the accountant knows no
            bound for this sampling and relation; the message says what to use instead.

    Privacy:
        Bound: the mechanism's, per example. Relation: `relation`. Not counted: anything computed
            from the data outside the mechanism.

    Example:
        >>> from dpjax import methods, schedules
        >>> mechanism = methods.dc_sgd_e(schedules.table((1.5, 1.0), steps_per_epoch=100))
        >>> for run in event(mechanism, Poisson.with_rate(0.01), steps=150).events:
        ...     print(run.count, run.event)
        100 PoissonSampledDpEvent(...0.01, event=GaussianDpEvent(noise_multiplier=1.5))
        50 PoissonSampledDpEvent(...0.01, event=GaussianDpEvent(noise_multiplier=1.0))
    """
    if accountant is None:
        accountant = "rdp" if isinstance(sampling, FixedSize) else "pld"
    relation = as_relation(relation, sampling)
    check_supported(sampling, accountant, relation)
    check_mechanism(mechanism)
    mechanism.check_sampling(sampling)
    runs = noise_multipliers(mechanism, steps, start)
    return event_of_runs(runs, sampling, relation, accountant)


def event_of_runs(
    runs: list[tuple[float, int]],
    sampling: Sampling,
    relation: NeighboringRelation,
    accountant: str,
) -> Event:
    """Returns the event of runs of equal noise.

    Args:
        runs: (sigma, number of steps) for each, as `noise_multipliers` returns them.
        sampling: the sampling that draws the batches.
        relation: the neighbouring relation.
        accountant: who will read the event; see `event`.

    Example:
        >>> add_or_remove = NeighboringRelation.ADD_OR_REMOVE_ONE
        >>> event_of_runs([(2.0, 5)], Poisson.with_rate(0.01), add_or_remove, "pld").events[0].count
        5
    """
    halved = accountant == "rdp" and relation is NeighboringRelation.REPLACE_ONE
    events = [
        dp_accounting.SelfComposedDpEvent(_one_step(sampling, sigma / 2 if halved else sigma), n)
        for sigma, n in runs
    ]
    return Event(events, relation, accountant)  # type: ignore[call-arg]


def noise_multipliers(mechanism: Mechanism, steps: int, start: int = 0) -> list[tuple[float, int]]:
    """Returns the total noise multipliers of the steps as runs of (sigma, number of steps).

    They are read from the mechanism's own schedule in float32, the values used in training.

    Args:
        mechanism: a calibrated mechanism with noise.
        steps: how many steps, >= 1.
        start: the first step, >= 0.

    Raises:
        ValueError: if the mechanism has no noise or is not calibrated, or a step's noise is not
            valid; the message names the step.

    Example:
        >>> from dpjax import methods
        >>> noise_multipliers(methods.zhang_adaptive(2.0, steps_per_epoch=2, rate=0.25), steps=5)
        [(2.0, 2), (1.0, 2), (0.5, 1)]
    """
    check_mechanism(mechanism)
    steps = _checks.integer("steps", steps, at_least=1)
    start = _checks.integer("start", start, at_least=0)
    mechanism.check_calibrated()
    if not mechanism.guarantee.private:
        raise ValueError(f"{mechanism.guarantee.statement} Expected a noise_multiplier > 0.")
    sigmas = _read(mechanism, steps, start)
    _check_sigmas(mechanism, sigmas, start)
    if not callable(mechanism.noise_multiplier):
        return [(float(sigmas[0]), steps)]
    first = np.flatnonzero(np.diff(sigmas, prepend=np.nan) != 0)
    counts = np.diff(first, append=sigmas.size)
    return list(zip(sigmas[first].tolist(), counts.tolist(), strict=True))


def check_mechanism(mechanism: object) -> None:
    """Raises unless the argument is a `Mechanism`, which is all that can be accounted.

    Args:
        mechanism: the object to check.

    Raises:
        TypeError: if it is not.
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"mechanism = {mechanism!r}: expected a dpjax.Mechanism, such as dpjax.methods returns"
        )


def _read(mechanism: Mechanism, steps: int, start: int) -> np.ndarray:
    """Reads sigma_t as used in training; a single value if it is a number."""
    number = steps if callable(mechanism.noise_multiplier) else 1
    if start + steps >= 2**31 or number > 2**24:
        raise ValueError(
            f"steps = {steps} from {start}: expected fewer than 2^31, which t counts, and at most "
            "2^24 of a schedule"
        )
    # In a few sizes only, so that a growing run does not recompile every time.
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
    threshold, noise = mechanism.threshold, mechanism.noise_multiplier
    if isinstance(threshold, Threshold) and noise is not None:
        # None if it depends on the batch size; `privatize`, which knows that, checks the largest.
        sigma_s = threshold.sigma_statistic(schedules.largest(noise), None)
        if sigma_s is not None:
            largest = math.sqrt(0.75) * sigma_s
            expected = f"a number in (0, {largest:g}], sqrt(3)/2 of the statistic's sigma_S"
    bad = ~((sigmas > 0) & (sigmas < math.inf) & (sigmas <= largest * (1 + 1e-6)))
    if bad.any():
        step = int(bad.argmax())
        raise ValueError(
            f"noise_multiplier = {sigmas[step]:g} at step {start + step}: expected {expected}"
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
