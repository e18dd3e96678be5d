"""The figure of a setting's privacy: epsilon over steps, with noise and threshold."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpjax.accounting.bound import rounded_up
from dpjax.cli import figures
from dpjax.cli.curves import Curve, EpsilonCurve

__all__ = ["Privacy", "draw_privacy"]

_COLOURS = {"pld": "#0072b2", "rdp": "#d55e00", "tcdp": "#009e73", "gdp": "#555555"}
_WORTH = {"gdp": "approximation, no guarantee", "tcdp": "not proven"}
_STYLES = ("-", "--", "-.")


@dataclass(frozen=True)
class Privacy:
    """What the figure of a run's privacy shows.

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


def draw_privacy(shown: Privacy, output: str) -> None:
    """Draws epsilon over steps beside noise and threshold, and writes the file."""
    figure = figures.new_figure(10, 5.2)
    axes = figure.subplot_mosaic("en;et", width_ratios=[3, 2])
    epsilons, noise, thresholds = (axes[place] for place in "ent")
    noise.sharex(thresholds)
    noise.tick_params(labelbottom=False)
    figure.suptitle(shown.title)
    _draw_epsilons(epsilons, shown)
    _draw_curves(noise, shown.noise, "Noise multiplier", r"$\sigma_t$ (std / bound)")
    _draw_curves(thresholds, shown.thresholds, "Threshold", r"$C_t$ (gradient norm)")
    thresholds.set_xlabel("step $t$")
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
    axes.set_title(f"Privacy spent, at $\\delta$ = {rounded_up(shown.delta)}")
    axes.set_xlabel("steps released")
    axes.set_ylabel(r"$\varepsilon$")
    _finish(axes)


def _draw_curves(axes: Any, curves: Sequence[Curve], title: str, unit: str) -> None:
    for i, curve in enumerate(curves):
        # Styles tell curves apart where they coincide.
        style = _STYLES[i % len(_STYLES)] if curve.known else ":"
        axes.plot(curve.steps, curve.values, style, drawstyle="steps-post", label=curve.name)
    axes.set_title(title)
    axes.set_ylabel(unit)
    _finish(axes)


def _finish(axes: Any) -> None:
    highest = axes.dataLim.y1  # infinite where no value is finite
    axes.set_ylim(0, 1.15 * highest if 0 < highest < math.inf else None)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
