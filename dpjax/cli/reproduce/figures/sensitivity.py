"""DC-SGD's accuracy against p, the number of bins, and the histogram's noise."""

from typing import Any

from dpjax.cli import figures
from dpjax.cli.reproduce.figures.base import Figure, Sources
from dpjax.reproduce.figures.sensitivity import SERIES, Sensitivity, sensitivity_of

__all__ = ["FIGURE"]

_PANELS = {
    "p": ("Quantile", "p, the share of norms left unclipped"),
    "bins": ("Bins of the histogram", "b"),
    "sigma_h": ("Noise on the histogram", r"$\sigma_H$ (std of each bin)"),
}


def _draw(sources: Sources) -> Any:
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
        _panel(axes, varied, {n: found[n] for n in SERIES if SERIES[n][2] == varied})
    handles, names = panels[-1].get_legend_handles_labels()
    body.legend(handles, names, loc="outside lower left", ncols=2, frameon=False)
    return figure


def _panel(axes: Any, varied: str, series: dict[str, Sensitivity]) -> None:
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


FIGURE = Figure("accuracy against p, bins and sigma_H (DC-SGD 5 to 7, 9 to 11)", _draw)
