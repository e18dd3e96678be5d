"""What a schedule is, and how a float-or-schedule is checked and read."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks
from dpjax._record import Record

__all__ = [
    "EpochSchedule",
    "FloatOrSchedule",
    "Schedule",
    "epoch_of",
    "largest",
    "number_or_schedule",
    "steps_of",
    "value_at",
]

# float32 division may land just below a whole epoch; this moves it back. It is exact while
# epoch * N < 2^22 gcd(N, B), and beyond that an epoch may begin one step early.
_EPOCH_SLACK = 1.0 + 2.0**-22


class Schedule(Record):
    """A public curve ``step -> value``: frozen, comparable, serialisable, jit-able."""

    role: ClassVar[str] = "schedule"

    def __call__(self, step: Any) -> jax.Array:
        """Returns the value for the step that has `step` released steps before it."""
        raise NotImplementedError

    def largest(self) -> float:
        """Returns the largest value over all steps, looked for where a curve is probed."""
        return _largest_probed(self)


FloatOrSchedule: TypeAlias = float | Schedule | Callable[[Any], Any]


def epoch_of(step: Any, steps_per_epoch: float) -> jax.Array:
    """Returns ``floor(step / steps_per_epoch)`` as a float, right at whole epochs.

    >>> [int(epoch_of(t, 60000 / 7000)) for t in (0, 8, 9, 59, 60)]
    [0, 0, 1, 6, 7]
    """
    return jnp.floor(jnp.asarray(step, jnp.float32) / steps_per_epoch * _EPOCH_SLACK)


def steps_of(epochs: float, steps_per_epoch: float) -> int:
    """Returns ``ceil(epochs * steps_per_epoch)``, but for the hair by which floats may exceed it.

    >>> steps_of(3, 0.1 * 100), steps_of(10, 60000 / 256)
    (30, 2344)
    """
    return math.ceil(epochs * steps_per_epoch * (1 - 1e-12))


class EpochSchedule(Schedule):
    """A curve that starts at `init` and changes with the epoch."""

    role: ClassVar[str] = "schedule"

    init: float
    steps_per_epoch: float

    def _check_epochs(self) -> None:
        self._set(
            init=_checks.normal("init", self.init),
            steps_per_epoch=_checks.normal("steps_per_epoch", self.steps_per_epoch),
        )

    def _epoch(self, step: Any) -> jax.Array:
        return epoch_of(step, self.steps_per_epoch)


def number_or_schedule(field: str, value: Any, *, zero: bool = False) -> FloatOrSchedule:
    """Checks a float-or-schedule: a finite number (> 0, or >= 0 with `zero`) or a callable.

    >>> number_or_schedule("threshold", -1.0)
    Traceback (most recent call last):
    ...
    ValueError: threshold = -1.0: expected a finite number > 0
    """
    if isinstance(value, Record) and not isinstance(value, Schedule):
        raise TypeError(f"{field} = {value!r}: expected a number or a schedule, got a {value.role}")
    if isinstance(value, type):
        raise TypeError(f"{field} = {value.__name__}: expected an instance, {value.__name__}(...)")
    if isinstance(value, Schedule):
        return value
    if callable(value):
        probed = _probed(value)
        # Far out, where no run may ever come, a decay may have reached zero. The accounting reads
        # every step that ran, and refuses a noise multiplier of zero there.
        if probed is not None and not (0 < probed[0] < np.inf and np.all(probed >= 0)):
            raise ValueError(f"{field} = {value!r}: expected values > 0")
        return value
    return _checks.non_negative(field, value) if zero else _checks.positive(field, value)


def _probed(curve: Callable[[Any], Any]) -> np.ndarray | None:
    """Returns the curve's values at the first 256 steps and at powers of two; None if traced."""
    steps = np.asarray([*range(256), *(2**k for k in range(8, 31))], np.int32)
    with jax.ensure_compile_time_eval():  # a schedule is public: read it even while tracing
        values = jax.vmap(lambda t: jnp.asarray(curve(t), jnp.float32))(steps)
    # A closure over a traced number (a vmapped hyper-parameter) has no values yet.
    return None if isinstance(values, jax.core.Tracer) else np.asarray(values)


def _largest_probed(curve: Callable[[Any], Any]) -> float:
    probed = _probed(curve)
    if probed is None:
        raise ValueError(
            f"{curve!r} depends on a traced value: expected one whose largest value can be read, "
            "as the noise of a statistic is derived from it"
        )
    return float(probed.max())


def value_at(value: FloatOrSchedule, step: Any) -> jax.Array:
    """Reads a float-or-schedule at `step`, as float32."""
    return jnp.asarray(value(step) if callable(value) else value, jnp.float32)


def largest(value: FloatOrSchedule) -> float:
    """Returns the largest value of a float-or-schedule.

    A bare callable is probed at its first 256 steps and at powers of two: enough for any curve that
    is smooth or monotone. The accounting reads every step that ran and refuses what was missed.

    >>> largest(lambda t: 2.0 / (1 + t)), largest(3.0)
    (2.0, 3.0)
    """
    if isinstance(value, Schedule):
        return value.largest()
    return _largest_probed(value) if callable(value) else float(value)
