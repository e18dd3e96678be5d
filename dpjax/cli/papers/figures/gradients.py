"""How close the private gradients of four rules are to the non-private ones."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpjax import data
from dpjax.cli import figures
from dpjax.cli.papers.figures import Figure, Sources
from dpjax.papers.figures import similarity
from dpjax.papers.figures.similarity import EDGES, Similarity, read_similarity, write_similarity
from dpjax.train.folder import NOT_PRIVATE

__all__ = ["FIGURE"]

_WINDOW = 7
Series = dict[str, list[Similarity]]


def _file(sources: Sources) -> Path:
    return sources.store.path / "similarity.csv"


def _measure(sources: Sources, say: Callable[[str], None]) -> None:
    rows, loaded = [], {}
    for experiment in similarity.measured_experiments():
        name = experiment.data.name
        if name not in loaded:
            loaded[name] = data.load(name, sources.data_dir)
        rows += similarity.similarity_rows(experiment, loaded[name], say=say)
    write_similarity(_file(sources), rows)


def _draw(sources: Sources) -> Any:
    if not _file(sources).exists():
        raise ValueError(
            f"{_file(sources)}: missing; `dpjax papers figure psasc-gradients --measure` "
            "measures it, in some minutes"
        )
    series: Series = {}
    for row in read_similarity(_file(sources)):
        series.setdefault(row.method, []).append(row)
    epochs = max(row.epoch for rows in series.values() for row in rows)
    title = f"Gradients of four rules on MNIST, over {epochs:.0f} epochs"
    subtitle = "DP-PSASC, figures 2 to 8. A point: the gradient of one step; lines: means of seven"
    figure, body = figures.headed(12, 8.2, title, subtitle, banner=NOT_PRIVATE)
    axes = body.subplot_mosaic("nc;ws")
    _draw_norms(axes["n"], series)
    _draw_over_epochs(axes["c"], series, lambda row: row.cosine)
    figures.tidy(axes["c"], "Private against plain gradient", "epoch", "cosine of the angle")
    _draw_over_epochs(axes["w"], series, lambda row: row.mean_weight)
    figures.tidy(axes["w"], "Mean scaling weight of a batch", "epoch", "weight")
    figures.scale_by_range(axes["w"], [row.mean_weight for rows in series.values() for row in rows])
    figures.plain_ticks(axes["w"])
    _draw_shares(axes["s"], series)
    handles, names = axes["c"].get_legend_handles_labels()
    body.legend(handles, names, loc="outside lower left", ncols=4, frameon=False)
    return figure


def _last_epoch(rows: Sequence[Similarity]) -> list[Similarity]:
    return [row for row in rows if row.epoch >= rows[-1].epoch - 1]


def _draw_norms(axes: Any, series: Series) -> None:
    widths, last = np.diff(np.log10(EDGES)), []
    for i, rows in enumerate(series.values()):
        counts = np.sum([row.counts for row in _last_epoch(rows)], axis=0)
        axes.stairs(counts / counts.sum() / widths, EDGES, linewidth=1.8, **figures.style(i))
        last += EDGES[:-1][counts > 0].tolist()
    axes.set_xscale("log")
    axes.set_xlim(min(last), max(last) * 10**0.2)
    words = ("norm of an example's gradient", "share of examples per decade")
    figures.tidy(axes, "Gradient norms in the last epoch", *words)


def _draw_over_epochs(axes: Any, series: Series, value: Callable[[Similarity], float]) -> None:
    for i, (name, rows) in enumerate(series.items()):
        epochs, values = [row.epoch for row in rows], [value(row) for row in rows]
        colour = figures.COLOURS[i]
        axes.plot(epochs, values, "o", markersize=3, alpha=0.35, color=colour)
        axes.plot(epochs, _smoothed(values), linewidth=1.9, label=name, color=colour)
    axes.set_xlim(left=0)


def _smoothed(values: Sequence[float]) -> np.ndarray:
    """Returns the mean of each value and its neighbours, of which there are fewer at the ends."""
    window = np.ones(min(_WINDOW, len(values)))
    counts = np.convolve(np.ones(len(values)), window, "same")
    return np.convolve(values, window, "same") / counts


def _draw_shares(axes: Any, series: Series) -> None:
    for i, rows in enumerate(series.values()):
        cosines = sorted(row.cosine for row in _last_epoch(rows))
        shares = np.arange(len(cosines), -1, -1) / len(cosines)
        axes.step([-1, *cosines], shares, where="post", linewidth=1.9, **figures.style(i))
    found = [row.cosine for rows in series.values() for row in _last_epoch(rows)]
    axes.set_xlim(min(found) - 0.02, max(found) + 0.02)
    axes.set_ylim(0, 1.02)
    figures.percent(axes.yaxis)
    words = ("cosine of the angle", "share of steps with a larger cosine")
    figures.tidy(axes, "Cosines in the last epoch", *words)


FIGURE = Figure("norms, cosines and weights during training (DP-PSASC 2 to 8)", _draw, _measure)
