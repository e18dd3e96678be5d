"""Clipped norm against norm, and weight against norm, for every rule."""

from typing import Any

import numpy as np

from dpjax.cli import figures
from dpjax.cli.figures import End
from dpjax.cli.reproduce.figures.base import Figure, Sources
from dpjax.reproduce.figures.clipped_norms import RuleCurve, rule_curves

__all__ = ["FIGURE"]

_NORMS = np.geomspace(1e-4, 1e2, 601)


def _draw(sources: Sources) -> Any:
    del sources  # rules need no runs
    curves = rule_curves(_NORMS, 1.0)
    title = "What each rule makes of a gradient's norm, at C = 1"
    figure, body = figures.headed(
        12, 5.6, title, "Automatic Clipping, figure 4. Stripes: rules that are the same here"
    )
    clipped, weights = body.subplots(1, 2)
    _panel(clipped, curves, [curve.clipped for curve in curves])
    figures.tidy(clipped, "Clipped norm", "norm of the gradient", "norm of what enters the sum")
    clipped.set_ylim(3e-4, 1e2)
    _mark_bounds(clipped, curves)
    _panel(weights, curves, [curve.weights for curve in curves])
    figures.tidy(weights, "Weight", "norm of the gradient", "weight")
    weights.set_ylim(3e-3, 3e2)
    handles = clipped.get_lines()[: len(curves)]
    names = [_label(curve) for curve in curves]
    body.legend(handles, names, loc="outside lower left", ncols=3, frameon=False, handlelength=4)
    return figure


def _label(curve: RuleCurve) -> str:
    arguments = f" ({curve.arguments})" if curve.arguments else ""
    return f"{curve.name}{arguments}{'' if curve.bound is not None else ': no bound'}"


def _panel(axes: Any, curves: list[RuleCurve], values: list[np.ndarray]) -> None:
    colours = iter(figures.COLOURS)
    for curve, value in zip(curves, values, strict=True):
        style = {"color": figures.GREY, "linestyle": "-."} if curve.bound is None else None
        shown = np.where(value > 0, value, np.nan)  # a dropped gradient has no place on a log axis
        axes.loglog(curve.norms, shown, linewidth=1.8, **(style or {"color": next(colours)}))
    axes.set_xlim(_NORMS[0], _NORMS[-1])
    figures.stripe(axes.get_lines())


def _mark_bounds(axes: Any, curves: list[RuleCurve]) -> None:
    bounds = sorted({curve.bound for curve in curves if curve.bound is not None})
    for bound in bounds:
        axes.axhline(bound, color=figures.GREY, linewidth=0.9, linestyle=":", zorder=1)
    axes.figure.figure.draw_without_rendering()
    ends = [End(f"bound {bound:g}", _NORMS[-1], bound, figures.GREY) for bound in bounds]
    figures.label_ends(axes, ends, fontsize=9)


FIGURE = Figure("clipped norm and weight of every rule (Automatic Clipping 4)", _draw)
