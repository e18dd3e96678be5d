"""The picture of a comparison: accuracy over epochs, at the end, and the thresholds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax.cli import figures
from dpjax.cli.comparison import ComparedRun, Comparison, MethodRuns, read_comparison
from dpjax.cli.figures import End

__all__ = ["comparison_figure", "draw_comparison"]


def draw_comparison(rows: Sequence[ComparedRun], output: str) -> None:
    """Draws the picture of a comparison, and writes the file.

    Args:
        rows: the runs, all on one data set and network; runs with one name are its seeds.
        output: a .png, .pdf or .svg file.
    """
    figures.check_output(output)
    figures.write(comparison_figure(read_comparison(rows)), output)


def comparison_figure(comparison: Comparison) -> Any:
    """Returns the picture; each method has the same colour in all panels."""
    adapts = any(not run.constant_threshold for run in comparison.runs)
    height, panels = (6.8, "af;ac") if adapts else (4.6, "af")
    figure, body = figures.headed(12, height, comparison.title, comparison.spent.sentence)
    axes = body.subplot_mosaic(panels, width_ratios=[1.15, 1])
    accuracies = _draw_accuracy(axes["a"], comparison)
    _draw_finals(axes["f"], comparison)
    thresholds = _draw_thresholds(axes["c"], comparison) if adapts else []
    figure.draw_without_rendering()  # computes the panels' heights
    figures.label_ends(axes["a"], accuracies)
    if adapts:
        figures.label_ends(axes["c"], thresholds)
    return figure


def _draw_accuracy(axes: Any, comparison: Comparison) -> list[End]:
    ends = []
    for i, entry in enumerate(comparison.methods):
        curve, style = entry.curve(), figures.style(i)
        axes.plot(curve.epochs, curve.mean, linewidth=1.9, **style)
        if len(entry.runs) > 1:
            low, high = curve.mean - curve.half_width, curve.mean + curve.half_width
            band = {"color": style["color"], "alpha": 0.18, "linewidth": 0}
            axes.fill_between(curve.epochs, low, high, **band)
        ends.append(End(entry.method, curve.epochs[-1], curve.mean[-1], style["color"]))
    several = f", mean and 95% interval of {comparison.seeds} seeds" if comparison.seeds > 1 else ""
    figures.tidy(axes, f"Test accuracy{several}", "epoch")
    figures.percent(axes.yaxis)
    axes.set_xlim(0, max(end.x for end in ends))
    return ends


def _draw_finals(axes: Any, comparison: Comparison) -> None:
    order = comparison.best_first
    for height, i in enumerate(order):
        entry, colour = comparison.methods[i], figures.style(i)["color"]
        _draw_final(axes, height, entry, colour)
    error = comparison.test_error
    own = f"the test set's own error: ± {100 * error:.1f} points" if error is not None else ""
    figures.tidy(axes, "Test accuracy at the end", own)
    axes.set_yticks(range(len(order)), [comparison.methods[i].method for i in order], fontsize=10.5)
    for label, i in zip(axes.get_yticklabels(), order, strict=True):
        label.set_color(figures.style(i)["color"])
    axes.set_ylim(len(order) - 0.4, -0.6)  # the best on top
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="x")
    figures.percent(axes.xaxis)
    axes.margins(x=0.08)


def _draw_final(axes: Any, height: int, entry: MethodRuns, colour: str) -> None:
    if len(entry.runs) > 1:
        axes.plot(entry.finals, [height] * len(entry.runs), "o", ms=4, color=colour, alpha=0.35)
        axes.errorbar(entry.final, height, xerr=entry.half_width, color=colour, capsize=3)
    axes.plot([entry.final], [height], "o", markersize=9, color=colour)
    axes.annotate(
        figures.typeset(entry.final_text),
        (1.02, height),
        xycoords=("axes fraction", "data"),
        va="center_baseline",
        fontsize=10.5,
        annotation_clip=False,
    )


def _draw_thresholds(axes: Any, comparison: Comparison) -> list[End]:
    ends, values, constant = [], [], []
    for i, entry in enumerate(comparison.methods):
        if all(run.constant_threshold for run in entry.runs):
            constant.append(f"{entry.method} {entry.runs[0].threshold_text}")
            continue
        style, lasts = figures.style(i), []
        for run in entry.runs:
            steps, groups = run.steps["step"], run.thresholds()
            weak = {"linewidth": 1.4} if len(groups) * len(entry.runs) == 1 else {"linewidth": 0.8}
            for group in groups:
                axes.plot(steps, group, **style, **weak)
                values += group
                lasts.append((steps[-1], group[-1]))
        if lasts:
            x, y = np.mean(lasts, axis=0)
            ends.append(End(entry.method, x, y, style["color"]))
    across = f"step (constant: {', '.join(constant)})" if constant else "step"
    figures.tidy(axes, "Threshold $C_t$", across, "gradient norm")
    figures.stripe(axes.lines)
    figures.scale_by_range(axes, values)
    axes.margins(x=0)
    return ends
