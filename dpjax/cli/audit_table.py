"""The table of an audit: for people, as Markdown, and as data."""

from collections.abc import Sequence
from typing import Any

from dpjax.accounting.bound import rounded_down, rounded_up
from dpjax.audit import Row
from dpjax.cli import tables

__all__ = ["data", "markdown", "text"]

_HEADER = ("method", "attack", "delta", "claimed", "at least", "ratio", "half the noise", "verdict")


def text(rows: Sequence[Row], confidence: float) -> str:
    """Returns the table for people, and what its words mean."""
    return f"{tables.table(_HEADER, _cells(rows))}\n\n{_notes(rows, confidence)}"


def markdown(rows: Sequence[Row], confidence: float, command: str) -> str:
    """Returns the table as a page, with the command that makes it again."""
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
