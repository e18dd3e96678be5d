"""Schedules: public, data-independent curves for thresholds and noise multipliers.

A schedule is a frozen record. Called with t, the number of steps released so far, it returns the
value for the coming step. Curves per epoch take ``steps_per_epoch = N / B`` and read
``epoch = floor(t / steps_per_epoch)``, from 0. Beyond its end a schedule holds its last value.

The noise schedules of Auto DP-SGD (geometric, time, step and exponential) decay the *variance* in
the paper; each curve here is the noise multiplier, its square root. A noise schedule with
``init=None`` is open: `dpjax.calibrate` finds its first value.

A schedule costs no privacy, since it does not look at the data; the accounting reads the noise
multiplier of every step. Choosing a schedule by looking at private data does cost privacy.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import chex
import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks
from dpjax._record import Record

__all__ = [
    "FloatOrSchedule",
    "Schedule",
    "du_decay",
    "epoch_of",
    "exponential_decay",
    "geometric",
    "is_open",
    "largest",
    "number_or_schedule",
    "power_decay",
    "scaled",
    "step_decay",
    "steps_of",
    "table",
    "time_decay",
    "value_at",
    "with_level",
    "yu_linear",
]

# float32 division may land just below a whole epoch; this moves it back. It is exact while
# epoch * N < 2^22 gcd(N, B), and beyond that an epoch may begin one step early.
_EPOCH_SLACK = 1.0 + 2.0**-22


_PROBED = (*range(256), *(2**k for k in range(8, 31)))  # steps at which a callable is read

# The default of a required field that follows an optional one: None fails the field's check.
_REQUIRED: Any = None


class Schedule(Record):
    """A public curve ``step -> value``: frozen, comparable, serialisable, and usable in `jit`.

    Subclasses are frozen dataclasses that define `__call__`. A plain callable, such as an optax
    schedule, is accepted wherever a schedule is, but cannot be written to a file; see
    `table.from_callable`.

    Example:
        >>> @dataclass(frozen=True)
        ... class cosine(Schedule):
        ...     steps: int
        ...     def __call__(self, step):
        ...         return 1.5 + 0.5 * jnp.cos(jnp.pi * jnp.minimum(step / self.steps, 1.0))
        >>> float(cosine(steps=10)(0)), float(cosine(steps=10)(10)), cosine(steps=10).largest()
        (2.0, 1.0, 2.0)
    """

    role: ClassVar[str] = "schedule"

    def __call__(self, step: chex.Numeric) -> jax.Array:
        """Returns the value for the step that has `step` released steps before it.

        Args:
            step: t, from 0; possibly traced.
        """
        raise NotImplementedError

    def largest(self) -> float:
        """Returns the largest value over the first 256 steps and the powers of two."""
        return _largest_probed(self)


FloatOrSchedule: TypeAlias = float | Schedule | Callable[[chex.Numeric], chex.Numeric]
"""A number, a schedule, or any callable from the step to a number, such as optax's schedules."""


def epoch_of(step: chex.Numeric, steps_per_epoch: float) -> jax.Array:
    """Returns ``floor(step / steps_per_epoch)`` as a float, exact even where an epoch begins.

    Args:
        step: t, from 0; possibly traced.
        steps_per_epoch: N / B, > 0, which need not be whole.

    Example:
        >>> [int(epoch_of(t, 60000 / 7000)) for t in (0, 8, 9, 59, 60)]
        [0, 0, 1, 6, 7]
    """
    return jnp.floor(jnp.asarray(step, jnp.float32) / steps_per_epoch * _EPOCH_SLACK)


def steps_of(epochs: float, steps_per_epoch: float) -> int:
    """Returns ``ceil(epochs * steps_per_epoch)``, robust to rounding of the product.

    Args:
        epochs: E, the number of epochs.
        steps_per_epoch: N / B.

    Example:
        >>> steps_of(3, 0.1 * 100), steps_of(10, 60000 / 256)
        (30, 2344)
    """
    return math.ceil(epochs * steps_per_epoch * (1 - 1e-12))


