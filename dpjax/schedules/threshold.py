"""Decays made for thresholds: Yu, Du and Lin."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.schedules.base import EpochSchedule, Schedule

__all__ = ["du_decay", "power_decay", "yu_linear"]


@dataclass(frozen=True)
class yu_linear(Schedule):
    """Falls to one half over the run.

    ``init / min(2, 1 + t / steps)``. Lin et al. print 1/T for t/T.

    Args:
        init: the first value, > 0.
        steps: the number of steps T.

    Example:
        >>> curve = yu_linear(init=3.0, steps=10)
        >>> [float(curve(t)) for t in (0, 5, 10, 99)]
        [3.0, 2.0, 1.5, 1.5]

    Reference: Yu et al., Differentially Private Model Publishing for Deep Learning, 2019.
    """

    init: float
    steps: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            init=_checks.normal("init", self.init),
            steps=_checks.integer("steps", self.steps, at_least=1),
        )

    def __call__(self, step: Any) -> jax.Array:
        """Returns the value for this step."""
        return self.init / jnp.minimum(
            2.0, 1.0 + jnp.asarray(step, jnp.float32) / float(self.steps)
        )


@dataclass(frozen=True)
class du_decay(Schedule):
    """Falls geometrically, to `rho` times its start at the end of the run.

    ``init * rho ** (t / steps)``. Printed by Lin et al. with a minus sign and without init; the
    grid of DC-SGD, .1 to .9, shows that rho is the final ratio. Du's noise multiplier, whose
    inverse mu grows as ``rho_mu ** (t / steps)``, is the same curve with ``rho = 1 / rho_mu``.

    Args:
        init: the first value, > 0.
        rho: the ratio of the last value to the first, in (0, 1].
        steps: the number of steps T; the value is held from there on.

    Example:
        >>> curve = du_decay(init=4.0, rho=0.25, steps=10)
        >>> [round(float(curve(t)), 6) for t in (0, 5, 10, 99)]
        [4.0, 2.0, 1.0, 1.0]

    Reference: Du et al., Dynamic Differential-Privacy Preserving SGD, 2021.
    """

    init: float
    rho: float
    steps: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            init=_checks.normal("init", self.init),
            rho=_checks.fraction("rho", self.rho, one=True),
            steps=_checks.integer("steps", self.steps, at_least=1),
        )

    def __call__(self, step: Any) -> jax.Array:
        """Returns the value for this step."""
        progress = jnp.minimum(jnp.asarray(step, jnp.float32) / float(self.steps), 1.0)
        return self.init * jnp.float32(self.rho) ** progress


@dataclass(frozen=True)
class power_decay(EpochSchedule):
    """Falls as a power of the epoch's number, counted from 1.

    ``init / (epoch + 1) ** exponent`` with ``epoch = floor(t / steps_per_epoch)``.

    Args:
        init: the value of the first epoch, > 0.
        steps_per_epoch: N / B, > 0.
        exponent: the paper's a, > 0.

    Example:
        >>> curve = power_decay(init=3.0, steps_per_epoch=10)
        >>> [round(float(curve(t)), 6) for t in (0, 9, 10, 89)]
        [3.0, 3.0, 2.12132, 1.0]

    Reference: Lin et al., Understanding adaptive gradient clipping in DP-SGD, empirically, 2022.
    """

    init: float
    steps_per_epoch: float
    exponent: float = 0.5

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_epochs()
        self._set(exponent=_checks.normal("exponent", self.exponent))

    def __call__(self, step: Any) -> jax.Array:
        """Returns the value for this step."""
        return self.init / (self._epoch(step) + 1.0) ** self.exponent
