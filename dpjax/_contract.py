"""Checks of the contract of rules and thresholds at sample points.

The light checks run when a `Mechanism` is constructed with a rule or a threshold from outside the
package. They evaluate with NumPy, so that constructing a mechanism compiles nothing and starts no
device. The thorough checks are in `dpjax.testing`.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable

import jax
import numpy as np

from dpjax._interpreter import traced
from dpjax._record import Record
from dpjax.rules import Rule
from dpjax.thresholds import Threshold
from dpjax.thresholds.threshold import CEILING, FLOOR, State

__all__ = [
    "SLACK",
    "ContractViolation",
    "broken_weight",
    "check_rule_lightly",
    "check_threshold_lightly",
    "is_foreign",
    "log_strata",
    "rebuilt_states",
    "require",
    "some_batch",
    "strata",
]

SLACK = 2e-7
"""The relative amount by which float32 rounding may make a contribution exceed its bound."""

_LIGHT_SLACK = 1e-6  # NumPy rounds a few operations differently from XLA
_AGREEMENT = 1e-5  # how closely a row computed in a batch equals the row computed alone
_LIGHT_SIZES = (24, 300)


class ContractViolation(AssertionError, ValueError):
    """A rule or a threshold violates a property that the privacy proof relies on."""


def require(condition: object, record: Record, what: str) -> None:
    """Raises `ContractViolation` naming the record unless the condition holds."""
    if not condition:
        raise ContractViolation(f"{record!r}: {what}")


def is_foreign(record: Record) -> bool:
    """Returns whether a record's class is defined outside the package.

    >>> import dpjax
    >>> is_foreign(dpjax.rules.abadi())
    False
    """
    return type(record).__module__.partition(".")[0] != __name__.partition(".")[0]


def strata(rng: np.random.Generator, low: float, high: float, count: int) -> np.ndarray:
    """Returns one random number from each of `count` equal parts of [low, high], in order."""
    return low + (high - low) * (np.arange(count) + rng.random(count)) / count


def log_strata(rng: np.random.Generator, low: float, high: float, count: int) -> np.ndarray:
    """Returns `count` increasing numbers, one from each of `count` log-equal parts of [low, high].

    An interval at least twice as wide as a part is certain to contain one of them.
    """
    return np.exp(strata(rng, np.log(low), np.log(high), count))


def broken_weight(
    norms: np.ndarray, weights: np.ndarray, bounds: np.ndarray, slack: float = SLACK
) -> np.ndarray:
    """Returns, elementwise, whether a weight breaks the contract.

    ``0 <= weight < inf``, ``weight n <= bound (1 + slack)`` in float64, and 0 for a norm of +inf.

    >>> ones = np.ones(4)
    >>> broken_weight(np.array([1, 2, 2, np.inf]), np.array([1, 0.5, 0.6, 1]), ones).tolist()
    [False, False, True, True]
    """
    norms, weights = np.asarray(norms, np.float64), np.asarray(weights, np.float64)
    finite = np.isfinite(norms)
    length = weights * np.where(finite, norms, 0.0)
    sound = (weights >= 0) & np.isfinite(weights) & (length <= bounds * (1 + slack))
    return ~(sound & (finite | (weights == 0)))


def some_batch(rng: np.random.Generator, rows: int, c: float) -> np.ndarray:
    """Returns the norms of a batch: most of them near c, some of them 0, huge or infinite."""
    norms = c * 10.0 ** rng.uniform(-1.5, 1.5, rows)
    rare = rng.random(rows) < 0.05
    return np.where(rare, rng.choice([0.0, 1e30, np.inf], rows), norms).astype(np.float32)


def rebuilt_states(threshold: Threshold[State], init: State, thresholds: np.ndarray) -> list[State]:
    """Returns states with these thresholds, as far as they can be built.

    A state that is a single number can hold any threshold between `floor` and `ceiling`. For other
    states, the record's first state with a different `c0` is used. If the record has no `c0`, no
    states are returned.

    Args:
        threshold: the adaptive threshold.
        init: its first state.
        thresholds: the thresholds wanted.
    """
    low, high = getattr(threshold, "floor", FLOOR), getattr(threshold, "ceiling", CEILING)
    wanted = [np.float32(c) for c in thresholds if low <= np.float32(c) <= high]
    leaves, treedef = jax.tree.flatten(init)
    if len(leaves) == 1 and leaves[0].shape == ():
        states = [jax.tree.unflatten(treedef, [c]) for c in wanted]
    elif "c0" in {field.name for field in dataclasses.fields(threshold)}:  # type: ignore[arg-type]
        states = [_first_state(threshold, float(c)) for c in wanted]
    else:
        return []
    placed = zip(states, wanted, strict=True)
    return [s for s, c in placed if s is not None and np.float32(s.threshold) == c]


def _first_state(threshold: Threshold[State], c0: float) -> State | None:
    try:
        return traced(threshold.replace(c0=c0).init)()
    except (TypeError, ValueError):  # it does not accept this c0
        return None


def check_rule_lightly(rule: Rule, thresholds: tuple[float, ...]) -> None:
    """Raises `ContractViolation` if a check of some milliseconds finds that a rule breaks it.

    Args:
        rule: the rule.
        thresholds: values of c that will be used; the check tries others too.
    """
    _remembered(_check_rule_lightly, rule, thresholds)


def check_threshold_lightly(threshold: Threshold[State]) -> None:
    """Raises `ContractViolation` if a check of some milliseconds finds a broken statistic."""
    _remembered(_check_threshold_lightly, threshold)


def _remembered(check: Callable[..., None], record: Record, *rest: Hashable) -> None:
    """Runs a check once per distinct record; an unhashable record is checked every time."""
    try:
        hash(record)
    except TypeError:
        check(record, *rest)
    else:
        _once(check, record, *rest)


@functools.lru_cache(maxsize=256)
def _once(check: Callable[..., None], record: Record, *rest: Hashable) -> None:
    check(record, *rest)


def _check_rule_lightly(rule: Rule, thresholds: tuple[float, ...]) -> None:
    rng = np.random.default_rng(0)
    _check_rows_lightly(
        rule, "weight", lambda norms: rule.weight(norms, 1.0), some_batch(rng, max(_LIGHT_SIZES), 1)
    )
    # Many norms at some thresholds, and some norms at many thresholds.
    for c, ratios in (
        (
            np.concatenate([thresholds, log_strata(rng, FLOOR, CEILING, 8)]),
            np.concatenate([strata(rng, 0, 4, 4000), log_strata(rng, 1e-18, 1e18, 400)]),
        ),
        (
            log_strata(rng, FLOOR, CEILING, 1000),
            np.concatenate([strata(rng, 0, 4, 20), log_strata(rng, 1e-18, 1e18, 10)]),
        ),
    ):
        norms = np.concatenate([ratios[:, None] * c, np.full((1, len(c)), np.inf)])
        _check_weights_lightly(rule, norms.astype(np.float32), c.astype(np.float32))


def _check_weights_lightly(rule: Rule, norms: np.ndarray, c: np.ndarray) -> None:
    weights = traced(rule.weight, norms, c)(norms, c)
    bounds = np.broadcast_to(np.asarray(traced(rule.bound, c)(c), np.float64), c.shape)
    sound = np.isfinite(bounds) & (bounds > 0)
    require(sound.all(), rule, f"bound({c[~sound][:1]}) is {bounds[~sound][:1]}")
    broken = broken_weight(norms, weights, bounds, _LIGHT_SLACK)
    if broken.any():
        row, column = map(int, np.argwhere(broken)[0])
        n, w, b = norms[row, column], weights[row, column], bounds[column]
        what = f"weight * norm is {w * n:.6g}, beyond the bound {b:.6g}," if np.isfinite(n) else ""
        require(False, rule, f"{what or f'the weight is {w:.6g}'} at norm {n:.6g}, c {c[column]:g}")


def _check_threshold_lightly(threshold: Threshold[State]) -> None:
    rng = np.random.default_rng(0)
    init = traced(threshold.init)()
    _check_rows_lightly(
        threshold,
        "statistic",
        lambda norms: threshold.statistic(norms, init),
        some_batch(rng, max(_LIGHT_SIZES), float(init.threshold)),
    )
    ratios = np.concatenate(
        [strata(rng, 0, 4, 2000), log_strata(rng, 1e-18, 1e18, 200), [0.0, np.inf]]
    )
    width = jax.eval_shape(threshold.statistic, ratios.astype(np.float32), init).shape[-1]
    ratios = ratios[:: 1 + len(ratios) * width // 2**20]
    statistic = traced(threshold.statistic, ratios.astype(np.float32), init)
    places = 100 if len(jax.tree.leaves(init)) == 1 else 8  # others are traced one by one
    wanted = log_strata(rng, FLOOR, CEILING, places)
    for state in [init, *rebuilt_states(threshold, init, wanted)]:
        norms = (ratios * float(state.threshold)).astype(np.float32)
        lengths = np.linalg.norm(np.asarray(statistic(norms, state), np.float64), axis=-1)
        within = lengths <= threshold.sensitivity * (1 + _LIGHT_SLACK)
        worst = int(np.argmin(within))
        require(
            within.all(),
            threshold,
            f"the statistic of norm {norms[worst]:.6g} at threshold {float(state.threshold):.6g} "
            f"is {lengths[worst]:.6g} long, beyond the sensitivity {threshold.sensitivity:g}",
        )


def _check_rows_lightly(
    record: Record, what: str, function: Callable[[jax.Array], jax.Array], norms: np.ndarray
) -> None:
    """Checks that a row's value does not depend on the other rows of its batch."""
    alone = traced(jax.vmap(lambda n: function(n[None])[0]), norms)(norms)
    for size in _LIGHT_SIZES:
        together = traced(function, norms[:size])(norms[:size])
        same = np.allclose(together, alone[:size], rtol=_AGREEMENT, atol=0, equal_nan=True)
        require(same, record, f"the {what} of an example depends on the {size - 1} others'")