class _Decay(Schedule):
    """A curve that starts at `init`; with ``init=None`` it is open and has no values yet."""

    role: ClassVar[str] = "schedule"

    init: float | None

    def _check_init(self, *required: str) -> None:
        for name in required:
            if getattr(self, name) is None:
                raise ValueError(f"{type(self).__name__}.{name}: missing; expected a number")
        if self.init is not None:
            self._set(init=_checks.normal("init", self.init))

    @property
    def _first(self) -> float:
        if self.init is None:
            raise ValueError(
                f"{self!r} has no first value yet: expected a number for init, which "
                "dpjax.calibrate finds"
            )
        return self.init


class _EpochDecay(_Decay):
    """A curve that starts at `init` and changes with the epoch."""

    role: ClassVar[str] = "schedule"

    steps_per_epoch: float

    def _check_epochs(self) -> None:
        self._check_init("steps_per_epoch")
        self._set(steps_per_epoch=_checks.normal("steps_per_epoch", self.steps_per_epoch))

    def _epoch(self, step: chex.Numeric) -> jax.Array:
        return epoch_of(step, self.steps_per_epoch)


def number_or_schedule(
    field: str, value: FloatOrSchedule, *, zero: bool = False, open_: bool = False
) -> FloatOrSchedule:
    """Returns a number or schedule after checking it.

    A number must be finite and > 0. A plain callable is read at its first 256 steps and at powers
    of two: it must be finite there and start above 0.

    Args:
        field: what the value is called in error messages.
        value: the number, schedule or callable.
        zero: whether the number may be 0.
        open_: whether a schedule may still lack its first value.

    Raises:
        TypeError: if it is neither a number nor a schedule.
        ValueError: if a number or a value of the curve is out of range, or the schedule is open.

    Example:
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
        if is_open(value) and not open_:
            raise ValueError(f"{field} = {value!r}: expected a schedule with a number for init")
        return value
    if callable(value):
        _check_probed(field, value)
        return value
    return _checks.non_negative(field, value) if zero else _checks.positive(field, value)


def _check_probed(field: str, curve: Callable[[chex.Numeric], chex.Numeric]) -> None:
    """Refuses a callable that does not start above zero or is not finite at a probed step.

    It may reach zero at later steps, which a run may never get to. If it does get there, a
    threshold is kept above zero, and the accounting, which reads every step that ran, refuses noise
    of zero.
    """
    probed = _probed(curve)
    if probed is None:
        return
    bad = ~np.isfinite(probed)
    bad[0] |= not probed[0] > 0
    if bad.any():
        first = int(bad.argmax())
        raise ValueError(
            f"{field} = {curve!r}: expected finite values, the first > 0, got {probed[first]:g} at "
            f"step {_PROBED[first]}"
        )


def _probed(curve: Callable[[chex.Numeric], chex.Numeric]) -> np.ndarray | None:
    """Returns the curve's values at the first 256 steps and at powers of two; None if traced."""
    steps = np.asarray(_PROBED, np.int32)
    with jax.ensure_compile_time_eval():  # a schedule is public: read it even while tracing
        values = jax.vmap(lambda t: jnp.asarray(curve(t), jnp.float32))(steps)
    # A closure over a traced number (a vmapped hyper-parameter) has no values yet.
    return None if isinstance(values, jax.core.Tracer) else np.asarray(values)


def _largest_probed(curve: Callable[[chex.Numeric], chex.Numeric]) -> float:
    probed = _probed(curve)
    if probed is None:
        raise ValueError(
            f"{curve!r} depends on a traced value: expected one whose largest value can be read, "
            "as the noise of a statistic is derived from it"
        )
    return float(probed.max())


def is_open(value: FloatOrSchedule | None) -> bool:
    """Returns whether a noise multiplier is not calibrated yet: None, or a schedule without init.

    Args:
        value: the noise multiplier.

    Example:
        >>> is_open(None), is_open(geometric(steps_per_epoch=10)), is_open(1.0)
        (True, True, False)
    """
    if isinstance(value, scaled):
        return is_open(value.schedule)
    return value is None or (isinstance(value, _Decay) and value.init is None)


