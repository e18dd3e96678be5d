"""The mechanism: rule, threshold, noise and groups. One object runs and is accounted."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dpjax import _checks, _contract, noise, schedules
from dpjax._record import Record
from dpjax.gradients import combined_norm
from dpjax.gradients.groups import labels, normalised_groups
from dpjax.rules import Rule
from dpjax.thresholds import Threshold
from dpjax.thresholds.base import CEILING

__all__ = ["Guarantee", "Mechanism"]


@dataclass(frozen=True)
class Guarantee:
    """What a mechanism protects, or why it protects nothing.

    Attributes:
        private: whether an accountant may be asked for epsilon at all.
        relation: the neighbouring relation the bounds are stated for.
        statement: one sentence for people.
    """

    private: bool
    relation: str
    statement: str


# Thresholds at which bounds, weights and noise are normal float32 numbers with room to spare.
_SMALLEST, _LARGEST = _checks.SMALLEST, _checks.LARGEST

# The noise's standard deviation, sigma times the bound, as float32 holds it and its grid.
_LEAST_NOISE, _MOST_NOISE = 1e-36, 1e37


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
        rule: how much of each gradient enters the sum; see `dpjax.rules`.
        threshold: a number, a schedule, an adaptive `dpjax.thresholds`, or with groups a tuple of
            numbers and schedules, one per group in the order in which the groups appear in the
            parameters.
        noise_multiplier: the total, accounted sigma: a number or a schedule. 0 runs without noise
            and without a guarantee.
        groups: None (one norm per example), "per_leaf", or a params-prefix pytree of labels. A
            scalar threshold C over G groups means C / sqrt(G) each; the bound is always the root
            of the summed squares of the groups' bounds: C for clipping, sqrt(G) times the scale
            for `global_adapt`, whose bound does not follow its threshold.
        full_batch: True if every example takes part in every step, as momentum that is stored per
            example makes it: then no sampling is accepted. A `Method` with such momentum sets it.

    Privacy:
        Bound: `bound` per example, proven by the rule. Relation: add or remove one example; under
        replace-one the accounting halves sigma. Event: one (sub-sampled) Gaussian of
        `noise_multiplier` per step, also with a statistic. Not protected: the configuration
        itself, and anything computed from the data outside the mechanism.

    Raises:
        ContractViolation: a rule or a threshold from outside the package is seen to exceed its
            bound; `dpjax.testing` looks harder.

    Example:
        >>> import dpjax
        >>> mechanism = Mechanism(dpjax.rules.abadi(), dpjax.thresholds.dc_sgd_e(), 3.0)
        >>> mechanism.sigma_statistic(), round(float(mechanism.sigma_gradient(0)), 3)
        (8.0, 3.236)
        >>> mechanism == Mechanism.from_plain(mechanism.to_plain())
        True
    """

    rule: Rule
    threshold: Any
    noise_multiplier: Any
    groups: Any = None
    full_batch: bool | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Checks the fields against each other."""
        if not isinstance(self.rule, Rule):
            raise TypeError(f"rule = {self.rule!r}: expected a rule of dpjax.rules")
        if self.full_batch is not None and self.full_batch is not True:
            raise TypeError(f"full_batch = {self.full_batch!r}: expected True or None")
        self._set(
            groups=normalised_groups(self.groups),
            noise_multiplier=schedules.number_or_schedule(
                "noise_multiplier", self.noise_multiplier, zero=True
            ),
        )
        self._set(threshold=self._checked_threshold())
        self._check_split(expected_batch_size=None)
        self._check_noise()
        self._check_contract()

    @property
    def adaptive(self) -> bool:
        """Whether the threshold adapts through a private statistic."""
        return isinstance(self.threshold, Threshold)

    @property
    def guarantee(self) -> Guarantee:
        """What the mechanism protects, or why nothing."""
        relation = "add or remove one example"
        if self.rule.no_bound is not None:
            why = f"No guarantee: {self.rule.no_bound}."
            return Guarantee(False, relation, why)
        if not callable(self.noise_multiplier) and self.noise_multiplier == 0:
            return Guarantee(False, relation, "No guarantee: noise_multiplier is 0, no noise.")
        what = "the gradient and the statistic jointly" if self.adaptive else "the gradient"
        return Guarantee(
            True,
            relation,
            f"Each step releases {what} as one Gaussian of noise multiplier sigma; one example "
            f"changes it by at most one bound, under '{relation}'.",
        )

    def sigma(self, step: Any) -> jax.Array:
        """Returns the total, accounted noise multiplier of this step."""
        return schedules.value_at(self.noise_multiplier, step)

    def sigma_statistic(self, expected_batch_size: float | None = None) -> float | None:
        """Returns sigma_S, resolved once from the largest sigma; None without a statistic.

        Args:
            expected_batch_size: B, for thresholds whose default noise follows it.
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

    def sigma_gradient(self, step: Any, expected_batch_size: float | None = None) -> jax.Array:
        """Returns sigma_T, the gradient's own noise multiplier at this step."""
        return noise.sigma_gradient(self.sigma(step), self.sigma_statistic(expected_batch_size))

    def thresholds_at(self, step: Any, state: Any, groups: int) -> jax.Array:
        """Returns the threshold of each of the groups, (G,).

        Args:
            step: t.
            state: the adaptive threshold's state; ignored otherwise.
            groups: G, the number of groups the parameters fall into.
        """
        if isinstance(self.threshold, tuple):
            if len(self.threshold) != groups:
                raise ValueError(
                    f"threshold has {len(self.threshold)} values: expected one for each of the "
                    f"{groups} groups"
                )
            return _within_float32(jnp.stack([schedules.value_at(c, step) for c in self.threshold]))
        c = state.threshold if self.adaptive else schedules.value_at(self.threshold, step)
        return jnp.full(groups, _within_float32(c) / math.sqrt(groups), jnp.float32)

    def bound(self, thresholds: jax.Array) -> jax.Array:
        """Returns the L2 bound of one example's contribution over all groups."""
        return combined_norm(self.rule.bound(thresholds))

    def _checked_threshold(self) -> Any:
        threshold = self.threshold
        if isinstance(threshold, list | tuple):
            return self._checked_tuple(tuple(threshold))
        if isinstance(threshold, Threshold):
            if self.rule.no_bound is not None:
                raise ValueError(f"threshold = {threshold!r}: {self.rule!r} takes a number only")
            return threshold
        return _checked_number("threshold", threshold)

    def _checked_tuple(self, thresholds: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.groups is None:
            raise ValueError(f"threshold = {thresholds!r}: expected one number without groups")
        if isinstance(self.groups, labels) and self.groups.count != len(thresholds):
            raise ValueError(
                f"threshold = {thresholds!r}: expected {self.groups.count} values, one per group"
            )
        return tuple(_checked_number(f"threshold[{i}]", c) for i, c in enumerate(thresholds))

    def _check_noise(self) -> None:
        """Refuses noise that float32 does not hold: it would be zero, or infinite."""
        if _is_bare(self.noise_multiplier):
            return
        sigma = _checks.normal(
            "noise_multiplier", schedules.largest(self.noise_multiplier), zero=True
        )
        bounds = [1.0]
        if self.rule.no_bound is None:
            known = [c for c in self._thresholds() if not _is_bare(c)]
            bounds = [float(self.rule.bound(schedules.largest(c))) for c in known]
        for bound in bounds:
            if sigma != 0 and not _LEAST_NOISE <= sigma * bound <= _MOST_NOISE:
                raise ValueError(
                    f"noise_multiplier = {sigma!r} with a bound of {bound:g}: expected a product "
                    f"in [{_LEAST_NOISE:g}, {_MOST_NOISE:g}], where float32 holds the noise"
                )

    def _check_contract(self) -> None:
        """Refuses a rule or a threshold from outside that breaks what the bound rests on."""
        if self.rule.no_bound is None and _contract.is_foreign(self.rule):
            numbers = (c for c in self._thresholds() if not callable(c))
            _contract.check_rule_lightly(self.rule, tuple(numbers))
        if isinstance(self.threshold, Threshold) and _contract.is_foreign(self.threshold):
            _contract.check_threshold_lightly(self.threshold)

    def _thresholds(self) -> tuple[Any, ...]:
        """Returns the thresholds, or the largest that an adaptive one can come to."""
        if isinstance(self.threshold, Threshold):
            return (getattr(self.threshold, "ceiling", CEILING),)
        return self.threshold if isinstance(self.threshold, tuple) else (self.threshold,)

    def _resolved_statistic(self, expected_batch_size: float | None) -> float | None:
        sigma = schedules.largest(self.noise_multiplier)
        return self.threshold.sigma_statistic(sigma, expected_batch_size)

    def _check_split(self, expected_batch_size: float | None) -> None:
        """Refuses a statistic whose noise leaves the gradient too little of the budget."""
        if not self.adaptive:
            return
        sigma_s = self._resolved_statistic(expected_batch_size)
        sigma = schedules.largest(self.noise_multiplier)
        # sigma_T <= 2 sigma, that is sigma^2 <= 3/4 sigma_S^2.
        if sigma_s is not None and not sigma <= math.sqrt(0.75) * sigma_s:
            raise ValueError(
                f"noise_multiplier = {sigma:g} against sigma_S = {sigma_s:g} of "
                f"{type(self.threshold).__name__}: expected at most {math.sqrt(0.75) * sigma_s:g}, "
                "or the gradient's own noise would more than double; raise the statistic's noise "
                "(sigma_h, sigma_b or sigma_s; its default may follow the batch size) or lower "
                "noise_multiplier"
            )


def _checked_number(field: str, value: Any) -> Any:
    value = schedules.number_or_schedule(field, value)
    if not callable(value) and not _SMALLEST <= value <= _LARGEST:
        raise ValueError(
            f"{field} = {value!r}: expected a number in [{_SMALLEST:g}, {_LARGEST:g}], where "
            "float32 holds the noise"
        )
    return value


def _is_bare(value: Any) -> bool:
    """Says whether it is a callable of one's own: these are probed, and may be traced."""
    return callable(value) and not isinstance(value, schedules.Schedule)


def _within_float32(thresholds: jax.Array) -> jax.Array:
    """Keeps a schedule from ending in a bound of 0, and so in a release without noise."""
    return jnp.clip(thresholds, _SMALLEST, _LARGEST)
