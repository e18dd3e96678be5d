"""From a budget to what runs: noise, steps or batch size that spend just that."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from dpjax import _checks
from dpjax.accounting.bound import upper_epsilon_of
from dpjax.accounting.events import check_method, event, event_of_runs, noise_multipliers
from dpjax.accounting.gdp import gdp_epsilon
from dpjax.accounting.relation import as_relation, check_supported
from dpjax.accounting.solve import largest_integer, smallest_noise
from dpjax.mechanism import Mechanism
from dpjax.methods import Method
from dpjax.sampling import FixedSize, FullBatch, Poisson, Sampling
from dpjax.schedules import scaled

__all__ = ["TOLERANCE", "calibrate", "largest_batch", "max_steps", "noise_for"]

TOLERANCE = 1e-3
"""How far below the target a calibrated epsilon may stay, relative to it."""

Runs = list[tuple[float, int]]
Either = TypeVar("Either", bound=Mechanism | Method)


def calibrate(
    mechanism: Either,
    sampling: Sampling,
    steps: int,
    epsilon: float,
    delta: float,
    accountant: str = "pld",
    *,
    start: int = 0,
    relation: Any = None,
    orders: Sequence[float] | None = None,
) -> Either:
    """Returns the mechanism with just the noise that a budget allows.

    A noise multiplier that is a number is found; a schedule is multiplied by a found factor and
    keeps its shape. The total sigma is calibrated: the noise of an adaptive threshold's statistic
    stays what the threshold says, and the gradient's own follows from both.

    Args:
        mechanism: a mechanism or method; of a noise multiplier that is a number only its being one
            matters.
        sampling: the sampler.
        steps: how many steps will run.
        epsilon: the budget; `epsilon` of the result is at most this, and at least 0.999 of it.
        delta: the target delta.
        accountant: as for `epsilon`.
        start: how many steps were released before.
        relation: as for `epsilon`.
        orders: as for `epsilon`.

    Returns:
        A new mechanism, or method, of the same kind.

    Raises:
        ValueError: when the budget cannot be met: a statistic's noise is too small for it, it is
            below what the accountant can tell at this delta, or so large that the noise which
            spends it would be refused.

    Example:
        >>> import dpjax
        >>> method = dpjax.methods.dp_sgd(noise_multiplier=1.0)
        >>> sampling = dpjax.sampling.Poisson.with_rate(256 / 60_000)
        >>> found = calibrate(method, sampling, 2344, epsilon=2.0, delta=1 / 60_000)
        >>> round(found.mechanism.noise_multiplier, 3)
        0.774
    """
    relation = as_relation(relation, sampling)
    check_supported(sampling, accountant, relation)
    check_method(mechanism, sampling)

    def spent(runs: Runs) -> float:
        happened = event_of_runs(runs, sampling, relation, accountant)
        return upper_epsilon_of(happened, relation, delta, accountant, orders)

    return noise_for(mechanism, sampling, steps, epsilon, delta, spent, start)


def noise_for(
    mechanism: Either,
    sampling: Sampling,
    steps: int,
    epsilon: float,
    delta: float,
    spent: Callable[[Runs], float],
    start: int = 0,
) -> Either:
    """Returns the mechanism with just the noise for which `spent` of its runs is the budget.

    Args:
        mechanism: as for `calibrate`.
        sampling: as for `calibrate`; used for a first guess only.
        steps: how many steps will run.
        epsilon: the budget.
        delta: the target delta.
        spent: the epsilon of runs of (sigma, number of steps).
        start: how many steps were released before.
    """
    epsilon = _checks.positive("epsilon", epsilon)
    delta = _checks.fraction("delta", delta)
    shape = _shape(mechanism, steps, start)
    why = ""

    def cost(runs: Runs, factor: float) -> float:
        nonlocal why
        try:
            return spent(_times(runs, factor))
        except ValueError as error:  # outside an accountant's conditions
            why = f" ({error})"
            return math.inf

    few = _few(shape)
    # A long schedule takes seconds to account: fewer attempts, further from the target.
    tolerance = 0.02 * TOLERANCE if len(few) == len(shape) else 0.5 * TOLERANCE
    guess = _central_limit(sampling, few, epsilon, delta)
    factor = smallest_noise(lambda f: cost(few, f), epsilon, guess, tolerance)
    if factor is not None and len(few) < len(shape):
        factor = smallest_noise(lambda f: cost(shape, f), epsilon, factor, tolerance, stride=1.002)
    if factor is None:
        # Less noise than the accountant allows would spend the budget, or no noise meets it.
        jumps = cost(few, 1e6 * guess) <= epsilon
        remedy = "a smaller epsilon" if jumps else "a larger epsilon or delta"
        raise ValueError(
            f"epsilon = {epsilon:g} at delta = {delta:g} over {steps} steps: no noise multiplier "
            f"gives an epsilon in [{epsilon * (1 - TOLERANCE):g}, {epsilon:g}]{why}; expected "
            f"{remedy}, or another accountant"
        )
    return _with_noise(mechanism, factor)


def _times(runs: Runs, factor: float) -> Runs:
    """Multiplies in the float32 in which the mechanism will run."""
    return [(float(np.float32(factor) * np.float32(sigma)), count) for sigma, count in runs]


def _few(runs: Runs, most: int = 16) -> Runs:
    """Returns about the same noise in few runs, for a guess: ``mean(sigma^-2)^(-1/2)`` of each."""
    if len(runs) <= most:
        return runs
    sigmas, counts = np.array(sorted(runs)).T
    parts = [part for part in np.array_split(np.arange(sigmas.size), most) if part.size]
    means = [np.average(sigmas[part] ** -2.0, weights=counts[part]) for part in parts]
    return [
        (float(mean**-0.5), int(counts[part].sum()))
        for mean, part in zip(means, parts, strict=True)
    ]


def _shape(mechanism: Mechanism | Method, steps: int, start: int) -> Runs:
    """Returns the runs of the curve that will be multiplied; of a number they are ones."""
    if isinstance(mechanism, Method):
        mechanism = mechanism.mechanism
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism = {mechanism!r}: expected a dpjax.Mechanism or dpjax.Method")
    noise = mechanism.noise_multiplier
    curve = _unscaled(noise) if callable(noise) else 1.0
    # Without the statistic, whose noise may not suit the bare curve.
    bare = mechanism.replace(threshold=1.0, noise_multiplier=curve)
    return noise_multipliers(bare, steps, start)


def _unscaled(noise: Any) -> Any:
    return noise.schedule if isinstance(noise, scaled) else noise


def _with_noise(mechanism: Either, factor: float) -> Either:
    """Returns the mechanism with its bare curve multiplied by the factor."""
    if isinstance(mechanism, Method):
        return mechanism.replace(mechanism=_with_noise(mechanism.mechanism, factor))
    noise = mechanism.noise_multiplier
    new = scaled(_unscaled(noise), factor) if callable(noise) else factor
    try:
        return mechanism.replace(noise_multiplier=new)
    except ValueError as error:
        raise ValueError(f"the budget needs {error}") from error


def _central_limit(sampling: Sampling, runs: Runs, epsilon: float, delta: float) -> float:
    """Returns a factor by the central-limit figure, which has the right size."""
    rate = 1.0
    if isinstance(sampling, FixedSize):
        rate = sampling.size / sampling.dataset_size
    elif not isinstance(sampling, FullBatch):
        rate = sampling.rate

    def figure(factor: float) -> float:
        inverse = [((sigma * factor) ** -2, count) for sigma, count in runs]
        if max(value for value, _ in inverse) > 600:
            return math.inf
        squared = sum(count * rate**2 * math.expm1(value) for value, count in inverse)
        return gdp_epsilon(math.sqrt(squared), delta)

    return smallest_noise(figure, epsilon, 1.0, 0.05) or 1.0


def max_steps(
    mechanism: Mechanism | Method,
    sampling: Sampling,
    epsilon: float,
    delta: float,
    accountant: str = "pld",
    *,
    start: int = 0,
    relation: Any = None,
    most: int = 2**24,
) -> int:
    """Returns how many steps a budget allows; 0 if not even one.

    Args:
        mechanism: as for `epsilon`.
        sampling: as for `epsilon`.
        epsilon: the budget.
        delta: the target delta.
        accountant: as for `epsilon`.
        start: how many steps were released before (and are not counted here).
        relation: as for `epsilon`.
        most: the largest answer.

    Example:
        >>> import dpjax
        >>> method = dpjax.methods.dp_sgd(noise_multiplier=1.0)
        >>> max_steps(method, dpjax.sampling.Poisson.with_rate(0.01), epsilon=2.0, delta=1e-5)
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
    mechanism: Mechanism | Method,
    dataset_size: int,
    steps: int,
    epsilon: float,
    delta: float,
    accountant: str = "pld",
    *,
    start: int = 0,
    relation: Any = None,
) -> int:
    """Returns the largest expected batch size B, Poisson sampled at B / N, that a budget allows.

    Args:
        mechanism: as for `epsilon`.
        dataset_size: N.
        steps: how many steps will run, whatever the batch size.
        epsilon: the budget.
        delta: the target delta.
        accountant: as for `epsilon`.
        start: how many steps were released before.
        relation: as for `epsilon`.

    Returns:
        B; 0 if the budget does not allow even an expected batch size of 1.

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
            return False  # a rate outside the lemma of tCDP
        return spent <= epsilon

    return largest_integer(fits, size)
