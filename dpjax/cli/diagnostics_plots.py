"""The figure of a run's non-private numbers, with a banner that says so."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpjax.cli import figures
from dpjax.cli.released_runs import ReleasedRun
from dpjax.train.folder import NOT_PRIVATE

__all__ = ["diagnostics_figure", "draw_beside", "draw_diagnostics"]

Rows = Sequence[dict[str, Any]]


def draw_diagnostics(run: ReleasedRun, output: str) -> None:
    """Draws the diagnostics of a run, and writes the file.

    Privacy:
        None: the figure is computed from the training examples without noise.

    Args:
        run: a run whose config asked for diagnostics.
        output: a .png, .pdf or .svg file.
    """
    figures.check_output(output)
    figures.write(diagnostics_figure(run), output)


def draw_beside(runs: Sequence[ReleasedRun]) -> list[Path]:
    """Draws each run that has diagnostics, in its own folder, and returns the files.

    They stay with their run, because next to public figures they would be published too.
    """
    files = []
    for run in runs:
        if run.folder.diagnostics():
            files.append(run.plots / "diagnostics.png")
            draw_diagnostics(run, str(files[-1]))
    return files


def diagnostics_figure(run: ReleasedRun) -> Any:
    """Returns the figure: gradient norms, the clipped fraction, weights against norms."""
    # If no gradient of the probe was finite, there is nothing to draw.
    rows = [row for row in run.folder.diagnostics() if "norms" in row]
    if not rows:
        raise ValueError(f"{run.folder.path}: expected norms in diagnostics.jsonl")
    title = f"{run.label} on {run.experiment.data.name}, {run.experiment.model.name}"
    subtitle = f"{rows[-1]['examples']} training examples as a probe, at every evaluation"
    figure, body = figures.headed(11, 7.2, title, subtitle, banner=NOT_PRIVATE)
    axes = body.subplot_mosaic("hw;qc")
    axes["w"].sharex(axes["h"])
    some = _early_middle_last(rows)
    _draw_histograms(axes["h"], some)
    _draw_weights(axes["w"], some)
    _draw_quantiles(axes["q"], rows)
    _draw_clipped(axes["c"], rows)
    return figure


def _early_middle_last(rows: Rows) -> Rows:
    places = sorted({0, (len(rows) - 1) // 2, len(rows) - 1})
    return [rows[place] for place in places]


def _draw_histograms(axes: Any, some: Rows) -> None:
    for i, row in enumerate(some):
        counts, edges = (np.asarray(row["norms"][name], float) for name in ("counts", "edges"))
        # Each evaluation has its own bins, so only densities can be compared.
        density = counts / max(counts.sum(), 1) / np.diff(np.log10(edges))
        axes.stairs(density, edges, fill=True, alpha=0.15, color=figures.COLOURS[i])
        axes.stairs(density, edges, linewidth=1.6, label=f"step {row['step']}", **figures.style(i))
    axes.set_xscale("log")
    figures.tidy(
        axes, "Gradient norms", "norm of an example's gradient", "share of examples per decade"
    )
    axes.legend(frameon=False)


def _draw_weights(axes: Any, some: Rows) -> None:
    for i, row in enumerate(some):
        norms, weights = row["weights"]["norm"], row["weights"]["weight"]
        # At a constant threshold all curves coincide, so later ones are drawn thinner, on top.
        width = {"linewidth": 1.6 + 1.8 * (len(some) - 1 - i), "solid_capstyle": "butt"}
        axes.plot(norms, weights, color=figures.COLOURS[i], label=f"step {row['step']}", **width)
    figures.tidy(axes, "Scaling weights", "norm of an example's gradient", "weight")
    figures.scale_by_range(axes, [w for row in some for w in row["weights"]["weight"]])
    axes.legend(frameon=False)


def _draw_quantiles(axes: Any, rows: Rows) -> None:
    steps = [row["step"] for row in rows]
    low, middle, high = (
        [row["norm_quantiles"][name] for row in rows] for name in ("0.1", "0.5", "0.9")
    )
    colour = figures.COLOURS[0]
    axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0, label="10% to 90%")
    axes.plot(steps, middle, color=colour, label="median")
    figures.tidy(axes, "Gradient norms over the run", "step", "norm")
    figures.scale_by_range(axes, [*low, *high])
    axes.legend(frameon=False)


def _draw_clipped(axes: Any, rows: Rows) -> None:
    steps = [row["step"] for row in rows]
    axes.plot(steps, [row["clipped_fraction"] for row in rows], **figures.style(0))
    figures.tidy(axes, "Clipped fraction: norms above $C_t$", "step")
    axes.set_ylim(-0.02, 1.02)
    figures.percent(axes.yaxis)
