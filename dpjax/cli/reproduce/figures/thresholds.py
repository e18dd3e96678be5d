"""Thresholds over epochs, of all methods of a table."""

import textwrap
from collections.abc import Mapping
from typing import Any

from dpjax.cli import figures
from dpjax.cli.figures import End
from dpjax.cli.reproduce.figures.base import Figure, Sources
from dpjax.cli.reproduce.figures.ticks import plain_ticks
from dpjax.reproduce.figures.threshold_curves import ThresholdCurve, greedy_curve, threshold_curves
from dpjax.reproduce.papers.lin import PUBLIC
from dpjax.reproduce.printed import select

__all__ = ["FIGURE"]

_WIDTH = 62  # letters below a panel
# AdaCliP's C is that of standardised coordinates: no gradient norm.
_LEFT_OUT = ("Pichapati",)
_GREEDY = "Greedy"


def _draw(sources: Sources) -> Any:
    title = r"Thresholds $C_t$ over epochs, MNIST"
    subtitle = "Lin et al., figures 2 to 5. Lines: mean over seeds; bands: from least to largest"
    subtitle += f". Greedy: found on {PUBLIC['mnist'].replace('_', '-')}, as public data"
    figure, body = figures.headed(12.5, 5.6, title, subtitle)
    left, right = body.subplots(1, 2)
    cells = [c for c in select("lin/2", ["mnist", "2.93"]) if c.method not in _LEFT_OUT]
    lin = threshold_curves(cells, sources.store)
    # The network of the cells whose thresholds it finds; the others may have another.
    (transfer,) = (cell for cell in cells if cell.method == "Transfer")
    curves = {**lin, _GREEDY: greedy_curve(transfer, sources.store)}
    heads = ["Lin et al., table 2: ε = 2.93", "DC-SGD, table IV: ε = 2"]
    tables = [curves, threshold_curves(select("dc-sgd/IV", ["mnist", "2"]), sources.store)]
    ends = [
        (axes, _panel(axes, head, table))
        for axes, head, table in zip((left, right), heads, tables, strict=True)
    ]
    figure.draw_without_rendering()  # only then are the panels' heights known
    for axes, own in ends:
        figures.label_ends(axes, own)
    return figure


def _panel(axes: Any, title: str, curves: Mapping[str, ThresholdCurve | None]) -> list[End]:
    values, ends = [], []
    for i, (name, curve) in enumerate(curves.items()):
        if curve is not None:
            ends.append(_draw_curve(axes, name, curve, _style(i, name)))
            values += curve.thresholds.ravel().tolist()
    figures.tidy(axes, title, f"epoch{_missing(curves)}", "gradient norm")
    figures.stripe(axes.get_lines())
    figures.scale_by_range(axes, values)
    plain_ticks(axes)
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


FIGURE = Figure("thresholds of all methods over epochs (Lin et al. 2 to 5)", _draw)
