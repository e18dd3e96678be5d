"""Figures from stored runs: thresholds over epochs, and DC-SGD's sensitivity to its parameters."""

import textwrap
from collections.abc import Mapping
from typing import Any

from dpjax.cli import figures
from dpjax.cli.figures import End
from dpjax.cli.papers.figures import Figure, Sources
from dpjax.papers.figures.sensitivity import SERIES, Sensitivity, sensitivity_of
from dpjax.papers.outcome import ThresholdCurve, greedy_curve, threshold_curves
from dpjax.papers.printed_numbers import select
from dpjax.papers.recipes.lin import PUBLIC

__all__ = ["SENSITIVITY", "THRESHOLDS"]

_WIDTH = 62  # characters per line below a panel
# AdaCliP's C applies to standardised coordinates, so it is not a gradient norm.
_LEFT_OUT = ("Pichapati",)
_GREEDY = "Greedy"


def _draw_thresholds(sources: Sources) -> Any:
    title = r"Thresholds $C_t$ over epochs, MNIST"
    subtitle = "Lin et al., figures 2 to 5. Lines: mean over seeds; bands: from least to largest"
    subtitle += f". Greedy: found on {PUBLIC['mnist'].replace('_', '-')}, as public data"
    figure, body = figures.headed(12.5, 5.6, title, subtitle)
    left, right = body.subplots(1, 2)
    cells = [c for c in select("lin/2", ["mnist", "2.93"]) if c.method not in _LEFT_OUT]
    lin = threshold_curves(cells, sources.store)
    # Uses the network of the cells whose thresholds it finds; other cells may have another.
    (transfer,) = (cell for cell in cells if cell.method == "Transfer")
    curves = {**lin, _GREEDY: greedy_curve(transfer, sources.store)}
    heads = ["Lin et al., table 2: ε = 2.93", "DC-SGD, table IV: ε = 2"]
    tables = [curves, threshold_curves(select("dc-sgd/IV", ["mnist", "2"]), sources.store)]
    ends = [
        (axes, _threshold_panel(axes, head, table))
        for axes, head, table in zip((left, right), heads, tables, strict=True)
    ]
    figure.draw_without_rendering()  # computes the panels' heights
    for axes, own in ends:
        figures.label_ends(axes, own)
    return figure


def _threshold_panel(
    axes: Any, title: str, curves: Mapping[str, ThresholdCurve | None]
) -> list[End]:
    values, ends = [], []
    for i, (name, curve) in enumerate(curves.items()):
        if curve is not None:
            ends.append(_draw_curve(axes, name, curve, _style(i, name)))
            values += curve.thresholds.ravel().tolist()
    figures.tidy(axes, title, f"epoch{_missing(curves)}", "gradient norm")
    figures.stripe(axes.get_lines())
    figures.scale_by_range(axes, values)
    figures.plain_ticks(axes)
    axes.margins(x=0)
    if not ends:
        axes.text(0.5, 0.5, "no run is finished", transform=axes.transAxes, ha="center")
        axes.set(xticks=[], yticks=[])
    return ends


def _style(i: int, name: str) -> dict[str, Any]:
    return {"color": figures.GREY, "linestyle": "--"} if name == _GREEDY else figures.style(i)


def _draw_curve(axes: Any, name: str, curve: ThresholdCurve, style: dict[str, Any]) -> End:
    mean = curve.thresholds.mean(axis=0)
    axes.plot(curve.epochs, mean, linewidth=1.9, **style)
    low, high = curve.thresholds.min(axis=0), curve.thresholds.max(axis=0)
    axes.fill_between(curve.epochs, low, high, color=style["color"], alpha=0.18, linewidth=0)
    return End(name, curve.epochs[-1], mean[-1], style["color"])


def _missing(curves: Mapping[str, ThresholdCurve | None]) -> str:
    names = [name for name, curve in curves.items() if curve is None]
    return "\n" + textwrap.fill(f"not run: {', '.join(names)}", _WIDTH) if names else ""


THRESHOLDS = Figure("thresholds of all methods over epochs (Lin et al. 2 to 5)", _draw_thresholds)


_PANELS = {
    "p": ("Quantile", "p, the share of norms left unclipped"),
    "bins": ("Bins of the histogram", "b"),
    "sigma_h": ("Noise on the histogram", r"$\sigma_H$ (std of each bin)"),
}


def _draw_sensitivity(sources: Sources) -> Any:
    found = {name: sensitivity_of(name, sources.store) for name in SERIES}
    missing = sum(len(one.missing) for one in found.values())
    subtitle = "DC-SGD, figures 5 to 7 and 9 to 11. One seed; DC-SGD-P at p = 0.9 where p is fixed"
    if missing:
        subtitle += f". {missing} runs are missing"
    figure, body = figures.headed(
        12, 4.8, r"DC-SGD's own numbers: MNIST at $\varepsilon$ = 2", subtitle
    )
    panels = body.subplots(1, 3)
    panels[2].sharey(panels[1])
    for axes, varied in zip(panels, _PANELS, strict=True):
        _sensitivity_panel(axes, varied, {n: found[n] for n in SERIES if SERIES[n][2] == varied})
    handles, names = panels[-1].get_legend_handles_labels()
    body.legend(handles, names, loc="outside lower left", ncols=2, frameon=False)
    return figure


def _sensitivity_panel(axes: Any, varied: str, series: dict[str, Sensitivity]) -> None:
    missing = []
    for name, one in series.items():
        method = name.partition(", ")[2]
        which = int(method == "DC-SGD-E")
        style = {"color": figures.COLOURS[which], "marker": "os"[which], "linewidth": 1.9}
        axes.plot(list(one.accuracies), list(one.accuracies.values()), label=method, **style)
        if one.missing:
            values = ", ".join(f"{value:g}" for value in one.missing)
            missing.append(f"{method[-1]} at {values} not run")
    title, across = _PANELS[varied]
    figures.tidy(axes, title, "\n".join([across, *missing]), "test accuracy")
    figures.percent(axes.yaxis)
    axes.margins(y=0.15)
    _ticks(axes, sorted({value for name in series for value in SERIES[name][3]}), varied != "p")


def _ticks(axes: Any, values: list[float], logarithmic: bool) -> None:
    if logarithmic:
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xlim(values[0] / 1.2, values[-1] * 1.2)
    else:
        axes.set_xlim(values[0] - 0.05, values[-1] + 0.05)
    axes.set_xticks(values, [f"{value:g}" for value in values])


SENSITIVITY = Figure(
    "accuracy against p, bins and sigma_H (DC-SGD 5 to 7, 9 to 11)", _draw_sensitivity
)
