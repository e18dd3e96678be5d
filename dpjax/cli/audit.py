"""``dpjax audit``: lower bounds on epsilon, compared with the claimed epsilon."""

import argparse
import secrets
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from dpjax import _checks, data
from dpjax._files import write_atomically
from dpjax.audit import (
    ATTACKS,
    AuditPlan,
    Row,
    StepAudit,
    Subject,
    TrainingAudit,
    audit_named,
    subjects,
)
from dpjax.cli import audit_report, figures, printing
from dpjax.cli.command import Command
from dpjax.cli.flags import assignment
from dpjax.data import Dataset
from dpjax.papers.auto_dp_epsilon import auto_dp_sgd_claim

__all__ = ["COMMAND"]

_DRAWS = 1_000_000
_QUICK_DRAWS = 100_000
_DEFAULTS = {
    **{"attack": None, "draws": None, "seed": None},
    **{"noise_multiplier": 1.0, "noise": 1.0, "confidence": 0.99, "delta": 1e-3},
}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is audited")
    what.add_argument("--method", metavar="NAME", help="a constructor in dpjax.methods")
    what.add_argument("--all", action="store_true", help="every method of dpjax.methods")
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an argument of the method's constructor; repeatable",
    )
    what.add_argument(
        "--noise-multiplier",
        type=float,
        metavar="X",
        help="sigma of the audited step; 1",
    )
    what.add_argument(
        "--noise",
        type=float,
        metavar="F",
        help="multiply the noise by F without changing the claim: 0.5 must be refuted",
    )
    how = parser.add_argument_group("how")
    how.add_argument("--attack", choices=ATTACKS, help="one attack only; without it, all")
    how.add_argument("--quick", action="store_true", help="fewer draws; takes minutes")
    how.add_argument("--draws", type=int, metavar="N", help="releases drawn in each world")
    how.add_argument("--confidence", type=float, metavar="P", help="of all bounds together; 0.99")
    how.add_argument("--delta", type=float, metavar="X", help="delta of the audited step; 0.001")
    how.add_argument("--seed", type=int, metavar="S", help="to reproduce an audit")
    parser.set_defaults(**_DEFAULTS)
    out = parser.add_argument_group("output")
    out.add_argument("--output", metavar="FILE", help="the picture; audit-NAME.png")
    out.add_argument("--report", metavar="FILE", help="the table as Markdown")
    out.add_argument("--json", action="store_true", help="print JSON, at full precision")


def _run(args: argparse.Namespace) -> int:
    subjects, plan = _asked(args), _plan(args)
    output = args.output or (None if args.all else f"audit-{args.method}.png")
    if output is not None:
        figures.check_output(output)
    plan = _shared_risk(plan, len(subjects))
    seed = secrets.randbits(32) if args.seed is None else args.seed
    rows: list[Row] = []
    for name, subject in subjects.items():
        if len(subjects) > 1:
            print(f"{name} ...", file=sys.stderr)
        rows += audit_named(name, subject, seed, plan, _digits, auto_dp_sgd_claim)
    text = audit_report.text(rows, args.confidence)
    if args.report is not None:
        page = audit_report.markdown(rows, args.confidence, _command(args))
        write_atomically(Path(args.report), page)
    if output is not None:
        audit_report.draw(rows, output)
        text += f"\n\npicture  {output}"
    printing.show(args.json, text, {"rows": audit_report.data(rows), "picture": output})
    return int(any(row.alarming for row in rows))


def _asked(args: argparse.Namespace) -> dict[str, Subject]:
    if args.all == (args.method is not None):
        raise ValueError("--method: expected one of --method NAME and --all")
    if args.all:
        if args.set:
            raise ValueError(f"--set {args.set[0]}: expected --method NAME with it")
        return subjects()
    if args.method not in (known := subjects()):
        raise ValueError(f"--method = {args.method!r}: {_checks.nearest(args.method, known)}")
    subject = known[args.method]
    changes: dict[str, Any] = dict(map(assignment, args.set))
    return {args.method: replace(subject, arguments={**subject.arguments, **changes})}


def _plan(args: argparse.Namespace) -> AuditPlan:
    draws = (_QUICK_DRAWS if args.quick else _DRAWS) if args.draws is None else args.draws
    attacks = ATTACKS if args.attack is None else (args.attack,)
    return AuditPlan(
        attacks,
        StepAudit(draws, confidence=args.confidence, delta=args.delta),
        TrainingAudit(confidence=args.confidence),
        args.noise,
        args.noise_multiplier,
        ATTACKS if not args.quick and args.noise == 1 else ("step",) * (args.noise == 1),
    )


def _shared_risk(plan: AuditPlan, methods: int) -> AuditPlan:
    """Returns the plan with the risk split over the bounds, so that all of them hold together."""
    each = 1 - (1 - plan.step.confidence) / plan.bounds_of(methods)
    return replace(
        plan,
        step=replace(plan.step, confidence=each),
        training=replace(plan.training, confidence=each),
    )


@cache
def _digits() -> Dataset:
    return data.load("digits")


def _command(args: argparse.Namespace) -> str:
    """Returns the command that reproduces the table, given its seed."""
    parts = ["dpjax audit", "--all" if args.all else f"--method {args.method}"]
    parts += ["--quick"] * args.quick + [f"--set {change}" for change in args.set]
    for flag, default in _DEFAULTS.items():
        if (value := getattr(args, flag)) != default:
            parts.append(f"--{flag.replace('_', '-')} {value}")
    return " ".join(parts)


COMMAND = Command(
    _add_flags,
    _run,
    (
        "dpjax audit --method dp_sgd",
        "dpjax audit --method dc_sgd_e --noise 0.5     # half the noise: refuted",
        "dpjax audit --all --quick",
    ),
)
