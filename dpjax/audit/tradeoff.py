"""Trade-off curves: the errors that an attack makes, and the errors that a claim forces on it."""

from collections.abc import Sequence

import numpy as np

__all__ = ["claimed_tradeoff", "measured_tradeoff"]


def measured_tradeoff(included: np.ndarray, excluded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns false positive and false negative rates of ``score > t``, for t over all scores.

    Args:
        included: scores with the canary.
        excluded: scores without it.

    Example:
        >>> false_positive, false_negative = measured_tradeoff(np.array([2, 3]), np.array([1, 2]))
        >>> false_positive.tolist(), false_negative.tolist()
        ([1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 1.0])
    """
    at = np.concatenate([[-np.inf], np.union1d(included, excluded)])
    ones, zeros = np.sort(included), np.sort(excluded)
    false_negative = np.searchsorted(ones, at, side="right") / len(ones)
    false_positive = 1 - np.searchsorted(zeros, at, side="right") / len(zeros)
    return false_positive, false_negative


def claimed_tradeoff(
    claims: Sequence[tuple[float, float]], false_positive: np.ndarray
) -> np.ndarray:
    """Returns the least false negative rate that claims allow at given false positive rates.

    ``max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))``, the largest over the claims.

    Args:
        claims: pairs of epsilon and delta that all hold.
        false_positive: a, in [0, 1].

    Example:
        >>> claimed_tradeoff([(0.0, 0.1)], np.array([0.0, 0.5, 1.0])).tolist()
        [0.9, 0.4, 0.0]
    """
    least = np.zeros_like(false_positive, dtype=np.float64)
    for epsilon, delta in claims:
        rest = 1 - delta
        least = np.maximum(least, rest - np.exp(min(epsilon, 700.0)) * false_positive)
        least = np.maximum(least, np.exp(-epsilon) * (rest - false_positive))
    return least
