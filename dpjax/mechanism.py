"""`Mechanism`: the record that both training and accounting read."""

import dataclasses
import math
import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import chex
import jax
import jax.numpy as jnp
import optax

from dpjax import _checks, _contract, schedules
from dpjax._record import Record
from dpjax.batch_sums import ClippedSum
from dpjax.gradients import PerExampleGrads, combined_norm
from dpjax.gradients.groups import Groups, labels, normalised_groups
from dpjax.hooks import Hook, Momentum, Preconditioner
from dpjax.noise import sigma_gradient, white
from dpjax.rules import Rule
from dpjax.sampling import FullBatch, Sampling
from dpjax.schedules import FloatOrSchedule
from dpjax.thresholds import Threshold
from dpjax.thresholds.threshold import CEILING

__all__ = ["AnyThreshold", "Guarantee", "Mechanism", "Release"]

AnyThreshold: TypeAlias = Threshold[Any] | FloatOrSchedule | tuple[FloatOrSchedule, ...]
"""A number, a schedule, an adaptive threshold, or a number or schedule for each group."""


@dataclass(frozen=True)
class Guarantee:
    """What a mechanism protects, or why it gives no guarantee.

    Attributes:
        private: whether the mechanism has an epsilon at all.
        relation: the neighbouring relation the bounds are stated for.
        statement: one sentence that describes the guarantee.
    """

    private: bool
    relation: str
    statement: str


class Release(Protocol):
    """Anything that can be trained and audited: a `Mechanism`, or a release without a guarantee."""

    @property
    def name(self) -> str | None:
        """Its name in files and tables."""

    @property
    def noise_multiplier(self) -> FloatOrSchedule | None:
        """The noise multiplier; None until it is calibrated."""

    @property
    def guarantee(self) -> Guarantee:
        """What it protects, or why it gives no guarantee."""

    def replace(self, **changes: object) -> Self:
        """Returns a copy with some fields changed."""

    def transformation(
        self,
        sampling: Sampling | float,
        key: chex.PRNGKey,
        axis_name: str | Sequence[str] | None = None,
    ) -> optax.GradientTransformationExtraArgs:
        """Returns the optax transformation; the arguments are those of `dpjax.privatize`."""

    def clipped_sum(
        self,
        grads: PerExampleGrads | chex.ArrayTree,
        opt_state: optax.OptState,
        mask: chex.Array | None = None,
    ) -> ClippedSum:
        """Returns the clipped sum over part of a batch; takes the arguments of `clipped_sum`."""

    def diagnostics(self, opt_state: optax.OptState) -> dict[str, float]:
        """Returns numbers from its state that depend on the data without noise, for research."""

    def to_plain(self) -> dict[str, Any]:
        """Returns it as plain data."""


# Thresholds for which bounds, weights and noise are far from float32's limits.
_SMALLEST, _LARGEST = _checks.SMALLEST, _checks.LARGEST

# Limits of the noise's standard deviation, sigma times the bound, within which float32 can
# represent it and its grid.
_LEAST_NOISE, _MOST_NOISE = 1e-36, 1e37


_WHITE = white()


class _MechanismRecord(Record):
    role: ClassVar[str] = "mechanism"


