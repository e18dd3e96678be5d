"""The curves of a run: epsilon, noise and threshold over its steps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting
from dpjax.accounting import Bound
from dpjax.accounting.bound import upper_epsilon_of
from dpjax.cli import describe
from dpjax.mechanism import Mechanism
from dpjax.schedules import FloatOrSchedule, value_at
from dpjax.thresholds import Threshold
from dpjax.train.plan import Setting

__all__ = ["Curve", "EpsilonCurve", "epsilon_curve", "noise_curves", "threshold_curves"]

_EPSILONS, _VALUES = 12, 400


@dataclass(frozen=True)
class Curve:
    """A line.

    Attributes:
        name: the name in the legend.
        steps: the steps of its values.
        values: the values.
        known: whether all values are known; only the first value of an adaptive threshold is.
    """

    name: str
    steps: list[int]
    values: list[float]
    known: bool = True


@dataclass(frozen=True)
class EpsilonCurve:
    """Epsilon over the number of steps; `last` is its end, with its guarantee."""

    accountant: str
    curve: Curve
    last: Bound


def epsilon_curve(setting: Setting, accountant: str) -> EpsilonCurve:
    """Returns epsilon after several numbers of steps, the last being all of them."""
    *some, steps = _spread(1, setting.steps, _EPSILONS, power=2)  # epsilon starts steeply

    def upper(number: int) -> float:
        happened = accounting.event(
            setting.mechanism,
            setting.sampling,
            number,
            setting.start,
            relation=setting.relation,
            accountant=accountant,
        )
        relation = happened.neighboring_relation
        return upper_epsilon_of(happened, relation, setting.delta, accountant)

    last = accounting.epsilon(
        setting.mechanism,
        setting.sampling,
        steps,
        setting.delta,
        accountant,
        start=setting.start,
        relation=setting.relation,
    )
    values = [*map(upper, some), last.upper]
    return EpsilonCurve(accountant, Curve(accountant, [*some, steps], values), last)


def noise_curves(setting: Setting) -> list[Curve]:
    """Returns sigma_t and, if a statistic shares the budget, sigma_T of the gradient."""
    mechanism, steps = setting.mechanism, _steps(setting)
    curves = [_curve("accounted", steps, mechanism.sigma)]
    if describe.noise_of(setting).statistic is not None:
        own = partial(mechanism.sigma_gradient, expected_batch_size=setting.batch_size)
        curves.append(_curve("gradient's own", steps, own))
    return curves


def threshold_curves(setting: Setting) -> list[Curve]:
    """Returns C_t of each group; for an adaptive threshold, only C_0 is known in advance."""
    mechanism, steps = setting.mechanism, _steps(setting)
    if isinstance(mechanism.threshold, Threshold):
        first = float(mechanism.threshold.init().threshold)
        name = f"adapts, from C_0 = {first:g}"
        return [Curve(name, [steps[0], steps[-1]], [first, first], known=False)]
    return [_curve(name, steps, partial(value_at, c)) for name, c in _named(mechanism)]


def _named(mechanism: Mechanism) -> list[tuple[str, FloatOrSchedule]]:
    if isinstance(mechanism.threshold, tuple):
        return [(f"group {i}", c) for i, c in enumerate(mechanism.threshold, start=1)]
    if isinstance(mechanism.threshold, Threshold):
        return []
    return [("fixed beforehand", mechanism.threshold)]


def _steps(setting: Setting) -> list[int]:
    return _spread(setting.start, setting.start + setting.steps - 1, _VALUES)


def _spread(first: int, last: int, most: int, power: float = 1.0) -> list[int]:
    """Returns up to `most` integers from first to last, denser near first for a power > 1."""
    places = np.linspace(0.0, 1.0, most) ** power
    return np.unique((first + (last - first) * places).round().astype(int)).tolist()


def _curve(name: str, steps: list[int], read: Callable[[Any], Any]) -> Curve:
    values = jax.vmap(read)(jnp.asarray(steps))
    return Curve(name, steps, np.asarray(values, float).tolist())
