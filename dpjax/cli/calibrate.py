"""``dpjax calibrate``: the noise that a budget allows."""

import argparse
from dataclasses import replace
from pathlib import Path

from dpjax import _toml, accounting
from dpjax.accounting.bound import rounded_up
from dpjax.cli import describe, flags, report, rows, tables
from dpjax.cli.command import Command
from dpjax.cli.request import Request
from dpjax.cli.setting import Setting, setting_of
from dpjax.cli.source import read_request

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add_request_flags(parser)
    flags.add_target_flag(parser)
    parser.add_argument(
        "--output", metavar="FILE", help="write the calibrated method as TOML, for --config"
    )


def _run(args: argparse.Namespace) -> int:
    request = read_request(args)
    setting = _calibrated(request)
    found = rows.measured(setting)
    if args.output is not None:
        Path(args.output).write_text(_toml.dumps(setting.method.to_plain()), encoding="utf-8")
    report.show(
        args.json,
        _text(request, setting, found, args.output),
        {
            **describe.setting_data(setting),
            "target": request.epsilon,
            "calibrated_by": setting.accountants[0],
            "output": args.output,
            "results": rows.rows_data(found),
        },
    )
    return 0


def _calibrated(request: Request) -> Setting:
    """Returns the setting with the noise that the first accountant asks for."""
    # Of a number only its being one matters; a curve keeps the shape it has at 1.
    setting = setting_of(request, noise_multiplier=1.0)
    method = accounting.calibrate(
        setting.method,
        setting.sampling,
        setting.steps,
        request.required("epsilon"),
        setting.delta,
        setting.accountants[0],
        start=setting.start,
        relation=setting.relation,
    )
    return replace(setting, method=method)


def _text(request: Request, setting: Setting, found: list[rows.Row], output: str | None) -> str:
    budget = f"epsilon at most {request.epsilon:g}, by {setting.accountants[0]}"
    lines = [*describe.headed(setting), ("budget", budget)]
    if output is not None:
        lines.append(("written", output))
    noise = describe.noise_of(setting)
    what = "sigma" if noise.factor is None else "factor"
    value = rounded_up(noise.total[0] if noise.factor is None else noise.factor, 6)
    return f"{tables.pairs([(what, value), *lines])}\n\n{rows.rows_text(found)}"


COMMAND = Command(_add_flags, _run)
