"""``dpjax papers report``: pages and a picture that compare stored runs with printed numbers."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpjax._files import write_atomically
from dpjax.cli import figures
from dpjax.cli.command import Command
from dpjax.cli.html import html_page
from dpjax.cli.papers.flags import add_store_flag, store_of
from dpjax.cli.train import say
from dpjax.papers import PAPERS, Cell, Outcome, Store, cells, outcome_of
from dpjax.papers.report import FRONT, NOT_RUN, report
from dpjax.papers.report.result_tables import TITLES

__all__ = ["COMMAND", "draw_report", "report_figure"]

_TITLES = {f"{short}.md": TITLES[name] for name, short in PAPERS.items()}
_TITLES |= {FRONT: "All papers", NOT_RUN: "Not run"}
_NAMED = 4  # the number of largest differences at either end that are labelled
_MOST_ACROSS = 5  # panels in a row
_PANEL, _BELOW = 3.0, 3.9  # inches
_LINEAR = 5.0  # points; larger differences make the scale logarithmic
_BAND = {"color": figures.GREY, "alpha": 0.13, "linewidth": 0}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_store_flag(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="where the pages and report.png go; without it, --store"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="the folder of the data sets, to say which are not at hand; without it, DPJAX_DATA "
        "or ~/.cache/dpjax",
    )


def _run(args: argparse.Namespace) -> int:
    store = store_of(args)
    if not store.records:
        raise ValueError(
            f"{args.store} holds no finished runs: `dpjax papers run` trains them, and --store DIR "
            "names another folder, such as docs/results in a checkout of dpjax"
        )
    folder = Path(args.out) if args.out else store.path
    folder.mkdir(parents=True, exist_ok=True)
    pages = report(store, cells(), args.data_dir)
    links = [(_TITLES[name], _html(name)) for name in pages]
    for name, text in pages.items():
        write_atomically(folder / name, text)
        print(folder / name)
        write_atomically(folder / _html(name), html_page(text, links))
        print(folder / _html(name))
    picture = _drawn(store, folder / "report.png")
    if picture:
        print(picture)
    return 0


def _html(name: str) -> str:
    return str(Path(name).with_suffix(".html"))


def _drawn(store: Store, output: Path) -> str | None:
    outcomes = [outcome_of(cell, store) for cell in cells()]
    try:
        draw_report(outcomes, str(output))
    except ImportError as error:
        say(str(error))
        return None
    return str(output)


def draw_report(outcomes: Sequence[Outcome], output: str) -> None:
    """Draws the picture of a report, and writes the file.

    Args:
        outcomes: our results for the cells; cells that were not run are left out.
        output: a .png, .pdf or .svg file.
    """
    figures.check_output(output)
    figures.write(report_figure(outcomes), output)


def report_figure(outcomes: Sequence[Outcome]) -> Any:
    """Returns the picture; each paper has the same colour in all panels."""
    ours = [outcome for outcome in outcomes if outcome.difference is not None]
    groups = _groups(ours)
    rows = max(1, -(-len(groups) // _MOST_ACROSS))
    across = max(1, -(-len(groups) // rows))
    heights = [_PANEL * rows, _BELOW]
    title = "The papers' tables, run again"
    figure, body = figures.headed(13, sum(heights) + 0.72, title, _subtitle(ours))
    if not groups:
        return figure
    above, below = body.subfigures(2, 1, height_ratios=heights)
    panels = list(above.subplots(rows, across, squeeze=False).flat)
    for axes, (cell, own) in zip(panels, groups, strict=False):
        _draw_group(axes, cell, own)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    for axes in panels[::across]:
        axes.set_ylabel("ours, %")
    axes = below.subplots()
    _draw_differences(axes, ours)
    figure.draw_without_rendering()  # computes the panel's height
    _name_largest(axes, ours)
    return figure


def _groups(ours: Sequence[Outcome]) -> list[tuple[Cell, list[Outcome]]]:
    """Returns our numbers by paper and data set, each group with one of its cells."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in sorted(ours, key=lambda outcome: list(PAPERS).index(outcome.cell.paper)):
        found.setdefault((outcome.cell.paper, outcome.cell.data), []).append(outcome)
    return [(own[0].cell, own) for own in found.values()]


def _subtitle(ours: Sequence[Outcome]) -> str:
    within = sum(outcome.within for outcome in ours)
    return (
        f"{len(ours)} printed numbers with one of ours, {within} of them within 1.0 point; bars: "
        "standard deviation over seeds"
    )


def _colour(name: str) -> str:
    return figures.COLOURS[list(PAPERS).index(name)]


