"""``dpjax plot``: figures. A new one is one row of `GROUP`."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpjax.accounting.bound import rounded_up
from dpjax.cli import (
    accountant_table,
    curves,
    describe,
    diagnostics_plots,
    figures,
    flags,
    printing,
    run_plots,
)
from dpjax.cli.command import Command, Group
from dpjax.cli.curves import Curve, EpsilonCurve
from dpjax.cli.released_runs import read_runs
from dpjax.cli.request import read_request
from dpjax.train.plan import Setting

__all__ = ["GROUP", "Privacy", "draw_privacy"]

_COLOURS = {"pld": "#0072b2", "rdp": "#d55e00", "tcdp": "#009e73", "gdp": "#555555"}
_WORTH = {"gdp": "approximation, no guarantee", "tcdp": "not proven"}
_STYLES = ("-", "--", "-.")


@dataclass(frozen=True)
class Privacy:
    """The content of the figure of a run's privacy.

    Attributes:
        title: what ran.
        delta: the target.
        epsilons: epsilon over steps, by accountant.
        noise: sigma_t.
        thresholds: C_t.
    """

    title: str
    delta: float
    epsilons: Sequence[EpsilonCurve]
    noise: Sequence[Curve]
    thresholds: Sequence[Curve]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add_request_flags(parser)
    parser.add_argument("--output", required=True, metavar="FILE", help="a .png, .pdf or .svg file")


def _run(args: argparse.Namespace) -> int:
    request = read_request(args)
    if not request.accountant:
        request = replace(request, accountant=("all",))
    setting = request.resolved()
    found, errors = _epsilons(setting, request.accountants(setting))
    shown = Privacy(
        _title(setting),
        setting.delta,
        found,
        curves.noise_curves(setting),
        curves.threshold_curves(setting),
    )
    draw_privacy(shown, args.output)
    notes = [f"\nnot drawn: {error}" for error in errors]
    data = {**describe.setting_data(request, setting), **_data(shown), "errors": errors}
    printing.show(args.json, f"{args.output}{''.join(notes)}", {**data, "output": args.output})
    return 0


def _epsilons(setting: Setting, accountants: Sequence[str]) -> tuple[list[EpsilonCurve], list[str]]:
    """Returns the curves of the accountants that have one, and why the others do not."""
    found, errors = [], []
    for accountant in accountants:
        try:
            found.append(curves.epsilon_curve(setting, accountant))
        except accountant_table.NO_NUMBER as error:
            errors.append(str(error))
    if not found:
        raise ValueError(errors[0])
    return found, errors


def _title(setting: Setting) -> str:
    return f"{setting.name}, {setting.steps} steps, {describe.sampling_text(setting)}"


def _data(shown: Privacy) -> dict[str, Any]:
    return {
        "epsilons": [
            {**printing.bound_data(entry.last), "curve": asdict(entry.curve)}
            for entry in shown.epsilons
        ],
        "noise": [asdict(curve) for curve in shown.noise],
        "thresholds": [asdict(curve) for curve in shown.thresholds],
    }


def draw_privacy(shown: Privacy, output: str) -> None:
    """Draws epsilon, noise and threshold over steps, and writes the file."""
    figure, body = figures.headed(11, 6.0, shown.title, f"at delta = {rounded_up(shown.delta)}")
    axes = body.subplot_mosaic("en;et", width_ratios=[3, 2])
    epsilons, noise, thresholds = (axes[place] for place in "ent")
    noise.sharex(thresholds)
    noise.tick_params(labelbottom=False)
    _draw_epsilons(epsilons, shown)
    _draw_curves(noise, shown.noise, r"Noise multiplier $\sigma_t$", "std / bound")
    _draw_curves(thresholds, shown.thresholds, "Threshold $C_t$", "gradient norm")
    thresholds.set_xlabel("step")
    figures.write(figure, output)


def _draw_epsilons(axes: Any, shown: Privacy) -> None:
    for entry in shown.epsilons:
        name, last = figures.ACCOUNTANTS[entry.accountant], entry.last
        worth = "" if last.guarantee else f", {_WORTH[entry.accountant]}"
        axes.plot(
            entry.curve.steps,
            entry.curve.values,
            color=_COLOURS[entry.accountant],
            linestyle="-" if last.guarantee else "--",
            marker="o",
            markersize=3,
            label=f"{name}: {rounded_up(last)} at the end{worth}",
        )
    figures.tidy(axes, "Privacy spent", "step", r"$\varepsilon$")
    _finish(axes)


def _draw_curves(axes: Any, curves: Sequence[Curve], title: str, unit: str) -> None:
    for i, curve in enumerate(curves):
        # Different styles keep coinciding curves apart.
        style = _STYLES[i % len(_STYLES)] if curve.known else ":"
        colour = figures.style(i)["color"]
        line = {"linestyle": style, "color": colour, "drawstyle": "steps-post"}
        axes.plot(curve.steps, curve.values, label=curve.name, **line)
    figures.tidy(axes, title, "", unit)
    _finish(axes)


def _finish(axes: Any) -> None:
    highest = axes.dataLim.y1  # infinite if no value is finite
    axes.set_ylim(0, 1.15 * highest if 0 < highest < math.inf else None)
    axes.legend(loc="best", fontsize="small", frameon=False)


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
