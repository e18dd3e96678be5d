"""Plain text: tables, their footnotes, and numbers that are rounded to the safe side."""

from collections.abc import Sequence
from typing import Any

from dpjax.accounting.bound import rounded_down

__all__ = ["at_least", "footnotes", "pairs", "table", "yes_or_no"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table with columns as wide as they need to be.

    >>> print(table(("way", "epsilon"), (("one run", "2"), ("grid", "-"))))
    way      epsilon
    one run  2
    grid     -
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def pairs(items: Sequence[tuple[str, str]]) -> str:
    """Returns names with their values, one to a line.

    >>> print(pairs([("steps", "100"), ("delta", "1e-05")]))
    steps  100
    delta  1e-05
    """
    width = max(len(name) for name, _ in items)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in items)


def footnotes(notes: Sequence[str]) -> tuple[list[str], str]:
    """Returns a mark for each note, "" for an empty one, and the lines that the marks point to.

    >>> footnotes(["", "not proven", "not proven"])
    (['', ' [1]', ' [1]'], '\\n\\n[1] not proven')
    """
    distinct = list(dict.fromkeys(note for note in notes if note))
    marks = [f" [{distinct.index(note) + 1}]" if note else "" for note in notes]
    lines = "".join(f"\n[{i}] {note}" for i, note in enumerate(distinct, start=1))
    return marks, f"\n{lines}" if lines else ""


def at_least(value: float) -> str:
    """Writes a lower bound, never larger than it is; "-" for none.

    >>> at_least(1.82897), at_least(0.0)
    ('1.828', '-')
    """
    return rounded_down(value) if value > 0 else "-"


def yes_or_no(value: Any) -> str:
    """Returns "yes" or "no"."""
    return "yes" if value else "no"
