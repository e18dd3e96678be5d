"""Decays made for noise multipliers: Auto DP-SGD's four (Zhang's among them), all per epoch.

The paper decays the *variance*; each curve here is the noise multiplier, its square root.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.schedules.base import EpochSchedule

__all__ = ["exponential_decay", "geometric", "step_decay", "time_decay"]


@dataclass(frozen=True)
class geometric(EpochSchedule):
    """Multiplies the variance by `rate` every epoch.

    ``init * rate ** (epoch / 2)``. The paper calls it "linear"; Zhang's Adaptive DP-SGD uses it
    with a fixed threshold.

    Args:
        init: sigma_0, > 0.
        steps_per_epoch: N / B, > 0.
        rate: the paper's R, in (0, 1].

    Example:
        >>> curve = geometric(init=2.0, steps_per_epoch=10, rate=0.25)
        >>> [float(curve(t)) for t in (0, 9, 10, 20)]
        [2.0, 2.0, 1.0, 0.5]

    Reference: Auto DP-SGD, table 1, Auto DP-SGD-L; Zhang et al., Adaptive DP-SGD, 2021.
    """

    init: float
    steps_per_epoch: float
    rate: float = 0.99

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_epochs()
        self._set(rate=_checks.fraction("rate", self.rate, one=True))

    def __call__(self, step: Any) -> jax.Array:
        """Returns the value for this step."""
        return self.init * jnp.float32(self.rate) ** (self._epoch(step) / 2)


@dataclass(frozen=True)
class time_decay(EpochSchedule):
    """Divides the variance by a line in the epoch.

    ``init / sqrt(1 + rate * epoch)``.

    Args:
        init: sigma_0, > 0.
        steps_per_epoch: N / B, > 0.
        rate: R, >= 0; the paper takes sigma_0 / E for a run of E epochs.

    Example:
        >>> curve = time_decay(init=2.0, steps_per_epoch=10, rate=3.0)
        >>> [float(curve(t)) for t in (0, 9, 10, 50)]
        [2.0, 2.0, 1.0, 0.5]

    Reference: Auto DP-SGD, table 1, Auto DP-SGD-T.
    """

    init: float
    steps_per_epoch: float
    rate: float

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_epochs()
        self._set(rate=_checks.normal("rate", self.rate, zero=True))

    def __call__(self, step: Any) -> jax.Array:
        """Returns the value for this step."""
        return self.init / jnp.sqrt(1.0 + self.rate * self._epoch(step))


@dataclass(frozen=True)
class step_decay(EpochSchedule):
    """Multiplies the variance by `rate` every few epochs.

    ``init * rate ** (floor(epoch / every) / 2)``.

    Args:
        init: sigma_0, > 0.
        steps_per_epoch: N / B, > 0.
        rate: R, in (0, 1].
        every: the epoch drop D, >= 1.

    Example:
        >>> curve = step_decay(init=2.0, steps_per_epoch=10, rate=0.25, every=3)
        >>> [float(curve(t)) for t in (0, 29, 30, 60)]
        [2.0, 2.0, 1.0, 0.5]

    Reference: Auto DP-SGD, table 1, Auto DP-SGD-S.
    """

    init: float
    steps_per_epoch: float
    rate: float = 0.5
    every: int = 10

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_epochs()
        self._set(
            rate=_checks.fraction("rate", self.rate, one=True),
            every=_checks.integer("every", self.every, at_least=1),
        )

    def __call__(self, step: Any) -> jax.Array:
        """Returns the value for this step."""
        # Half an epoch keeps the quotient off the whole numbers, where float32 may round it down.
        drops = jnp.floor((self._epoch(step) + 0.5) / float(self.every))
        return self.init * jnp.float32(self.rate) ** (drops / 2)


@dataclass(frozen=True)
class exponential_decay(EpochSchedule):
    """Lets the variance fall exponentially in the epoch.

    ``init * exp(-rate * epoch / 2)``.

    Args:
        init: sigma_0, > 0.
        steps_per_epoch: N / B, > 0.
        rate: R, >= 0.

    Example:
        >>> curve = exponential_decay(init=2.0, steps_per_epoch=10, rate=0.1)
        >>> [round(float(curve(t)), 6) for t in (0, 9, 10, 20)]
        [2.0, 2.0, 1.902459, 1.809675]

    Reference: Auto DP-SGD, table 1, Auto DP-SGD-E.
    """

    init: float
    steps_per_epoch: float
    rate: float = 0.1

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_epochs()
        self._set(rate=_checks.normal("rate", self.rate, zero=True))

    def __call__(self, step: Any) -> jax.Array:
        """Returns the value for this step."""
        return self.init * jnp.exp(-self.rate * self._epoch(step) / 2)
