"""Calibration: the noise, number of steps or batch size that a budget allows."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from dp_accounting import NeighboringRelation

from dpjax import _checks
from dpjax.accounting.bound import upper_epsilon_of
from dpjax.accounting.events import check_mechanism, event, event_of_runs, noise_multipliers
from dpjax.accounting.gdp import gdp_epsilon
from dpjax.accounting.relation import as_relation, check_supported
from dpjax.mechanism import Mechanism
from dpjax.rules import abadi
from dpjax.sampling import FixedSize, FullBatch, Poisson, Sampling
from dpjax.schedules import with_level

__all__ = [
    "TOLERANCE",
    "calibrate",
    "largest_batch",
    "largest_integer",
    "max_steps",
    "noise_for",
    "smallest_noise",
]

TOLERANCE = 1e-3
"""The relative amount by which a calibrated epsilon may stay below the budget."""

Runs = list[tuple[float, int]]
"""Runs of equal noise: (noise multiplier, number of steps), in order."""


def calibrate(
    mechanism: Mechanism,
    sampling: Sampling,
    steps: int,
    epsilon: float,
    delta: float,
    accountant: str = "pld",
    *,
    start: int = 0,
    relation: str | NeighboringRelation | None = None,
    orders: Sequence[float] | None = None,
) -> Mechanism:
    """Returns the mechanism with the least noise that a budget allows.

    A noise multiplier that is None or a number is replaced by the number found. A schedule keeps
    its shape: its first value is found or, if it has no `init`, a factor on it.

    `calibrate` solves for the total sigma. The noise of an adaptive threshold's statistic is the
    one set in the threshold, and the gradient's own noise follows from the two.

    Args:
        mechanism: the mechanism; a noise level that it already has is replaced.
        sampling: the sampling that will draw the batches.
        steps: how many steps will run, >= 1.
        epsilon: the budget, > 0; `epsilon` of the result is at most this, and at least 0.999 of it.
        delta: the target delta, in (0, 1).
        accountant: as for `epsilon`.
        start: how many steps of this run were released before.
        relation: as for `epsilon`.
        orders: as for `epsilon`.

    Returns:
        A copy of the mechanism with its noise multiplier set.

    Raises:
        ValueError: if the budget cannot be met: because the noise of a statistic is too small for
            it, because epsilon is too small for the accountant at this delta, or because epsilon is
            so large that the accountant does not support noise small enough to spend it.

    Privacy:
        Calibration does not look at the data and costs nothing. See `epsilon` for what the result
        then spends, and what is not counted.

    Example:
        >>> import dpjax
        >>> sampling = dpjax.sampling.Poisson(256, dataset_size=60_000)
        >>> mechanism = dpjax.methods.dp_sgd()
        >>> found = calibrate(mechanism, sampling, 2344, epsilon=2.0, delta=1 / 60_000)
        >>> round(found.noise_multiplier, 3)
        0.774

    Reference: the search begins at the central limit of Dong, Roth and Su, Gaussian Differential
    Privacy, 2019, https://arxiv.org/abs/1905.02383, and ends where the accountant's own bound meets
    the budget; see `epsilon` for the accountants' papers.
    """
    relation = as_relation(relation, sampling)
    check_supported(sampling, accountant, relation)
    check_mechanism(mechanism)
    mechanism.check_sampling(sampling)

    def spent(runs: Runs) -> float:
        happened = event_of_runs(runs, sampling, relation, accountant)
        return upper_epsilon_of(happened, relation, delta, accountant, orders)

    return noise_for(mechanism, sampling, steps, epsilon, delta, spent, start)


def noise_for(
    mechanism: Mechanism,
    sampling: Sampling,
    steps: int,
    epsilon: float,
    delta: float,
    spent: Callable[[Runs], float],
    start: int = 0,
) -> Mechanism:
    """Returns the mechanism with the least noise for which `spent` stays within the budget.

    Args:
        mechanism: as for `calibrate`.
        sampling: as for `calibrate`; used for the first guess only.
        steps: how many steps will run, >= 1.
        epsilon: the budget, > 0.
        delta: the target delta, in (0, 1).
        spent: returns the epsilon of runs of (sigma, number of steps).
        start: how many steps of this run were released before.

    Raises:
        ValueError: if the budget cannot be met.
    """
    epsilon = _checks.positive("epsilon", epsilon)
    delta = _checks.fraction("delta", delta)
    check_mechanism(mechanism)
    noise = mechanism.noise_multiplier
    why = ""

    def runs(level: float) -> Runs:
        # Without the statistic, whose noise may be invalid for a trial level.
        return noise_multipliers(Mechanism(abadi(), 1.0, with_level(noise, level)), steps, start)

    def cost(runs_at: Callable[[float], Runs], level: float) -> float:
        nonlocal why
        try:
            return spent(runs_at(level))
        except ValueError as error:  # outside the accountant's conditions
            why = f" ({error})"
            return math.inf

    def few(level: float) -> Runs:
        return _few(runs(level))

    short = len(runs(1.0)) == len(few(1.0))
    # A long schedule takes seconds to account, so make fewer attempts with a wider tolerance.
    tolerance = 0.02 * TOLERANCE if short else 0.5 * TOLERANCE
    guess = _central_limit(sampling, few, epsilon, delta)
    level = smallest_noise(lambda x: cost(few, x), epsilon, guess, tolerance)
    if level is not None and not short:
        level = smallest_noise(lambda x: cost(runs, x), epsilon, level, tolerance, stride=1.002)
    if level is None:
        # Either spending the budget needs less noise than the accountant supports, or no noise
        # meets it.
        jumps = cost(few, 1e6 * guess) <= epsilon
        remedy = "a smaller epsilon" if jumps else "a larger epsilon or delta"
        raise ValueError(
            f"epsilon = {epsilon:g} at delta = {delta:g} over {steps} steps: no noise multiplier "
            f"gives an epsilon in [{epsilon * (1 - TOLERANCE):g}, {epsilon:g}]{why}; expected "
            f"{remedy}, or another accountant"
        )
    try:
        return mechanism.replace(noise_multiplier=with_level(noise, level))
    except ValueError as error:
        raise ValueError(f"the budget needs {error}") from error


def _few(runs: Runs, most: int = 16) -> Runs:
    """Returns similar noise in few runs, for a guess: ``mean(sigma^-2)^(-1/2)`` of each part."""
    if len(runs) <= most:
        return runs
    sigmas, counts = np.array(sorted(runs)).T
    parts = [part for part in np.array_split(np.arange(sigmas.size), most) if part.size]
    means = [np.average(sigmas[part] ** -2.0, weights=counts[part]) for part in parts]
    return [
        (float(mean**-0.5), int(counts[part].sum()))
        for mean, part in zip(means, parts, strict=True)
    ]


def _central_limit(
    sampling: Sampling, runs: Callable[[float], Runs], epsilon: float, delta: float
) -> float:
    """Returns a noise level from the central-limit approximation, which has the right magnitude."""
    rate = 1.0
    if isinstance(sampling, FixedSize):
        rate = sampling.size / sampling.dataset_size
    elif not isinstance(sampling, FullBatch):
        rate = sampling.rate

    def figure(level: float) -> float:
        inverse = [(sigma**-2, count) for sigma, count in runs(level)]
        if max(value for value, _ in inverse) > 600:
            return math.inf
        squared = sum(count * rate**2 * math.expm1(value) for value, count in inverse)
        return gdp_epsilon(math.sqrt(squared), delta)

    return smallest_noise(figure, epsilon, 1.0, 0.05) or 1.0


def max_steps(
    mechanism: Mechanism,
    sampling: Sampling,
    epsilon: float,
    delta: float,
    accountant: str = "pld",
    *,
    start: int = 0,
    relation: str | NeighboringRelation | None = None,
    most: int = 2**24,
) -> int:
    """Returns how many steps a budget allows.

    Args:
        mechanism: as for `epsilon`.
        sampling: as for `epsilon`.
        epsilon: the budget, > 0.
        delta: the target delta, in (0, 1).
        accountant: as for `epsilon`.
        start: how many steps of this run were released before; their cost is not counted here.
        relation: as for `epsilon`.
        most: the largest answer, >= 1.

    Returns:
        The number of steps; 0 if the budget does not allow even one.

    Raises:
        ValueError: as for `epsilon`.

    Privacy:
        As for `epsilon`: these steps are counted, and nothing else.

    Example:
        >>> import dpjax
        >>> mechanism = dpjax.methods.dp_sgd(noise_multiplier=1.0)
        >>> max_steps(mechanism, dpjax.sampling.Poisson.with_rate(0.01), epsilon=2.0, delta=1e-5)
        1202
    """
    epsilon = _checks.positive("epsilon", epsilon)
    delta = _checks.fraction("delta", delta)

    def fits(steps: int) -> bool:
        happened = event(
            mechanism, sampling, steps, start, relation=relation, accountant=accountant
        )
        spent = upper_epsilon_of(happened, happened.neighboring_relation, delta, accountant)
        return spent <= epsilon

    return largest_integer(fits, _checks.integer("most", most, at_least=1))


def largest_batch(
    mechanism: Mechanism,
    dataset_size: int,
    steps: int,
    epsilon: float,
    delta: float,
    accountant: str = "pld",
    *,
    start: int = 0,
    relation: str | NeighboringRelation | None = None,
) -> int:
    """Returns the largest expected batch size B, Poisson sampled at B / N, that a budget allows.

    Args:
        mechanism: as for `epsilon`.
        dataset_size: N, the number of examples, >= 1.
        steps: how many steps will run, whatever the batch size, >= 1.
        epsilon: the budget, > 0.
        delta: the target delta, in (0, 1).
        accountant: as for `epsilon`.
        start: how many steps of this run were released before.
        relation: as for `epsilon`.

    Returns:
        B; 0 if the budget does not allow even an expected batch size of 1.

    Raises:
        ValueError: as for `epsilon`.

    Privacy:
        As for `epsilon`: these steps are counted, and nothing else.

    Example:
        >>> import dpjax
        >>> largest_batch(dpjax.methods.dp_sgd(1.0), 60_000, 1000, epsilon=2.0, delta=1e-5)
        651
    """
    epsilon = _checks.positive("epsilon", epsilon)
    delta = _checks.fraction("delta", delta)
    size = _checks.integer("dataset_size", dataset_size, at_least=1)

    def fits(batch: int) -> bool:
        happened = event(
            mechanism,
            Poisson.with_rate(batch / size),
            steps,
            start,
            relation=relation,
            accountant=accountant,
        )
        try:
            spent = upper_epsilon_of(happened, happened.neighboring_relation, delta, accountant)
        except ValueError:
            if batch == 1:
                raise
            return False  # the rate is outside the range of tCDP's lemma
        return spent <= epsilon

    return largest_integer(fits, size)


_FARTHEST = 1e12


def smallest_noise(
    spent: Callable[[float], float],
    target: float,
    start: float,
    tolerance: float,
    stride: float = 4.0,
) -> float | None:
    """Returns a noise whose cost is in ``[target (1 - tolerance), target]``.

    Regula falsi on the logarithms of noise and cost, with the Illinois rule against a stuck end.

    Args:
        spent: the cost as a decreasing function of the noise; +inf where it is undefined.
        target: the cost to reach from below.
        start: a first guess.
        tolerance: the relative amount by which the cost may stay below the target.
        stride: the factor by which the guess may be wrong; it grows if that is not enough.

    Returns:
        The noise; None if no noise up to `_FARTHEST` reaches the target, or if the cost jumps over
        the interval.

    >>> round(smallest_noise(lambda noise: 1 / noise, 0.25, 1.0, 1e-3), 2)
    4.0
    """
    goal = math.log(target) + math.log1p(-tolerance / 2)

    def gap(log_noise: float) -> float:
        cost = spent(math.exp(log_noise))
        return (math.log(cost) if cost > 0 else -math.inf) - goal

    here = (math.log(start), gap(math.log(start)))
    sign, step = (1.0 if here[1] > 0 else -1.0), math.log(stride)
    there = here
    while (there[1] > 0) == (here[1] > 0) and not _close(there[1], tolerance):
        here, log_noise = there, there[0] + sign * step
        if abs(log_noise) > math.log(_FARTHEST):
            return None
        there, step = (log_noise, gap(log_noise)), 2 * step
    low, high = (here, there) if sign > 0 else (there, here)
    return _narrowed(gap, low, high, tolerance)


def _narrowed(
    gap: Callable[[float], float],
    low: tuple[float, float],
    high: tuple[float, float],
    tolerance: float,
) -> float | None:
    """Narrows a bracket, given as (log noise, gap) with gaps > 0 and <= 0, to the interval."""
    ends, weights = [low, high], [low[1], high[1]]
    for _ in range(200):
        for log_noise, value in ends:
            if _close(value, tolerance):
                return math.exp(log_noise)
        width = ends[1][0] - ends[0][0]
        if width < 1e-12:
            return None
        finite = all(math.isfinite(weight) for weight in weights)
        share = weights[0] / (weights[0] - weights[1]) if finite else 0.5
        middle = ends[0][0] + min(max(share, 0.02), 0.98) * width
        value = gap(middle)
        moved = 0 if value > 0 else 1
        ends[moved], weights[moved] = (middle, value), value
        weights[1 - moved] /= 2
    return None


def _close(gap: float, tolerance: float) -> bool:
    return abs(gap) <= 0.99 * math.log1p(tolerance / 2)


def largest_integer(fits: Callable[[int], bool], most: int) -> int:
    """Returns the largest n in [0, most] that fits, if everything below it fits too.

    >>> largest_integer(lambda n: n * n <= 50, most=100)
    7
    """
    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