def _draw_group(axes: Any, cell: Cell, own: Sequence[Outcome]) -> None:
    printed = np.array([outcome.cell.value for outcome in own])
    ours = np.array([outcome.mean for outcome in own])
    axes.errorbar(
        printed,
        ours,
        yerr=[outcome.deviation or 0.0 for outcome in own],
        xerr=[outcome.cell.spread or 0.0 for outcome in own],
        alpha=0.75,
        **_dots(cell.paper),
    )
    low, high = min(printed.min(), ours.min()), max(printed.max(), ours.max())
    margin = max(0.8, 0.1 * (high - low))
    ends = np.array([low - margin, high + margin])
    axes.plot(ends, ends, color=figures.GREY, linewidth=0.8, zorder=0)
    axes.fill_between(ends, ends - 1, ends + 1, **_BAND)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    within = sum(outcome.within for outcome in own)
    title = f"{TITLES[cell.paper]}\n{cell.dataset}: {within} of {len(own)}"
    figures.tidy(axes, title, "printed, %")
    axes.set_title(title, loc="left", fontsize=11, color=_colour(cell.paper))


def _dots(paper: str) -> dict[str, Any]:
    return {"fmt": "o", "markersize": 4.5, "elinewidth": 0.9, "color": _colour(paper)}


def _draw_differences(axes: Any, ours: Sequence[Outcome]) -> None:
    ordered = _in_order(ours)
    papers = [name for name in PAPERS if any(o.cell.paper == name for o in ours)]
    for name in papers:
        places = [i for i, outcome in enumerate(ordered) if outcome.cell.paper == name]
        own = [ordered[i] for i in places]
        axes.errorbar(
            places,
            [outcome.difference for outcome in own],
            yerr=[outcome.deviation or 0.0 for outcome in own],
            label=TITLES[name],
            **_dots(name),
        )
    axes.axhspan(-1, 1, **_BAND)
    axes.axhline(0, color=figures.GREY, linewidth=0.8)
    figures.tidy(axes, "Ours less printed, in order; grey: within one point", "", "points")
    axes.set_xticks([])
    axes.set_xlim(-1, len(ordered))
    _scale(axes, max(abs(outcome.difference or 0.0) for outcome in ours))
    axes.legend(frameon=False, loc="upper left", ncols=len(papers), handletextpad=0.1)


def _in_order(ours: Sequence[Outcome]) -> list[Outcome]:
    return sorted(ours, key=lambda outcome: outcome.difference or 0.0)


def _scale(axes: Any, most: float) -> None:
    """Makes room for a few large differences, without squeezing the others."""
    if most <= _LINEAR:
        axes.margins(y=0.15)
        return
    axes.set_yscale("symlog", linthresh=2, linscale=1.2)
    shown = [tick for tick in (1, 2, 5, 10, 20, 50) if tick <= 1.3 * most]
    ticks = [*(-tick for tick in reversed(shown)), 0, *shown]
    axes.set_yticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    axes.minorticks_off()
    axes.margins(y=0.15)


def _name_largest(axes: Any, ours: Sequence[Outcome]) -> None:
    """Labels the numbers that differ most from print, at either end."""
    numbered = list(enumerate(_in_order(ours)))
    low = [(i, o) for i, o in numbered[:_NAMED] if (o.difference or 0.0) < -1]
    high = [(i, o) for i, o in numbered[-_NAMED:] if (o.difference or 0.0) > 1]
    _name(axes, low, 0.17, "left")
    _name(axes, high, 0.83, "right")


def _name(axes: Any, named: Sequence[tuple[int, Outcome]], x: float, side: str) -> None:
    points = [(i, outcome.difference or 0.0) for i, outcome in named]
    if not points:
        return
    heights = axes.transAxes.inverted().transform(axes.transData.transform(points))[:, 1]
    gap = 13 / (axes.get_window_extent().height / axes.figure.dpi * 72)
    for (i, outcome), height in zip(named, figures.spread(heights, gap), strict=True):
        cell, colour = outcome.cell, _colour(outcome.cell.paper)
        budget = f"ε = {cell.epsilon:g}" if cell.sigma0 is None else f"σ₀ = {cell.sigma0:g}"
        axes.annotate(
            f"table {cell.table}, {cell.dataset}, {budget}: {cell.method}",
            (i, outcome.difference),
            (x, height),
            textcoords="axes fraction",
            ha=side,
            va="center",
            fontsize=9,
            color=colour,
            arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": colour, "shrinkB": 3},
        )


COMMAND = Command(
    _add_flags,
    _run,
    ("dpjax papers report", "dpjax papers report --store runs/mine --out runs/mine/report"),
)