@dataclass(frozen=True)
class Mechanism(_MechanismRecord):
    """One joint Gaussian release per step, fully described by public numbers.

    Per step t, with n_i the norm of example i's gradient and C the threshold in force:

        ``sum_i weight(n_i, C) g_i / bound + N(0, sigma_T^2 I)``  and, for an adaptive threshold,
        ``sum_i statistic(n_i) / sens + N(0, sigma_S^2 I)``,

    accounted as one Gaussian with ``sigma^-2 = sigma_T^-2 + sigma_S^-2`` under the sampling that
    chose the batch.

    Args:
        rule: the clipping or scaling rule, which weights each gradient; see `dpjax.rules`.
        threshold: a number, a schedule, an adaptive `dpjax.thresholds`, or with groups a tuple of
            numbers and schedules, one per group in the order in which the groups appear in the
            parameters. A number must be in [1e-25, 1e25], so that float32 can represent the noise.
            Without noise, a larger one, such as `math.inf`, is read as 1e25, which clips nothing.
        noise_multiplier: the total, accounted sigma: a number or a schedule. None, or a schedule
            with ``init=None``, until `dpjax.calibrate` finds it; an uncalibrated mechanism can be
            neither run nor accounted. 0 runs without noise and without a guarantee.
        groups: None (one norm per example), "per_leaf", or a params-prefix pytree of labels. A
            scalar threshold C over G groups means C / sqrt(G) each; the bound is always the root
            of the summed squares of the groups' bounds: C for clipping, and sqrt(G) times the scale
            for `global_adapt`, whose bound does not depend on its threshold.
        momentum: None, `dpjax.momentum.inner_outer` or `dpjax.momentum.stored`.
        preconditioner: None, or `dpjax.adaclip.adaclip`.
        noise: the kind of noise; `dpjax.noise.white` is the only one.
        name: its name in files and tables, set by the constructors of `dpjax.methods`.

    Privacy:
        Bound: `bound` per example, proven by the rule. Relation: add or remove one example; under
        replace-one the accounting halves sigma. Event: one (sub-sampled) Gaussian of
        `noise_multiplier` per step, also with a statistic. Not protected: the configuration
        itself, and anything computed from the data outside the mechanism.

    Raises:
        ContractViolation: if a quick check finds that a rule or threshold from outside the package
            exceeds its bound; `dpjax.testing` has thorough checks.

    Example:
        >>> import dpjax
        >>> mechanism = Mechanism(dpjax.rules.abadi(), dpjax.thresholds.dc_sgd_e(), 3.0)
        >>> mechanism.sigma_statistic(), round(float(mechanism.sigma_gradient(0)), 3)
        (8.0, 3.236)
        >>> mechanism == Mechanism.from_plain(mechanism.to_plain())
        True
        >>> Mechanism(dpjax.rules.abadi(), 1.0)
        Mechanism(rule=abadi(), threshold=1.0, noise_multiplier=None)
    """

    rule: Rule
    threshold: AnyThreshold
    noise_multiplier: FloatOrSchedule | None = None
    groups: Groups = None
    momentum: Momentum[Any] | None = None
    preconditioner: Preconditioner[Any] | None = None
    noise: white = _WHITE
    name: str | None = None

    def __post_init__(self) -> None:
        """Checks the fields against each other."""
        if not isinstance(self.rule, Rule):
            raise TypeError(f"rule = {self.rule!r}: expected a rule of dpjax.rules")
        if not isinstance(self.momentum, Momentum | None):
            raise TypeError(f"momentum = {self.momentum!r}: expected one of dpjax.momentum")
        if not isinstance(self.preconditioner, Preconditioner | None):
            raise TypeError(f"preconditioner = {self.preconditioner!r}: expected adaclip(...)")
        if not isinstance(self.noise, white):
            raise TypeError(f"noise = {self.noise!r}: expected dpjax.noise.white()")
        # The name becomes part of folder names, so one read from a file must not be a path.
        if self.name is not None and not re.fullmatch(r"[A-Za-z_][\w.-]*", str(self.name)):
            raise ValueError(f"name = {self.name!r}: expected a word, such as 'dp_sgd'")
        self._set(groups=normalised_groups(self.groups))
        if self.noise_multiplier is not None:
            sigma = schedules.number_or_schedule(
                "noise_multiplier", self.noise_multiplier, zero=True, open_=True
            )
            self._set(noise_multiplier=sigma)
        self._set(threshold=self._checked_threshold())
        if self.calibrated:
            self._check_split(expected_batch_size=None)
            self._check_noise()
        self._check_contract()

    def __repr__(self) -> str:
        """Shows the fields that differ from their defaults."""
        shown = []
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name == "noise_multiplier" or value != each.default:
                shown.append(f"{each.name}={value!r}")
        return f"Mechanism({', '.join(shown)})"

    def to_plain(self) -> dict[str, Any]:
        """Returns the mechanism as plain data; white noise, the only kind, is left out."""
        return {key: value for key, value in super().to_plain().items() if key != "noise"}

    @property
    def calibrated(self) -> bool:
        """Whether the noise multiplier is known."""
        return not schedules.is_open(self.noise_multiplier)

    @property
    def adaptive(self) -> bool:
        """Whether the threshold adapts through a private statistic."""
        return isinstance(self.threshold, Threshold)

    @property
    def hooks(self) -> tuple[Hook[Any], ...]:
        """The momentum and preconditioner, if any, in the order in which they are applied."""
        return tuple(hook for hook in (self.momentum, self.preconditioner) if hook is not None)

    @property
    def full_batch(self) -> bool:
        """Whether every example takes part in every step, as with stored momentum."""
        return any(hook.every_example for hook in self.hooks)

    @property
    def guarantee(self) -> Guarantee:
        """What the mechanism protects, or why it gives no guarantee."""
        relation = "add or remove one example"
        if not self.calibrated:
            return Guarantee(False, relation, f"No guarantee yet: {self._uncalibrated}.")
        if not callable(self.noise_multiplier) and self.noise_multiplier == 0:
            return Guarantee(False, relation, "No guarantee: noise_multiplier is 0, no noise.")
        what = "the gradient and the statistic jointly" if self.adaptive else "the gradient"
        statement = (
            f"Each step releases {what} as one Gaussian of noise multiplier sigma; one example "
            f"changes it by at most one bound, under '{relation}'."
        )
        if self.full_batch:
            statement += " Every example takes part in every step: no amplification by sampling."
        return Guarantee(True, relation, statement)

    def transformation(
        self,
        sampling: Sampling | float,
        key: chex.PRNGKey,
        axis_name: str | Sequence[str] | None = None,
    ) -> optax.GradientTransformationExtraArgs:
        """Returns the optax transformation, `dpjax.privatize` of this mechanism.

        Args:
            sampling: how batches are drawn, or the expected size of batches from a loader.
            key: the key of the noise.
            axis_name: inside `shard_map`, the mesh axes over which a batch is split.
        """
        from dpjax.privatize import privatize  # noqa: PLC0415 (it imports this module)

        return privatize(self, sampling, key, axis_name)

    def clipped_sum(
        self,
        grads: PerExampleGrads | chex.ArrayTree,
        opt_state: optax.OptState,
        mask: chex.Array | None = None,
    ) -> ClippedSum:
        """Returns the clipped sum over part of a batch, `dpjax.clipped_sum` of this mechanism.

        Args:
            grads: the gradients of part of a batch.
            opt_state: the state of the chain that holds the transformation.
            mask: (B,) bool, False for padding; None if every row is real.
        """
        from dpjax.privatize import clipped_sum  # noqa: PLC0415 (it imports this module)

        return clipped_sum(self, grads, opt_state, mask)

    def diagnostics(self, opt_state: optax.OptState) -> dict[str, float]:
        """Returns an empty dict: everything in a mechanism's state was released.

        Args:
            opt_state: the state of the chain; not read.
        """
        del opt_state
        return {}

    def check_calibrated(self) -> None:
        """Raises unless the mechanism is calibrated.

        Raises:
            ValueError: if the noise multiplier is None, or a schedule without init.
        """
        if not self.calibrated:
            raise ValueError(self._uncalibrated)

    def check_sampling(self, sampling: Sampling) -> None:
        """Raises if the mechanism cannot run with this sampling.

        Args:
            sampling: the sampling to run with.

        Raises:
            ValueError: if momentum is stored for every example and the sampling is not `FullBatch`.
        """
        if self.full_batch and not isinstance(sampling, FullBatch):
            raise ValueError(
                f"sampling = {sampling!r} with momentum stored per example: expected FullBatch(), "
                "since every example takes part in every step"
            )

    def sigma(self, step: chex.Numeric) -> jax.Array:
        """Returns the total, accounted noise multiplier of this step.

        Args:
            step: t; may be traced.

        Raises:
            ValueError: if the mechanism is not calibrated.
        """
        return schedules.value_at(self._noise_multiplier, step)

    def sigma_statistic(self, expected_batch_size: float | None = None) -> float | None:
        """Returns sigma_S, the statistic's noise multiplier; None without a statistic.

        Args:
            expected_batch_size: B, for thresholds whose default noise depends on it.

        Raises:
            ValueError: if the threshold needs `expected_batch_size` and it is None, or the
                statistic takes so much of the budget that too little is left for the gradient.
        """
        if not isinstance(self.threshold, Threshold):
            return None
        if expected_batch_size is not None:
            _checks.batch_size("expected_batch_size", expected_batch_size)
        resolved = self._resolved_statistic(expected_batch_size)
        if resolved is None:
            raise ValueError(
                f"expected_batch_size = None: expected a number, since {self.threshold!r} sets its "
                "noise by it"
            )
        self._check_split(expected_batch_size)
        return resolved

    def sigma_gradient(
        self, step: chex.Numeric, expected_batch_size: float | None = None
    ) -> jax.Array:
        """Returns sigma_T, the gradient's own noise multiplier at this step.

        Args:
            step: t; may be traced.
            expected_batch_size: B, for thresholds whose default noise depends on it.
        """
        return sigma_gradient(self.sigma(step), self.sigma_statistic(expected_batch_size))

    def thresholds_at(self, step: chex.Numeric, state: chex.ArrayTree, groups: int) -> jax.Array:
        """Returns the threshold of each of the groups, (G,).

        Args:
            step: t.
            state: the adaptive threshold's state; ignored otherwise.
            groups: G, the number of groups the parameters fall into.

        Raises:
            ValueError: if there is not one threshold for each group.
        """
        if isinstance(self.threshold, tuple):
            if len(self.threshold) != groups:
                raise ValueError(
                    f"threshold has {len(self.threshold)} values: expected one for each of the "
                    f"{groups} groups"
                )
            return _within_float32(jnp.stack([schedules.value_at(c, step) for c in self.threshold]))
        if isinstance(self.threshold, Threshold):
            c = state.threshold
        else:
            c = schedules.value_at(self.threshold, step)
        return jnp.full(groups, _within_float32(c) / math.sqrt(groups), jnp.float32)

    def bound(self, thresholds: chex.Numeric) -> jax.Array:
        """Returns the L2 bound of one example's contribution over all groups.

        Args:
            thresholds: the threshold, or an array (G,) with one for each group.
        """
        return combined_norm(jnp.asarray(self.rule.bound(jnp.atleast_1d(thresholds))))

    @property
    def _noise_multiplier(self) -> FloatOrSchedule:
        self.check_calibrated()
        return self.noise_multiplier  # type: ignore[return-value]

    @property
    def _uncalibrated(self) -> str:
        return (
            f"noise_multiplier = {self.noise_multiplier!r}: expected a number or a schedule with a "
            "first value; dpjax.calibrate finds it for a budget"
        )

    def _checked_threshold(self) -> AnyThreshold:
        threshold = self.threshold
        if isinstance(threshold, list | tuple):
            return self._checked_tuple(tuple(threshold))
        if isinstance(threshold, Threshold):
            return threshold
        return self._checked_number("threshold", threshold)

    def _checked_tuple(
        self, thresholds: tuple[FloatOrSchedule, ...]
    ) -> tuple[FloatOrSchedule, ...]:
        if self.groups is None:
            raise ValueError(f"threshold = {thresholds!r}: expected one number without groups")
        if isinstance(self.groups, labels) and self.groups.count != len(thresholds):
            raise ValueError(
                f"threshold = {thresholds!r}: expected {self.groups.count} values, one per group"
            )
        return tuple(self._checked_number(f"threshold[{i}]", c) for i, c in enumerate(thresholds))

    def _checked_number(self, field: str, value: FloatOrSchedule) -> FloatOrSchedule:
        noiseless = self.noise_multiplier == 0
        if noiseless and isinstance(value, float | numbers.Real) and value > _LARGEST:
            return float(value)  # no noise that float32 must hold; `thresholds_at` reads 1e25
        value = schedules.number_or_schedule(field, value)
        if not callable(value) and not _SMALLEST <= value <= _LARGEST:
            raise ValueError(
                f"{field} = {value!r}: expected a number in [{_SMALLEST:g}, {_LARGEST:g}], where "
                "float32 holds the noise"
            )
        return value

    def _check_noise(self) -> None:
        """Raises if the noise would be zero or infinite in float32."""
        if _is_bare(self.noise_multiplier):
            return
        sigma = _checks.normal(
            "noise_multiplier", schedules.largest(self._noise_multiplier), zero=True
        )
        known = [c for c in self._thresholds() if not _is_bare(c)]
        for bound in (float(self.rule.bound(schedules.largest(c))) for c in known):
            if sigma != 0 and not _LEAST_NOISE <= sigma * bound <= _MOST_NOISE:
                raise ValueError(
                    f"noise_multiplier = {sigma!r} with a bound of {bound:g}: expected a product "
                    f"in [{_LEAST_NOISE:g}, {_MOST_NOISE:g}], where float32 holds the noise"
                )

    def _check_contract(self) -> None:
        """Raises if a rule or threshold from outside the package breaks its contract."""
        if _contract.is_foreign(self.rule):
            known = (min(c, _LARGEST) for c in self._thresholds() if not callable(c))
            _contract.check_rule_lightly(self.rule, tuple(known))
        if isinstance(self.threshold, Threshold) and _contract.is_foreign(self.threshold):
            _contract.check_threshold_lightly(self.threshold)

    def _thresholds(self) -> tuple[FloatOrSchedule, ...]:
        """Returns the thresholds, or the largest value that an adaptive one can reach."""
        if isinstance(self.threshold, Threshold):
            return (getattr(self.threshold, "ceiling", CEILING),)
        return self.threshold if isinstance(self.threshold, tuple) else (self.threshold,)

    def _resolved_statistic(self, expected_batch_size: float | None) -> float | None:
        if not isinstance(self.threshold, Threshold):
            return None
        sigma = schedules.largest(self._noise_multiplier)
        return self.threshold.sigma_statistic(sigma, expected_batch_size)

    def _check_split(self, expected_batch_size: float | None) -> None:
        """Raises if the statistic takes so much of the budget that too little is left."""
        if not self.adaptive:
            return
        sigma_s = self._resolved_statistic(expected_batch_size)
        sigma = schedules.largest(self._noise_multiplier)
        # sigma_T <= 2 sigma, that is sigma^2 <= 3/4 sigma_S^2.
        if sigma_s is not None and not sigma <= math.sqrt(0.75) * sigma_s:
            raise ValueError(
                f"noise_multiplier = {sigma:g} against sigma_S = {sigma_s:g} of "
                f"{type(self.threshold).__name__}: expected at most {math.sqrt(0.75) * sigma_s:g}, "
                "or the gradient's own noise would more than double; raise the statistic's noise "
                "(sigma_h, sigma_b or sigma_s; its default may follow the batch size) or lower "
                "noise_multiplier"
            )


def _is_bare(value: FloatOrSchedule | None) -> bool:
    """Returns whether the value is a plain callable, which is probed and may be traced."""
    return callable(value) and not isinstance(value, schedules.Schedule)


def _within_float32(thresholds: jax.Array) -> jax.Array:
    """Keeps a schedule from ending in a bound of 0, and so in a release without noise."""
    return jnp.clip(thresholds, _SMALLEST, _LARGEST)