def with_level(value: FloatOrSchedule | None, level: float) -> FloatOrSchedule:
    """Returns a noise multiplier of the same shape at another level; what calibration varies.

    None and numbers become `level`. A schedule with an `init` starts at `level`. Any other curve is
    multiplied by it, in place of the factor of an earlier `scaled`.

    Args:
        value: the noise multiplier.
        level: the new level, > 0.

    Example:
        >>> with_level(2.0, 3.0), with_level(geometric(2.0, steps_per_epoch=10), 3.0).init
        (3.0, 3.0)
        >>> with_level(scaled(table((2.0, 1.0)), 5.0), 3.0)
        scaled(schedule=table(values=(2.0, 1.0), steps_per_epoch=1.0), factor=3.0)
    """
    if isinstance(value, _Decay):
        return value.replace(init=level)
    if isinstance(value, scaled):
        if is_open(value.schedule):
            return value.replace(schedule=with_level(value.schedule, level))
        return value.replace(factor=level)
    return scaled(value, level) if callable(value) else level


def value_at(value: FloatOrSchedule, step: chex.Numeric) -> jax.Array:
    """Returns the value of a number or schedule at a step, as float32.

    Args:
        value: the number or schedule.
        step: t, from 0; possibly traced.

    Example:
        >>> float(value_at(yu_linear(3.0, steps=10), 5)), float(value_at(2.0, 5))
        (2.0, 2.0)
    """
    return jnp.asarray(value(step) if callable(value) else value, jnp.float32)


def largest(value: FloatOrSchedule) -> float:
    """Returns the largest value of a number or schedule.

    A plain callable is read at its first 256 steps and at powers of two, which is enough for any
    smooth or monotonic curve. The accounting reads every step that ran, and refuses noise for which
    this was not enough.

    Args:
        value: the number or schedule.

    Raises:
        ValueError: if the curve depends on a traced value.

    Example:
        >>> largest(lambda t: 2.0 / (1 + t)), largest(3.0)
        (2.0, 3.0)
    """
    if isinstance(value, Schedule):
        return value.largest()
    return _largest_probed(value) if callable(value) else float(value)


@dataclass(frozen=True)
class yu_linear(_Decay):
    """Falls to one half over the run.

    ``init / min(2, 1 + t / steps)`` at step t. Lin et al., whose source this is, print 1/T for t/T.

    Args:
        init: the first value, > 0; None until it is calibrated.
        steps: T, the number of steps of the run, >= 1; the value is held from there on.

    Raises:
        ValueError: if a number is outside its range.

    Example:
        >>> curve = yu_linear(init=3.0, steps=10)
        >>> [float(curve(t)) for t in (0, 5, 10, 99)]
        [3.0, 2.0, 1.5, 1.5]

    Reference: Yu, Zhang and Chen, Improve the Gradient Perturbation Approach for Differentially
    Private Optimization, NeurIPS workshop, 2018, as given by Lin et al., Understanding Adaptive
    Gradient Clipping in DP-SGD, Empirically, 2022, https://doi.org/10.1002/int.23001
    """

    init: float | None = None
    steps: int = _REQUIRED

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_init("steps")
        self._set(steps=_checks.integer("steps", self.steps, at_least=1))

    def __call__(self, step: chex.Numeric) -> jax.Array:
        """Returns the value for this step."""
        return self._first / jnp.minimum(
            2.0, 1.0 + jnp.asarray(step, jnp.float32) / float(self.steps)
        )


@dataclass(frozen=True)
class du_decay(_Decay):
    """Falls geometrically, to `rho` times its start at the end of the run.

    ``init * rho ** (t / steps)`` at step t. Lin et al. print it with a minus sign and without init;
    the grid of DC-SGD, .1 to .9, shows that rho is the final ratio. Du's noise multiplier, whose
    inverse mu grows as ``rho_mu ** (t / steps)``, is the same curve with ``rho = 1 / rho_mu``.

    Args:
        init: the first value, > 0; None until it is calibrated.
        rho: the ratio of the last value to the first, in (0, 1].
        steps: T, the number of steps of the run, >= 1; the value is held from there on.

    Raises:
        ValueError: if a number is outside its range.

    Example:
        >>> curve = du_decay(init=4.0, rho=0.25, steps=10)
        >>> [round(float(curve(t)), 6) for t in (0, 5, 10, 99)]
        [4.0, 2.0, 1.0, 1.0]

    Reference: Du et al., Dynamic Differential-Privacy Preserving SGD, 2021,
    https://arxiv.org/abs/2111.00173
    """

    init: float | None = None
    rho: float = _REQUIRED
    steps: int = _REQUIRED

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_init("rho", "steps")
        self._set(
            rho=_checks.fraction("rho", self.rho, one=True),
            steps=_checks.integer("steps", self.steps, at_least=1),
        )

    def __call__(self, step: chex.Numeric) -> jax.Array:
        """Returns the value for this step."""
        progress = jnp.minimum(jnp.asarray(step, jnp.float32) / float(self.steps), 1.0)
        return self._first * jnp.float32(self.rho) ** progress


