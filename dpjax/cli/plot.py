"""``dpjax plot``: figures. A new one is one row of `GROUP`."""

import argparse
from dataclasses import asdict, replace
from typing import Any

from dpjax.cli import curves, describe, diagnostics_plots, flags, plots, report, rows, run_plots
from dpjax.cli.command import Command, Group
from dpjax.cli.curves import EpsilonCurve
from dpjax.cli.run_data import read_runs
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


def _add_runs_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="a .png, .pdf or .svg file; for one run RUN/plots/run.png is the default",
    )


def _run_runs(args: argparse.Namespace) -> int:
    runs = read_runs(args.runs)
    if args.output is None and len(runs) > 1:
        raise ValueError(f"--output: missing; expected a file for the figure of {len(runs)} runs")
    output = args.output or str(runs[0].plots / "run.png")
    run_plots.draw_runs(runs, output)
    print(output)
    for kept in diagnostics_plots.draw_beside(runs):
        print(f"{kept} (not private)")
    return 0


GROUP = Group(
    {
        "privacy": ("epsilon over steps, with noise and threshold", Command(_add_flags, _run)),
        "runs": ("accuracy, threshold and epsilon of runs", Command(_add_runs_flags, _run_runs)),
    },
)
