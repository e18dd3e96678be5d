"""Shared parts of figures: colours, headings, labels. Matplotlib is an optional extra."""

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "ACCOUNTANTS",
    "COLOURS",
    "GREY",
    "End",
    "check_output",
    "headed",
    "label_ends",
    "new_figure",
    "percent",
    "plain_ticks",
    "scale_by_range",
    "spread",
    "stripe",
    "style",
    "tidy",
    "typeset",
    "write",
]

# Okabe and Ito's colour-blind-safe palette, without the yellow, which is invisible on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222")
ACCOUNTANTS = {"pld": "PLD", "rdp": "RDP", "tcdp": "tCDP", "gdp": "GDP"}
_STYLES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 1.5, 1, 1.5)))
_FORMATS = ("png", "pdf", "svg")
_DASH = 9.0  # points
_WIDE = 20.0  # an axis is logarithmic from this ratio of largest to smallest value
_MOST_DECADES = 3.5  # up to this many, a logarithmic axis has ticks between powers of ten
GREY = "#555555"
_LEADER = {"arrowstyle": "-", "linewidth": 0.7, "shrinkB": 0, "relpos": (0, 0.5)}


def new_figure(width: float, height: float) -> Any:
    """Returns an empty matplotlib figure, size in inches; made without pyplot or a display."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install dpjax[plots]") from error
    return Figure(figsize=(width, height), layout="constrained")


def headed(width: float, height: float, title: str, subtitle: str, banner: str = "") -> Any:
    """Returns a figure with a heading, and the subfigure below it to draw on.

    Args:
        width: the width in inches.
        height: the height in inches.
        title: what the figure shows.
        subtitle: what a reader must know about it.
        banner: a warning across the top, white on red; empty for none.
    """
    figure = new_figure(width, height)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.09)
    warning = textwrap.wrap(banner, int(10 * width))
    heights = [0.18 + 0.2 * len(warning)] * bool(warning) + [0.72]
    *above, body = figure.subfigures(
        len(heights) + 1, 1, height_ratios=[*heights, height - sum(heights)]
    )
    if warning:
        above[0].set_facecolor("#b00020")
        words = {"ha": "center", "va": "center", "color": "white", "weight": "bold"}
        above[0].text(0.5, 0.5, "\n".join(warning), fontsize=11, **words)
    left = 0.15 / width
    above[-1].text(left, 0.68, typeset(title), va="center", fontsize=14, weight="bold")
    above[-1].text(left, 0.24, typeset(subtitle), va="center", fontsize=11, color=GREY)
    return figure, body


def typeset(text: str) -> str:
    """Returns text with typographic symbols in place of plain ones.

    >>> typeset("epsilon = 2 at delta = 1e-05 (pld), 95.6 +- 0.2%, all published <= 3")
    'ε = 2 at δ = 1e-05 (PLD), 95.6 ± 0.2%, all published ≤ 3'
    """
    signs = {"<=": "≤", "+-": "±", "epsilon =": "ε =", "delta =": "δ ="}
    for plain, sign in signs.items():
        text = text.replace(plain, sign)
    return re.sub(r"\((\w+)\)", lambda found: f"({ACCOUNTANTS.get(found[1], found[1])})", text)


def check_output(output: str) -> None:
    """Raises ValueError unless a file name ends in a supported figure format."""
    ending = Path(output).suffix.removeprefix(".").lower()
    if ending not in _FORMATS:
        raise ValueError(f"--output = {output}: format {ending!r}: expected .png, .pdf or .svg")


def write(figure: Any, output: str) -> None:
    """Writes a figure to a file, in the format of the file's ending."""
    check_output(output)
    figure.savefig(output, dpi=150)


def style(i: int) -> dict[str, Any]:
    """Returns colour and dashes of the i-th line; the first 28 are all different."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": _STYLES[i // len(COLOURS) % 4]}


def tidy(axes: Any, title: str, across: str, up: str = "") -> None:
    """Sets a panel's title and labels, and removes clutter."""
    axes.set_title(title, loc="left", fontsize=12)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def percent(axis: Any) -> None:
    """Labels an axis of fractions in percent, with as many digits as its ticks need."""
    axis.set_major_formatter(lambda x, _: f"{round(100 * x, 6):g}%")


