"""Audits: empirical lower bounds on epsilon, compared with the claimed epsilon."""

from dpjax.audit.bounds import claimed_tradeoff, measured_tradeoff
from dpjax.audit.claims import Claim, Finding, PrintedEpsilon, claim_of, with_noise_times
from dpjax.audit.named import ATTACKS, HALVED, AuditPlan, Row, audit_named
from dpjax.audit.pairs import PAIRS, ROWS, TURNING, Pair
from dpjax.audit.step import StepAudit, audit_release, audit_step
from dpjax.audit.subjects import Auditable, Subject, subjects, watched
from dpjax.audit.training import Planted, TrainingAudit, audit_training, plant

__all__ = [
    "ATTACKS",
    "HALVED",
    "PAIRS",
    "ROWS",
    "TURNING",
    "AuditPlan",
    "Auditable",
    "Claim",
    "Finding",
    "Pair",
    "Planted",
    "PrintedEpsilon",
    "Row",
    "StepAudit",
    "Subject",
    "TrainingAudit",
    "audit_named",
    "audit_release",
    "audit_step",
    "audit_training",
    "claim_of",
    "claimed_tradeoff",
    "measured_tradeoff",
    "plant",
    "subjects",
    "watched",
    "with_noise_times",
]
