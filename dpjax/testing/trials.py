"""Tools to check a contract: extreme and dense points, independent rows, simple counterexamples.

Searching for more and simpler counterexamples needs hypothesis; without it those steps are skipped.
"""

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import chex
import jax
import numpy as np

from dpjax._contract import log_strata, require, some_batch, strata
from dpjax._interpreter import traced
from dpjax._record import Record
from dpjax.thresholds.threshold import CEILING, FLOOR

__all__ = [
    "Point",
    "batch_sizes",
    "check_record",
    "check_rows",
    "dense_norms",
    "dense_ratios",
    "hostile_norms",
    "searched",
    "simplest",
    "some_thresholds",
]

_SIZES = (1, 2, 3, 16, 17, 32, 33, 64, 65, 128, 257, 1000)


def hostile_norms() -> np.ndarray:
    """Returns norms on a log grid, with 0, subnormals and the largest float; +inf comes last.

    Returns:
        (1506,) norms in float32.

    Example:
        >>> norms = hostile_norms()
        >>> norms.shape, float(norms[0]), float(norms[-1])
        ((1506,), 0.0, inf)
    """
    grid = np.logspace(-37, 38, 1501)
    special = [0.0, 1e-45, 1e-40, float(np.finfo(np.float32).max)]
    return np.asarray([*special, *grid, np.inf], np.float32)


def dense_ratios(rng: np.random.Generator) -> np.ndarray:
    """Returns norms in units of the threshold: 0 to 4 in steps of about 5e-4."""
    return strata(rng, 0, 4, 8192)


def dense_norms(rng: np.random.Generator) -> np.ndarray:
    """Returns norms independent of the threshold: 1e-10 to 1e10 in steps of about 0.3%."""
    return log_strata(rng, 1e-10, 1e10, 16384)


def some_thresholds(rng: np.random.Generator, count: int) -> np.ndarray:
    """Returns thresholds over the legal range, including both ends, 1 and 2."""
    random = log_strata(rng, FLOOR, CEILING, count - 4)
    return np.asarray([FLOOR, CEILING, 1.0, 2.0, *random], np.float32)


def batch_sizes(rng: np.random.Generator) -> list[int]:
    """Returns batch sizes: some fixed, some random from 1 to 64, some larger.

    >>> 17 in batch_sizes(np.random.default_rng(0))
    True
    """
    drawn = [*rng.integers(1, 65, 12), *rng.integers(65, 1025, 3)]
    return sorted({*_SIZES, *map(int, drawn)})


_AGREEMENT = 1e-5  # of a row in a batch with the row alone, since loops round differently


def check_record(record: Record) -> None:
    """Checks that a record is frozen and survives conversion to plain data and back."""
    declared = getattr(type(record), "__dataclass_params__", None)
    require(getattr(declared, "frozen", False), record, "is no frozen dataclass")
    back = type(record).from_plain(record.to_plain())
    require(back == record, record, "does not survive to_plain and from_plain")


def check_rows(
    record: Record,
    what: str,
    function: Callable[[chex.Array], chex.Array],
    c: float,
    rng: np.random.Generator,
) -> None:
    """Checks that an example's row is the same alone and in batches of many sizes.

    Args:
        record: a rule or a threshold.
        what: "weight" or "statistic".
        function: maps norms (B,) to rows.
        c: the current threshold, around which norms are drawn.
        rng: draws norms and sizes.
    """
    sizes = batch_sizes(rng)
    batches = {size: some_batch(rng, size, c) for size in sizes}
    every = np.concatenate(list(batches.values()))
    # Each row alone, by vmap, so that nothing compiles per size.
    alone = traced(jax.vmap(lambda n: function(n[None])[0]), every)(every)
    start = 0
    for size, norms in batches.items():
        together = np.asarray(traced(function, norms)(norms))
        shape = (size, *alone.shape[1:])
        require(together.shape == shape, record, f"the {what} of {size} norms is {together.shape}")
        mine = alone[start : start + size]
        same = np.isclose(together, mine, rtol=_AGREEMENT, atol=0, equal_nan=True)
        rows = same.reshape(size, -1).all(1)
        row = int(np.argmin(rows))
        require(
            rows.all(),
            record,
            f"the {what} of norm {norms[row]:.6g} in a batch of {size} depends on the others': "
            f"{together[row]} there, {mine[row]} alone",
        )
        start += size


_LARGEST = float(np.finfo(np.float32).max)
_EXAMPLES = 200


class Point(NamedTuple):
    """A point at which a contract is broken: a threshold and a norm."""

    c: float
    norm: float


def searched(violates: Callable[[Point], bool], seed: int) -> Point | None:
    """Returns a violation found and shrunk by hypothesis; None without one or without hypothesis.

    Args:
        violates: returns whether the contract is broken at a point.
        seed: the seed of the search.
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
    """Returns a simpler violation near the given one, or the given one.

    Simpler is what hypothesis shrinks to: 1 rather than 1.0037. The search starts in a wide range
    around the point, then narrows.

    Args:
        violates: returns whether the contract is broken at a point.
        point: the given violation.
        seed: the seed of the search.
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
    import hypothesis  # noqa: PLC0415  it is installed, since there is a strategy

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


def _strategies() -> ModuleType | None:
    try:
        from hypothesis import strategies  # noqa: PLC0415  an optional extra
    except ImportError:
        return None
    return strategies
