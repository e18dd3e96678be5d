"""The figure of what one or several runs released: accuracy, threshold, epsilon."""

from collections.abc import Sequence
from typing import Any

from dpjax.cli import figures
from dpjax.cli.released_runs import NO_GUARANTEE, ReleasedRun, Spent, spent_by

__all__ = ["draw_runs", "run_figure"]


def draw_runs(runs: Sequence[ReleasedRun], output: str) -> None:
    """Draws runs in the same panels, and writes the file.

    Args:
        runs: one or several.
        output: a .png, .pdf or .svg file.
    """
    figures.check_output(output)
    figures.write(run_figure(runs, spent_by(runs)), output)


def run_figure(runs: Sequence[ReleasedRun], spent: Spent) -> Any:
    """Returns the figure: accuracy over epochs, epsilon over steps, and C_t if it changes.

    It shows only released numbers; the heading says what they cost.
    """
    subtitle = f"{spent.sentence}, at {spent.target}" if spent.target else spent.sentence
    adapts = any(not run.constant_threshold for run in runs)
    height, panels = (6.0, "ac;ae") if adapts else (4.4, "ae")
    figure, body = figures.headed(11, height, _title(runs), subtitle)
    axes = body.subplot_mosaic(panels, width_ratios=[3, 2])
    if adapts:
        axes["c"].sharex(axes["e"])
        axes["c"].tick_params(labelbottom=False)
    for i, run in enumerate(runs):
        _draw_run(axes, run, figures.style(i))
    for panel in axes.values():
        figures.stripe(panel.lines)
    _finish_accuracy(axes["a"])
    if adapts:
        _finish_thresholds(axes["c"], runs)
    _finish_epsilons(axes["e"], runs)
    if len(runs) > 1:
        columns = 6 if max(len(run.label) for run in runs) < 15 else 3
        lines = axes["a"].get_legend_handles_labels()
        body.legend(*lines, loc="outside lower left", ncols=columns, frameon=False)
    return figure


def _title(runs: Sequence[ReleasedRun]) -> str:
    places = dict.fromkeys(f"{r.experiment.data.name}, {r.experiment.model.name}" for r in runs)
    where = " and ".join(places)
    if len(runs) > 1:
        return f"{len(runs)} runs on {where}"
    (run,) = runs
    fixed = f", C = {run.threshold_text}" if run.thresholds() and run.constant_threshold else ""
    return f"{run.label} on {where}{fixed}"


def _draw_run(axes: dict[str, Any], run: ReleasedRun, style: dict[str, Any]) -> None:
    steps, epsilons = run.column("step"), run.column("epsilon")
    private = None not in epsilons
    label = run.label if private else f"{run.label}, {NO_GUARANTEE}"
    axes["a"].plot(run.column("epoch"), run.column("accuracy"), label=label, **style)
    groups = run.thresholds() if "c" in axes else []
    for group in groups:
        weak = {"alpha": 0.6, "linewidth": 0.9} if len(groups) > 1 else {"linewidth": 1.3}
        axes["c"].plot(run.steps["step"], group, **style, **weak)
    if private:
        axes["e"].plot(steps, epsilons, **style)


def _finish_accuracy(axes: Any) -> None:
    figures.tidy(axes, "Test accuracy", "epoch")
    figures.percent(axes.yaxis)
    axes.set_xlim(left=0)


def _finish_thresholds(axes: Any, runs: Sequence[ReleasedRun]) -> None:
    values = [c for run in runs for group in run.thresholds() for c in group]
    grouped = any(len(run.thresholds()) > 1 for run in runs)
    title = "Threshold $C_t$, a line for each group" if grouped else "Threshold $C_t$"
    figures.tidy(axes, title, "", "gradient norm")
    figures.scale_by_range(axes, values)


def _finish_epsilons(axes: Any, runs: Sequence[ReleasedRun]) -> None:
    title = "Privacy spent, by each run" if len(runs) > 1 else "Privacy spent"
    figures.tidy(axes, title, "step", r"$\varepsilon$")
    budgets = {run.experiment.privacy.epsilon for run in runs}
    if len(budgets) == 1 and None not in budgets:
        (budget,) = budgets
        axes.axhline(budget, color=figures.GREY, linewidth=0.9, linestyle=":", zorder=1)
        axes.annotate(
            f"budget {budget:g}",
            (0, budget),
            (4, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=9,
            color=figures.GREY,
        )
    highest = axes.dataLim.y1
    if axes.lines:
        axes.set_ylim(0, 1.2 * highest if 0 < highest < float("inf") else None)
    else:
        axes.set_yticks([])
        axes.text(0.5, 0.5, NO_GUARANTEE, transform=axes.transAxes, ha="center", va="center")
