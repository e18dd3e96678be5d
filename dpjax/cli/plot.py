"""``dpjax plot``: figures. A new one is one row of `GROUP`."""

import argparse
from dataclasses import asdict, replace
from typing import Any

from dpjax.cli import curves, describe, flags, plots, report, rows
from dpjax.cli.command import Command, Group
from dpjax.cli.curves import EpsilonCurve
from dpjax.cli.setting import Setting, setting_of
from dpjax.cli.source import read_request

__all__ = ["GROUP"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add_request_flags(parser)
    parser.add_argument("--output", required=True, metavar="FILE", help="a .png, .pdf or .svg file")


def _run(args: argparse.Namespace) -> int:
    request = read_request(args)
    if not request.accountant:
        request = replace(request, accountant=("all",))
    setting = setting_of(request)
    found, errors = _epsilons(setting)
    shown = plots.Privacy(
        _title(setting),
        setting.delta,
        found,
        curves.noise_curves(setting),
        curves.threshold_curves(setting),
    )
    plots.draw_privacy(shown, args.output)
    notes = [f"\nnot drawn: {error}" for error in errors]
    data = {**describe.setting_data(setting), **_data(shown), "errors": errors}
    report.show(args.json, f"{args.output}{''.join(notes)}", {**data, "output": args.output})
    return 0


def _epsilons(setting: Setting) -> tuple[list[EpsilonCurve], list[str]]:
    """Returns the curves of the accountants that give one, and why the others do not."""
    found, errors = [], []
    for accountant in setting.accountants:
        try:
            found.append(curves.epsilon_curve(setting, accountant))
        except rows.NO_NUMBER as error:
            errors.append(str(error))
    if not found:
        raise ValueError(errors[0])
    return found, errors


def _title(setting: Setting) -> str:
    sampling = dict(describe.headed(setting))["sampling"]
    return f"{setting.name}, {setting.steps} steps, {sampling}"


def _data(shown: plots.Privacy) -> dict[str, Any]:
    return {
        "epsilons": [
            {**report.bound_data(entry.last), "curve": asdict(entry.curve)}
            for entry in shown.epsilons
        ],
        "noise": [asdict(curve) for curve in shown.noise],
        "thresholds": [asdict(curve) for curve in shown.thresholds],
    }


GROUP = Group(
    "figures",
    {"privacy": Command("epsilon over steps, with noise and threshold", _add_flags, _run)},
)