@dataclass(frozen=True)
class power_decay(_EpochDecay):
    """Falls as a power of the epoch's number, counted from 1.

    ``init / (epoch + 1) ** exponent`` with ``epoch = floor(t / steps_per_epoch)``.

    Args:
        init: the value of the first epoch, > 0; None until it is calibrated.
        steps_per_epoch: N / B, > 0.
        exponent: the paper's a, > 0.

    Raises:
        ValueError: if a number is outside its range.

    Example:
        >>> curve = power_decay(init=3.0, steps_per_epoch=10)
        >>> [round(float(curve(t)), 6) for t in (0, 9, 10, 89)]
        [3.0, 3.0, 2.12132, 1.0]

    Reference: Lin et al., Understanding Adaptive Gradient Clipping in DP-SGD, Empirically, 2022,
    section 4.3, https://doi.org/10.1002/int.23001
    """

    init: float | None = None
    steps_per_epoch: float = _REQUIRED
    exponent: float = 0.5

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_epochs()
        self._set(exponent=_checks.normal("exponent", self.exponent))

    def __call__(self, step: chex.Numeric) -> jax.Array:
        """Returns the value for this step."""
        return self._first / (self._epoch(step) + 1.0) ** self.exponent


@dataclass(frozen=True)
class geometric(_EpochDecay):
    """Multiplies the variance by `rate` every epoch.

    ``init * rate ** (epoch / 2)`` with ``epoch = floor(t / steps_per_epoch)``. Auto DP-SGD calls it
    "linear"; Zhang's Adaptive DP-SGD uses it with a fixed threshold.

    Args:
        init: sigma_0, the first value, > 0; None until it is calibrated.
        steps_per_epoch: N / B, > 0.
        rate: R, the factor on the variance, in (0, 1].

    Raises:
        ValueError: if a number is outside its range.

    Example:
        >>> curve = geometric(init=2.0, steps_per_epoch=10, rate=0.25)
        >>> [float(curve(t)) for t in (0, 9, 10, 20)]
        [2.0, 2.0, 1.0, 0.5]

    Reference: Zhang et al., Adaptive Privacy Preserving Deep Learning Algorithms for Medical Data,
    WACV 2021,
    https://openaccess.thecvf.com/content/WACV2021/html/Zhang_Adaptive_Privacy_Preserving_Deep_Learning_Algorithms_for_Medical_Data_WACV_2021_paper.html;
    Chilukoti et al., Auto DP-SGD: Dual Improvements of Privacy and Accuracy via Automatic
    Clipping Threshold and Noise Multiplier Estimation, 2023, table 1 (Auto DP-SGD-L),
    https://arxiv.org/abs/2312.02400
    """

    init: float | None = None
    steps_per_epoch: float = _REQUIRED
    rate: float = 0.99

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_epochs()
        self._set(rate=_checks.fraction("rate", self.rate, one=True))

    def __call__(self, step: chex.Numeric) -> jax.Array:
        """Returns the value for this step."""
        return self._first * jnp.float32(self.rate) ** (self._epoch(step) / 2)


