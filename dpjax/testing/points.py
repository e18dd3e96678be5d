"""Where a contract is tried: norms, thresholds and batch sizes, at random and densely."""

import numpy as np

from dpjax._contract import log_strata, strata
from dpjax.thresholds.base import CEILING, FLOOR

__all__ = ["batch_sizes", "dense_norms", "dense_ratios", "hostile_norms", "some_thresholds"]

_SIZES = (1, 2, 3, 16, 17, 32, 33, 64, 65, 128, 257, 1000)


def hostile_norms() -> np.ndarray:
    """Returns norms on a log grid with 0, subnormals and the largest float; +inf comes last."""
    grid = np.logspace(-37, 38, 1501)
    special = [0.0, 1e-45, 1e-40, float(np.finfo(np.float32).max)]
    return np.asarray([*special, *grid, np.inf], np.float32)


def dense_ratios(rng: np.random.Generator) -> np.ndarray:
    """Returns norms in units of the threshold: 0 to 4 in steps of about 5e-4."""
    return strata(rng, 0, 4, 8192)


def dense_norms(rng: np.random.Generator) -> np.ndarray:
    """Returns norms whatever the threshold is: 1e-10 to 1e10 in steps of about 0.3%."""
    return log_strata(rng, 1e-10, 1e10, 16384)


def some_thresholds(rng: np.random.Generator, count: int) -> np.ndarray:
    """Returns thresholds over the legal range, and both its ends, 1 and 2."""
    random = log_strata(rng, FLOOR, CEILING, count - 4)
    return np.asarray([FLOOR, CEILING, 1.0, 2.0, *random], np.float32)


def batch_sizes(rng: np.random.Generator) -> list[int]:
    """Returns batch sizes: some always, some of 1 to 64, some beyond.

    >>> 17 in batch_sizes(np.random.default_rng(0))
    True
    """
    drawn = [*rng.integers(1, 65, 12), *rng.integers(65, 1025, 3)]
    return sorted({*_SIZES, *map(int, drawn)})
