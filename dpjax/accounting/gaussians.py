"""Extracts the Gaussian releases of an event: their noise, sampling and number."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import dp_accounting
import numpy as np
from scipy import stats

__all__ = [
    "FixedSampling",
    "Gaussians",
    "Leaves",
    "PoissonSampling",
    "TruncatedSampling",
    "bucketed",
    "leaves",
    "releases",
    "truncation",
]


class PoissonSampling(NamedTuple):
    """Poisson sampling at a rate; a rate of 1 is no sampling at all."""

    rate: float


class TruncatedSampling(NamedTuple):
    """Poisson sampling at a rate, truncated at random to a maximum size."""

    dataset_size: int
    rate: float
    max_size: int


class FixedSampling(NamedTuple):
    """A batch of fixed size, drawn without replacement."""

    dataset_size: int
    size: int


class Gaussians(NamedTuple):
    """Gaussian releases under one kind of sampling.

    Attributes:
        sampling: the sampling.
        sigmas: distinct noise multipliers, ascending.
        counts: the number of releases with each of them.
    """

    sampling: PoissonSampling | TruncatedSampling | FixedSampling
    sigmas: np.ndarray
    counts: np.ndarray


class Leaves(NamedTuple):
    """The releases that an event composes; their order does not matter to any accountant.

    Attributes:
        gaussians: the Gaussian releases, by their sampling.
        others: everything else, each with its count.
    """

    gaussians: list[Gaussians]
    others: list[tuple[dp_accounting.DpEvent, int]]


def leaves(event: dp_accounting.DpEvent) -> Leaves:
    """Returns the parts of a (nested) composition.

    Gaussians without sampling are merged exactly into one: ``sigma = (sum_t sigma_t^-2)^(-1/2)``.

    >>> gaussian = dp_accounting.GaussianDpEvent(2.0)
    >>> leaves(dp_accounting.SelfComposedDpEvent(gaussian, 4)).gaussians
    [Gaussians(sampling=PoissonSampling(rate=1.0), sigmas=array([1.]), counts=array([1]))]
    """
    gaussians, others = releases(event)
    return Leaves([_as_one(each) for each in gaussians], others)


def _as_one(gaussians: Gaussians) -> Gaussians:
    sampling, sigmas, counts = gaussians
    if sampling != PoissonSampling(1.0):
        return gaussians
    return Gaussians(sampling, np.array([np.sum(counts / sigmas**2) ** -0.5]), np.array([1]))


def releases(event: dp_accounting.DpEvent) -> Leaves:
    """Returns the parts of a (nested) composition, without merging any.

    >>> gaussian = dp_accounting.GaussianDpEvent(2.0)
    >>> releases(dp_accounting.SelfComposedDpEvent(gaussian, 4)).gaussians
    [Gaussians(sampling=PoissonSampling(rate=1.0), sigmas=array([2.]), counts=array([4]))]
    """
    found: dict[PoissonSampling | TruncatedSampling | FixedSampling, dict[float, int]] = (
        defaultdict(dict)
    )
    others = []
    for leaf, count in _walk(event, 1):
        sampled = _sampled(leaf)
        if sampled is None:
            others.append((leaf, count))
            continue
        sampling, sigma = sampled
        if not 0 < sigma < np.inf:
            raise ValueError(f"{leaf!r}: expected a finite noise multiplier > 0")
        found[sampling][sigma] = found[sampling].get(sigma, 0) + count
    gaussians = []
    for sampling, by_sigma in found.items():
        sigmas, counts = np.array(sorted(by_sigma.items())).T
        gaussians.append(Gaussians(sampling, sigmas, counts.astype(np.int64)))
    return Leaves(gaussians, others)


def truncation(sampling: PoissonSampling | TruncatedSampling | FixedSampling) -> float:
    """Returns the probability that a truncated batch is full without a given example, 0 for others.

    >>> truncation(TruncatedSampling(dataset_size=3, rate=0.5, max_size=2))  # both of the other two
    0.25
    """
    if not isinstance(sampling, TruncatedSampling):
        return 0.0
    size, rate, most = sampling
    return float(stats.binom.sf(most - 1, size - 1, rate))


def _walk(event: dp_accounting.DpEvent, count: int) -> Iterator[tuple[dp_accounting.DpEvent, int]]:
    if isinstance(event, dp_accounting.NoOpDpEvent):
        return
    if isinstance(event, dp_accounting.ComposedDpEvent):
        for part in event.events:
            yield from _walk(part, count)
    elif isinstance(event, dp_accounting.SelfComposedDpEvent):
        yield from _walk(event.event, count * event.count)
    else:
        yield event, count


def _sampled(
    event: dp_accounting.DpEvent,
) -> tuple[PoissonSampling | TruncatedSampling | FixedSampling, float] | None:
    """Returns the sampling and the noise multiplier of a Gaussian release; None for any other."""
    sampling: PoissonSampling | TruncatedSampling | FixedSampling = PoissonSampling(1.0)
    inner = event
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        sampling, inner = PoissonSampling(float(event.sampling_probability)), event.event
    elif isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
        inner = event.event
        if event.sample_size < event.source_dataset_size:
            sampling = FixedSampling(event.source_dataset_size, event.sample_size)
    elif isinstance(event, dp_accounting.TruncatedSubsampledGaussianDpEvent):
        sampling = TruncatedSampling(
            event.dataset_size, event.sampling_probability, event.truncated_batch_size
        )
        inner = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    if not isinstance(inner, dp_accounting.GaussianDpEvent):
        return None
    return sampling, float(inner.noise_multiplier)


def bucketed(gaussians: Gaussians, buckets: int, *, down: bool) -> Gaussians:
    """Returns the releases with at most `buckets` distinct noise multipliers.

    Less noise never costs less, so rounding noise multipliers down bounds epsilon from above, and
    rounding them up from below. Buckets are narrow where most privacy is spent: with the cost
    ``c(sigma) = e^(1/sigma^2) - 1`` of a release, their widths in log sigma are proportional to
    ``(number * |dc / dlog sigma|)^(-1/2)``, which minimises the total rounding error.

    Args:
        gaussians: the releases.
        buckets: the largest number of distinct noise multipliers.
        down: whether to round down.

    >>> many = Gaussians(None, np.linspace(1.0, 2.0, 1000), np.ones(1000, int))
    >>> few = bucketed(many, 10, down=True)
    >>> few.sigmas.size, int(few.counts.sum()), float(few.sigmas[0])
    (10, 1000, 1.0)
    """
    sigmas, counts = gaussians.sigmas, gaussians.counts
    if sigmas.size <= buckets:
        return gaussians
    inverse = np.minimum(sigmas**-2.0, 300.0)
    slope = 2 * inverse * np.exp(inverse)
    width = np.diff(np.log(sigmas), append=np.log(sigmas[-1]))
    position = np.cumsum(np.sqrt(counts * slope * width))
    position = np.concatenate([[0.0], position[:-1]]) / position[-1]
    bucket = np.minimum((position * buckets).astype(int), buckets - 1)
    first = np.flatnonzero(np.diff(bucket, prepend=-1))
    ends = first if down else np.append(first[1:], sigmas.size) - 1
    return Gaussians(gaussians.sampling, sigmas[ends], np.add.reduceat(counts, first))