@dataclass(frozen=True)
class time_decay(_EpochDecay):
    """Divides the variance by a linear function of the epoch.

    ``init / sqrt(1 + rate * epoch)`` with ``epoch = floor(t / steps_per_epoch)``.

    Args:
        init: sigma_0, the first value, > 0; None until it is calibrated.
        steps_per_epoch: N / B, > 0.
        rate: R, >= 0; None if `epochs` sets it.
        epochs: E, the number of epochs of the run. R is then sigma_0 / E, the paper's choice, and
            follows sigma_0 when that is calibrated.

    Raises:
        ValueError: if a number is outside its range, or not exactly one of `rate` and `epochs` is
            given.

    Example:
        >>> curve = time_decay(init=2.0, steps_per_epoch=10, rate=3.0)
        >>> [float(curve(t)) for t in (0, 9, 10, 50)]
        [2.0, 2.0, 1.0, 0.5]
        >>> time_decay(6.0, steps_per_epoch=10, epochs=2)(10).item()
        3.0

    Reference: Chilukoti et al., Auto DP-SGD: Dual Improvements of Privacy and Accuracy via
    Automatic Clipping Threshold and Noise Multiplier Estimation, 2023, table 1 (Auto DP-SGD-T),
    https://arxiv.org/abs/2312.02400
    """

    init: float | None = None
    steps_per_epoch: float = _REQUIRED
    rate: float | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_epochs()
        if (self.rate is None) == (self.epochs is None):
            raise ValueError(
                f"rate = {self.rate!r} with epochs = {self.epochs!r}: expected one of them"
            )
        if self.rate is not None:
            self._set(rate=_checks.normal("rate", self.rate, zero=True))
        if self.epochs is not None:
            self._set(epochs=_checks.integer("epochs", self.epochs, at_least=1))

    def __call__(self, step: chex.Numeric) -> jax.Array:
        """Returns the value for this step."""
        rate = self.rate if self.epochs is None else self._first / self.epochs
        return self._first / jnp.sqrt(1.0 + (rate or 0.0) * self._epoch(step))


@dataclass(frozen=True)
class step_decay(_EpochDecay):
    """Multiplies the variance by `rate` every few epochs.

    ``init * rate ** (floor(epoch / every) / 2)`` with ``epoch = floor(t / steps_per_epoch)``.

    Args:
        init: sigma_0, the first value, > 0; None until it is calibrated.
        steps_per_epoch: N / B, > 0.
        rate: R, the factor on the variance, in (0, 1].
        every: the paper's D, the number of epochs between two drops, >= 1.

    Raises:
        ValueError: if a number is outside its range.

    Example:
        >>> curve = step_decay(init=2.0, steps_per_epoch=10, rate=0.25, every=3)
        >>> [float(curve(t)) for t in (0, 29, 30, 60)]
        [2.0, 2.0, 1.0, 0.5]

    Reference: Chilukoti et al., Auto DP-SGD: Dual Improvements of Privacy and Accuracy via
    Automatic Clipping Threshold and Noise Multiplier Estimation, 2023, table 1 (Auto DP-SGD-S),
    https://arxiv.org/abs/2312.02400
    """

    init: float | None = None
    steps_per_epoch: float = _REQUIRED
    rate: float = 0.5
    every: int = 10

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_epochs()
        self._set(
            rate=_checks.fraction("rate", self.rate, one=True),
            every=_checks.integer("every", self.every, at_least=1),
        )

    def __call__(self, step: chex.Numeric) -> jax.Array:
        """Returns the value for this step."""
        # Half an epoch keeps the quotient off the whole numbers, where float32 may round it down.
        drops = jnp.floor((self._epoch(step) + 0.5) / float(self.every))
        return self._first * jnp.float32(self.rate) ** (drops / 2)


@dataclass(frozen=True)
class exponential_decay(_EpochDecay):
    """Lets the variance fall exponentially in the epoch.

    ``init * exp(-rate * epoch / 2)`` with ``epoch = floor(t / steps_per_epoch)``.

    Args:
        init: sigma_0, the first value, > 0; None until it is calibrated.
        steps_per_epoch: N / B, > 0.
        rate: R, >= 0.

    Raises:
        ValueError: if a number is outside its range.

    Example:
        >>> curve = exponential_decay(init=2.0, steps_per_epoch=10, rate=0.1)
        >>> [round(float(curve(t)), 6) for t in (0, 9, 10, 20)]
        [2.0, 2.0, 1.902459, 1.809675]

    Reference: Chilukoti et al., Auto DP-SGD: Dual Improvements of Privacy and Accuracy via
    Automatic Clipping Threshold and Noise Multiplier Estimation, 2023, table 1 (Auto DP-SGD-E),
    https://arxiv.org/abs/2312.02400
    """

    init: float | None = None
    steps_per_epoch: float = _REQUIRED
    rate: float = 0.1

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_epochs()
        self._set(rate=_checks.normal("rate", self.rate, zero=True))

    def __call__(self, step: chex.Numeric) -> jax.Array:
        """Returns the value for this step."""
        return self._first * jnp.exp(-self.rate * self._epoch(step) / 2)


