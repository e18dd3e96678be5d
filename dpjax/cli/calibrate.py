"""``dpjax calibrate``: the noise that a budget allows."""

import argparse
from dataclasses import replace
from pathlib import Path

from dpjax import _toml, accounting
from dpjax.accounting.bound import rounded_up
from dpjax.cli import accountant_table, describe, flags, printing
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
    found = accountant_table.measured(setting)
    if args.output is not None:
        Path(args.output).write_text(_toml.dumps(setting.mechanism.to_plain()), encoding="utf-8")
    printing.show(
        args.json,
        _text(request, setting, found, args.output),
        {
            **describe.setting_data(setting),
            "target": request.epsilon,
            "calibrated_by": setting.accountants[0],
            "output": args.output,
            "results": accountant_table.data(found),
        },
    )
    return 0


def _calibrated(request: Request) -> Setting:
    """Returns the setting with the noise that the first accountant requires."""
    # A number's value does not matter here; a curve keeps the shape it has at 1.
    setting = setting_of(request, calibrated=False)
    method = accounting.calibrate(
        setting.mechanism,
        setting.sampling,
        setting.steps,
        request.required("epsilon"),
        setting.delta,
        setting.accountants[0],
        start=setting.start,
        relation=setting.relation,
    )
    return replace(setting, mechanism=method)


def _text(
    request: Request,
    setting: Setting,
    found: list[accountant_table.AccountantRow],
    output: str | None,
) -> str:
    budget = f"epsilon at most {request.epsilon:g}, by {setting.accountants[0]}"
    lines = [*describe.headed(setting), ("budget", budget)]
    if output is not None:
        lines.append(("written", output))
    sigma = rounded_up(describe.noise_of(setting).total[0], 6)
    return f"{printing.pairs([('sigma', sigma), *lines])}\n\n{accountant_table.text(found)}"


COMMAND = Command(_add_flags, _run)
