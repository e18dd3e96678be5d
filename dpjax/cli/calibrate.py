"""``dpjax calibrate``: the noise that a budget allows."""

import argparse
from dataclasses import replace
from pathlib import Path

from dpjax import _toml, accounting
from dpjax.accounting.bound import rounded_up
from dpjax.cli import accountant_table, describe, flags, printing
from dpjax.cli.command import Command
from dpjax.cli.request import Request, read_request
from dpjax.train.plan import Setting

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
    found = accountant_table.measured(setting, request.accountants(setting))
    if args.output is not None:
        Path(args.output).write_text(_toml.dumps(setting.mechanism.to_plain()), encoding="utf-8")
    printing.show(
        args.json,
        _text(request, setting, found, args.output),
        {
            **describe.setting_data(request, setting),
            "target": request.epsilon,
            "calibrated_by": setting.accountant,
            "output": args.output,
            "results": accountant_table.data(found),
        },
    )
    return 0


def _calibrated(request: Request) -> Setting:
    """Returns the setting with the noise that the first accountant requires."""
    setting = request.asked()
    method = accounting.calibrate(
        setting.mechanism,
        setting.sampling,
        setting.steps,
        request.epsilon,
        setting.delta,
        setting.accountant,
        start=setting.start,
        relation=setting.relation,
    )
    return replace(setting, method=method)


def _text(
    request: Request,
    setting: Setting,
    found: list[accountant_table.AccountantRow],
    output: str | None,
) -> str:
    budget = f"epsilon at most {request.epsilon:g}, by {setting.accountant}"
    lines = [*describe.headed(request, setting), ("budget", budget)]
    if output is not None:
        lines.append(("written", output))
    sigma = rounded_up(describe.noise_of(setting).total[0], 6)
    return f"{printing.pairs([('sigma', sigma), *lines])}\n\n{accountant_table.text(found)}"


COMMAND = Command(_add_flags, _run)
