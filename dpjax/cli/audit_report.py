"""The results of an audit as a table, a Markdown page, plain data, and a picture."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax.accounting.bound import rounded_down, rounded_up
from dpjax.audit import Row, claimed_tradeoff, measured_tradeoff
from dpjax.cli import figures, printing

__all__ = ["data", "draw", "markdown", "text"]

_DELTAS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
_HEADER = ("method", "attack", "delta", "claimed", "at least", "ratio", "half the noise", "verdict")


def text(rows: Sequence[Row], confidence: float) -> str:
    """Returns the table as text, with an explanation of its terms."""
    return f"{printing.table(_HEADER, _cells(rows))}\n\n{_notes(rows, confidence)}"


def markdown(rows: Sequence[Row], confidence: float, command: str) -> str:
    """Returns the table as a page, with the command that reproduces it."""
    lines = [_HEADER, ("---",) * len(_HEADER), *_cells(rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"# Audit\n\n`{command}`\n\n{table}\n\n{_notes(rows, confidence)}\n"


def data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the rows as plain data."""
    return [
        {
            "method": row.finding.name,
            "attack": row.finding.attack,
            "detail": row.finding.detail,
            "claimed": row.finding.claimed,
            "source": row.finding.source,
            "bound": row.finding.bound,
            "twin": None if row.twin is None else row.twin.bound,
            "confidence": row.finding.confidence,
            "tried": row.finding.tried,
            "delta": row.finding.delta,
            "draws": row.finding.draws,
            "verdict": row.verdict,
        }
        for row in rows
    ]


def _cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [
        (
            row.finding.name,
            row.finding.attack,
            f"{row.finding.delta:g}",
            rounded_up(row.finding.claimed) + " printed" * (row.finding.source == "printed"),
            rounded_down(row.finding.bound),
            f"{row.finding.bound / row.finding.claimed:.2f}" if row.finding.claimed else "-",
            "-" if row.twin is None else _twin(row),
            row.verdict,
        )
        for row in rows
    ]


def _twin(row: Row) -> str:
    if row.twin is None:
        return "-"
    return f"{rounded_down(row.twin.bound)}{', found' if row.twin.refuted else ''}"


def _notes(rows: Sequence[Row], confidence: float) -> str:
    most = max(row.finding.tried for row in rows)
    lines = [
        f"'at least': with a confidence of {confidence:g} for all rows together, the epsilon of "
        "what ran is at least this",
        f"the risk is shared by all bounds that were tried, up to {most} for a row; a step is "
        "shown at another delta only if the claim is refuted there and not at its own",
        "'half the noise': the same attack on a twin with half the noise under the same claim",
        "'holds' says that these attacks do not refute the claim; no audit proves one",
    ]
    if any(row.finding.source == "printed" for row in rows):
        lines.append("printed: a paper's formula for a method that has no guarantee")
    return "\n".join(f"- {line}" for line in lines)


def draw(rows: Sequence[Row], output: str) -> None:
    """Draws one method's attacks, or the bounds of many methods, and writes the file."""
    if len({row.finding.name for row in rows}) == 1:
        _draw_attacks(rows, output)
    else:
        _draw_bounds(rows, output)


def _draw_attacks(rows: Sequence[Row], output: str) -> None:
    first = rows[0].finding
    verdicts = ", ".join(f"{row.finding.attack}: {row.verdict}" for row in rows)
    figure, body = figures.headed(10, 3.4 * len(rows) + 0.9, f"Audit of {first.name}", verdicts)
    panels = body.subplots(len(rows), 2, squeeze=False)
    for row, (left, right) in zip(rows, panels, strict=True):
        _draw_scores(left, row)
        _draw_tradeoff(right, row)
    figures.write(figure, output)


def _draw_scores(axes: Any, row: Row) -> None:
    included, excluded = row.finding.included, row.finding.excluded
    both = np.concatenate([included, excluded])
    low, high = np.quantile(both[np.isfinite(both)], [0.001, 0.999])
    bins = np.linspace(low, high if high > low else low + 1, 60)
    for scores, label, colour in (
        (excluded, "without the canary", figures.COLOURS[0]),
        (included, "with it", figures.COLOURS[1]),
    ):
        axes.hist(np.clip(scores, bins[0], bins[-1]), bins, color=colour, alpha=0.55, label=label)
    axes.locator_params(axis="x", nbins=6)
    figures.tidy(axes, f"{row.finding.attack}: scores", "score of the attack", "draws")
    axes.set_ylim(top=1.3 * axes.get_ylim()[1])  # room for the legend
    axes.legend(frameon=False, loc="upper left")


def _draw_tradeoff(axes: Any, row: Row) -> None:
    found = row.finding
    claims = [(found.claim_at(delta), delta) for delta in _DELTAS]
    positive, negative = measured_tradeoff(found.included, found.excluded)
    grid = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 400)])
    axes.plot(grid, claimed_tradeoff(claims, grid), color=figures.GREY, label="claimed: not below")
    axes.plot(positive, negative, color=figures.COLOURS[1], label="measured")
    if row.twin is not None:
        twin = measured_tradeoff(row.twin.included, row.twin.excluded)
        axes.plot(*twin, color=figures.COLOURS[1], linestyle=":", label="half the noise")
    words = f"claimed {rounded_up(found.claimed)}, at least {rounded_down(found.bound)}"
    axes.set_xscale("symlog", linthresh=1e-4)
    axes.set_xlim(0, 1)
    figures.tidy(axes, f"epsilon {words}", "false positive rate", "false negative rate")
    axes.legend(frameon=False, loc="lower left")


def _draw_bounds(rows: Sequence[Row], output: str) -> None:
    steps = [row for row in rows if row.finding.attack == rows[0].finding.attack]
    figure, body = figures.headed(
        9,
        0.28 * len(steps) + 1.8,
        "Lower bounds on epsilon",
        f"{steps[0].finding.attack}: claimed, found, and found of a twin with half the noise",
    )
    axes = body.subplots()
    places = np.arange(len(steps))[::-1]
    axes.plot([r.finding.claimed for r in steps], places, "|", ms=13, color=figures.GREY)
    axes.plot([r.finding.bound for r in steps], places, "o", color=figures.COLOURS[0])
    twins = [np.nan if r.twin is None else r.twin.bound for r in steps]
    axes.plot(twins, places, "x", color=figures.COLOURS[1])
    axes.set_yticks(places, [row.finding.name for row in steps])
    figures.tidy(axes, "| claimed   o at least   x half the noise, at least", "epsilon")
    axes.set_xlim(left=0)
    figures.write(figure, output)
