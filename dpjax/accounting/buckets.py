"""Conservative bucketing: many noise multipliers become few, all rounded to the same side."""

import numpy as np

from dpjax.accounting.leaves import Gaussians

__all__ = ["bucketed"]


def bucketed(gaussians: Gaussians, buckets: int, *, down: bool) -> Gaussians:
    """Returns the releases with at most `buckets` distinct noise multipliers.

    Less noise never costs less: rounded down the releases bound epsilon from above, rounded up from
    below. Where privacy is spent the buckets are narrow: with the cost ``c(sigma) = e^(1/sigma^2)
    - 1`` of a release, their widths in log sigma are as ``(number * |dc / dlog sigma|)^(-1/2)``,
    which makes the summed rounding error smallest.

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
