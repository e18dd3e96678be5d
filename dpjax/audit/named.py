"""Audits of a method by name: all attacks, each also made on a twin with weaker noise."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import jax

from dpjax import _checks
from dpjax.audit.claims import Finding, PrintedEpsilon
from dpjax.audit.step import StepAudit, audit_step
from dpjax.audit.subjects import Subject
from dpjax.audit.training import TrainingAudit, audit_training
from dpjax.data import Dataset

__all__ = ["ATTACKS", "HALVED", "AuditPlan", "Row", "audit_named"]

ATTACKS = ("step", "training")
HALVED = 0.5
"""The factor on the noise of a twin."""


@dataclass(frozen=True)
class AuditPlan:
    """The attacks made on each method.

    Args:
        attacks: names in `ATTACKS`.
        step: how many releases the audit of a step draws.
        training: how large the trainings are.
        noise: a factor on the noise that the claim does not know about.
        noise_multiplier: sigma, or sigma_0, that the claim for a step assumes.
        twins: the attacks that are also made on a twin with half the noise, which they must refute.

    Example:
        >>> AuditPlan(attacks=("step",)).bounds_of(methods=20)
        20
    """

    attacks: tuple[str, ...] = ATTACKS
    step: StepAudit = field(default_factory=StepAudit)
    training: TrainingAudit = field(default_factory=TrainingAudit)
    noise: float = 1.0
    noise_multiplier: float = 1.0
    twins: tuple[str, ...] = ("step",)

    def __post_init__(self) -> None:
        """Checks the fields."""
        for place in ("attacks", "twins"):
            for name in getattr(self, place):
                if name not in ATTACKS:
                    raise ValueError(f"{place} = {name!r}: {_checks.nearest(str(name), ATTACKS)}")
        for place in ("noise", "noise_multiplier"):
            object.__setattr__(self, place, _checks.positive(place, getattr(self, place)))

    def bounds_of(self, methods: int) -> int:
        """Returns how many lower bounds an audit of so many methods computes.

        Args:
            methods: how many methods are audited.
        """
        return methods * (("step" in self.attacks) + 2 * ("training" in self.attacks))


@dataclass(frozen=True)
class Row:
    """A finding, and that of the same attack on the twin with half the noise.

    Attributes:
        finding: the finding on the method.
        twin: the finding on the twin; None if there was no twin.
    """

    finding: Finding
    twin: Finding | None = None

    @property
    def verdict(self) -> str:
        """ "holds", "REFUTED", or "no teeth" if the attack did not even refute half the noise."""
        if self.finding.refuted:
            return "REFUTED"
        toothless = self.twin is not None and not self.twin.refuted
        return "no teeth" if toothless and self.finding.attack == "step" else "holds"

    @property
    def alarming(self) -> bool:
        """Whether an accounted claim is refuted, or the audit was too weak to tell."""
        return self.finding.source == "accounted" and self.verdict != "holds"


def audit_named(
    name: str,
    subject: Subject,
    seed: int,
    plan: AuditPlan = AuditPlan(),
    dataset: Callable[[], Dataset] | None = None,
    printed: PrintedEpsilon | None = None,
) -> list[Row]:
    """Returns a row for each attack: "step", "one run" and "final model".

    Args:
        name: a name in `dpjax.methods`.
        subject: its arguments, as in `subjects`.
        seed: the seed of every draw.
        plan: the attacks to make.
        dataset: loads the data set among whose examples the canaries of a training hide.
        printed: the claim for a method without a guarantee.

    Returns:
        The rows, with a twin's finding if `plan.twins` asks for one.

    Raises:
        ValueError: if `plan.attacks` has "training" and `dataset` is None.

    Example:
        >>> few = AuditPlan(("step",), StepAudit(draws=4_000, pilot=4_000))
        >>> [row.verdict for row in audit_named("dp_sgd", Subject(), seed=0, plan=few)]
        ['holds']
    """
    own = (seed ^ zlib.crc32(name.encode())) % 2**32  # no two methods see the same noise

    def step(factor: float) -> tuple[Finding, ...]:
        method = subject.method(name, plan.noise_multiplier)
        watched = {"rate": subject.rate, "noise": factor}
        key, steps = jax.random.key(own), subject.steps
        return (audit_step(method, key, plan.step, steps=steps, printed=printed, **watched),)

    def training(factor: float) -> tuple[Finding, ...]:
        if dataset is None:
            raise ValueError("dataset = None: expected what the canaries hide in")
        return audit_training(name, subject, dataset(), own, plan.training, factor, printed)

    rows: list[Row] = []
    for attack, found in (("step", step), ("training", training)):
        if attack in plan.attacks:
            twins = found(HALVED * plan.noise) if attack in plan.twins else (None, None)
            rows += map(Row, found(plan.noise), twins)
    return rows
