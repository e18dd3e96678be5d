"""Counterexamples by hypothesis: further ones, and simpler ones; nothing without hypothesis."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpjax.thresholds.base import CEILING, FLOOR

__all__ = ["Point", "searched", "simplest"]

_LARGEST = float(np.finfo(np.float32).max)
_EXAMPLES = 200


class Point(NamedTuple):
    """Where a contract is broken: a threshold and a norm."""

    c: float
    norm: float


def searched(violates: Callable[[Point], bool], seed: int) -> Point | None:
    """Returns a violation that hypothesis finds, shrunk; None if there is none or no hypothesis.

    Args:
        violates: says whether the contract is broken at a point.
        seed: of the search.
    """
    strategies = _strategies()
    if strategies is None:
        return None
    thresholds = strategies.floats(float(np.float32(FLOOR)), CEILING, width=32)
    norms = strategies.floats(0, _LARGEST, width=32)
    ratios = strategies.floats(0, 8, width=32)
    return _found(
        strategies.builds(Point, thresholds, norms)
        | strategies.builds(lambda c, ratio: _point(c, c * ratio), thresholds, ratios),
        violates,
        seed,
    )


def simplest(violates: Callable[[Point], bool], point: Point, seed: int) -> Point:
    """Returns a simpler violation near one, or that one.

    Simpler is what hypothesis shrinks to: 1 rather than 1.0037. It is looked for around the point
    first, then closer and closer.

    Args:
        violates: says whether the contract is broken at a point.
        point: where it is.
        seed: of the search.
    """
    strategies = _strategies()
    if strategies is None or not np.isfinite(point.norm):
        return point
    ratio = point.norm / point.c
    for width in (0.5, 0.05, 0.005):
        thresholds = strategies.floats((1 - width) * point.c, (1 + width) * point.c)
        ratios = strategies.floats((1 - width) * ratio, (1 + width) * ratio)
        near = strategies.builds(lambda c, r: _point(c, c * r), thresholds, ratios)
        if (found := _found(near, violates, seed)) is not None:
            return found
    return point


def _found(strategy: Any, violates: Callable[[Point], bool], seed: int) -> Point | None:
    import hypothesis  # noqa: PLC0415  installed: there is a strategy

    quiet = hypothesis.settings(
        max_examples=_EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        return hypothesis.find(strategy, violates, settings=quiet, random=random.Random(seed))
    except hypothesis.errors.NoSuchExample:
        return None


def _point(c: float, norm: float) -> Point:
    return Point(float(np.float32(c)), float(np.float32(norm)))


def _strategies() -> Any:
    try:
        from hypothesis import strategies  # noqa: PLC0415  an optional extra
    except ImportError:
        return None
    return strategies
