"""Finds where a falling function meets a target, and errs on the safe side only."""

import math
from collections.abc import Callable

__all__ = ["largest_integer", "smallest_noise"]

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
        spent: the cost of a noise; falling, +inf where it is not defined.
        target: the cost to reach from below.
        start: a first guess.
        tolerance: how far below the target the cost may stay.
        stride: by what factor the guess may be wrong; where it is more, the stride grows.

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
    """Returns the largest n in [0, most] that fits, for a property that small numbers have.

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