def stripe(lines: Sequence[Any]) -> None:
    """Draws coinciding lines, which would hide all but the last, as alternating dashes."""
    piles: list[list[Any]] = []
    for line in lines:
        pile = next((pile for pile in piles if _same(line, pile[0])), None)
        if pile is None:
            piles.append([line])
        else:
            pile.append(line)
    for pile in piles:
        for place, line in enumerate(pile if len(pile) > 1 else []):
            dash = _DASH / line.get_linewidth()  # matplotlib multiplies by the width
            line.set_linestyle((dash * place, (dash, dash * (len(pile) - 1))))


def _same(line: Any, other: Any) -> bool:
    ours, theirs = line.get_xydata(), other.get_xydata()
    return ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=5e-3, equal_nan=True)


def scale_by_range(axes: Any, values: Sequence[float]) -> None:
    """Makes the y axis logarithmic if the values span a wide range, or starts it at zero."""
    finite = [value for value in values if 0 < value < np.inf]
    if finite and max(finite) > _WIDE * min(finite):
        axes.set_yscale("log")
        axes.set_ylim(min(finite) / 1.3, max(finite) * 1.3)
    elif finite:
        axes.set_ylim(0, 1.15 * max(finite))


def plain_ticks(axes: Any) -> None:
    """Labels a logarithmic y axis 0.2, 0.5, 1, 2 instead of 2 x 10^-1, ...

    Ticks are at 1, 2 and 5 of each decade, or only at powers of ten if there are many decades. A
    linear axis is not changed.
    """
    if axes.get_yscale() != "log":
        return
    low, high = axes.get_ylim()
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    leading = (1, 2, 5) if math.log10(high / low) < _MOST_DECADES else (1,)
    ticks = [m * 10.0**k for k in range(first, last + 1) for m in leading]
    inside = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(inside, [f"{tick:g}" for tick in inside])
    axes.minorticks_off()


@dataclass(frozen=True)
class End:
    """The end of a line.

    Attributes:
        name: the label.
        x: the line's last x.
        y: the line's last y.
        colour: the line's colour.
    """

    name: str
    x: float
    y: float
    colour: str


def label_ends(axes: Any, ends: Sequence[End], fontsize: float = 10.5) -> None:
    """Writes names to the right of a panel, each near its line's end, without overlap.

    Call it after the panel's limits are set and `figure.draw_without_rendering()` has laid it out.
    """
    height = axes.get_window_extent().height / axes.figure.dpi * 72
    drawn = [end for end in ends if np.isfinite(end.y)]
    corners = axes.transData.transform([(end.x, end.y) for end in drawn] or np.empty((0, 2)))
    places = axes.transAxes.inverted().transform(corners)[:, 1] if drawn else []
    for end, place in zip(drawn, spread(places, 1.25 * fontsize / height), strict=True):
        axes.annotate(
            end.name,
            (end.x, end.y),
            (1.05, place),
            textcoords="axes fraction",
            va="center",
            fontsize=fontsize,
            color=end.colour,
            annotation_clip=False,
            arrowprops={**_LEADER, "color": end.colour},
        )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Moves heights in [0, 1] apart by at least `gap`, in their order and as little as possible.

    Least squares under y_(i+1) >= y_i + gap: isotonic regression of the sorted p_i - i gap, by
    y_i = i gap + max_(j<=i) min_(k>=i) mean(p_j - j gap, ..., p_k - k gap).

    Args:
        places: the preferred heights of the labels.
        gap: the height of a label; reduced if the labels do not fit.

    Example:
        >>> spread([0.5, 0.9, 0.5], 0.1)
        [0.45, 0.9, 0.55]
    """
    count = len(places)
    gap = min(gap, 1 / max(1, count - 1))
    order = np.argsort(places, kind="stable")
    wanted = np.asarray(places, float)[order] - gap * np.arange(count)
    moved = [
        max(min(wanted[j : k + 1].mean() for k in range(i, count)) for j in range(i + 1))
        for i in range(count)
    ]
    result = np.empty(count)
    result[order] = np.clip(moved, 0, 1 - gap * max(0, count - 1)) + gap * np.arange(count)
    return [round(float(place), 6) for place in result]