@dataclass(frozen=True)
class table(Schedule):
    """Reads values from a list, one per epoch (or per step), and holds the last one.

    ``values[min(floor(t / steps_per_epoch), len(values) - 1)]`` at step t. Lin's Transfer is a
    table of thresholds found on a public data set.

    Args:
        values: the values, each > 0; at least one.
        steps_per_epoch: how many steps each value lasts, > 0; 1 for a value per step.

    Raises:
        ValueError: if a number is outside its range, or there are no values.

    Example:
        >>> curve = table(values=(3.0, 2.0), steps_per_epoch=10)
        >>> [float(curve(t)) for t in (0, 9, 10, 99)]
        [3.0, 3.0, 2.0, 2.0]
    """

    values: tuple[float, ...]
    steps_per_epoch: float = 1.0

    def __post_init__(self) -> None:
        """Checks the fields."""
        if not isinstance(self.values, list | tuple) or not self.values:
            raise ValueError(f"values = {self.values!r}: expected at least one number")
        self._set(
            values=tuple(_checks.normal(f"values[{i}]", v) for i, v in enumerate(self.values)),
            steps_per_epoch=_checks.normal("steps_per_epoch", self.steps_per_epoch),
        )

    @classmethod
    def from_callable(cls, curve: Callable[[chex.Numeric], chex.Numeric], steps: int) -> Self:
        """Returns a table of any callable, such as an optax schedule; it can be written to a file.

        Args:
            curve: the callable, from the step to a number > 0.
            steps: how many steps to tabulate, >= 1; the last value is held.

        Example:
            >>> table.from_callable(lambda t: 1.0 / (1 + t), steps=2)
            table(values=(1.0, 0.5), steps_per_epoch=1.0)
        """
        steps = _checks.integer("steps", steps, at_least=1)
        return cls(values=tuple(float(curve(step)) for step in range(steps)))

    def __call__(self, step: chex.Numeric) -> jax.Array:
        """Returns the value for this step."""
        last = len(self.values) - 1
        row = jnp.minimum(epoch_of(step, self.steps_per_epoch), last).astype(jnp.int32)
        return jnp.asarray(self.values, jnp.float32)[row]

    def largest(self) -> float:
        """Returns the largest value of the table."""
        return max(self.values)


@dataclass(frozen=True)
class scaled(Schedule):
    """Multiplies a curve by a factor; what calibration returns for a curve without an `init`.

    ``factor * schedule(t)`` at step t.

    Args:
        schedule: the curve, a schedule or a callable.
        factor: the factor, > 0.

    Raises:
        TypeError: if `schedule` is not a schedule.
        ValueError: if `factor`, or its product with the largest value, is out of range.

    Example:
        >>> curve = scaled(table(values=(3.0, 2.0)), factor=2.0)
        >>> float(curve(1)), curve.largest()
        (4.0, 6.0)
    """

    schedule: FloatOrSchedule
    factor: float

    def __post_init__(self) -> None:
        """Checks the fields."""
        if not callable(self.schedule):
            raise TypeError(f"schedule = {self.schedule!r}: expected a schedule")
        number_or_schedule("schedule", self.schedule, open_=True)
        self._set(factor=_checks.normal("factor", self.factor))
        if isinstance(self.schedule, Schedule) and not is_open(self.schedule):
            _checks.normal("factor times the schedule's largest value", self.largest())

    def __call__(self, step: chex.Numeric) -> jax.Array:
        """Returns the value for this step."""
        return self.factor * value_at(self.schedule, step)

    def largest(self) -> float:
        """Returns the factor times the curve's largest value."""
        return self.factor * largest(self.schedule)
