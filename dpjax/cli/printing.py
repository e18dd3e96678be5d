"""Output of commands: text tables, or JSON at full precision."""

import json
import math
from collections.abc import Sequence
from typing import Any

from dpjax.accounting import Bound
from dpjax.accounting.bound import rounded_down

__all__ = ["at_least", "bound_data", "footnotes", "pairs", "show", "table", "yes_or_no"]


def show(as_json: bool, text: str, data: dict[str, Any]) -> None:
    """Prints `data` as JSON, or `text`."""
    print(json.dumps(_finite(data), indent=1, allow_nan=False) if as_json else text)


def bound_data(bound: Bound) -> dict[str, Any]:
    """Returns a bound on epsilon as plain data."""
    return {
        "epsilon": bound.upper,
        "lower": bound.lower,
        "accountant": bound.accountant,
        "relation": bound.relation,
        "guarantee": bound.guarantee,
        "note": bound.note,
    }


def _finite(value: Any) -> Any:
    """Replaces infinity by "inf" and NaN by None, since JSON has no numbers for them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table with aligned columns.

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
    """Returns names with their values, one per line.

    >>> print(pairs([("steps", "100"), ("delta", "1e-05")]))
    steps  100
    delta  1e-05
    """
    width = max(len(name) for name, _ in items)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in items)


def footnotes(notes: Sequence[str]) -> tuple[list[str], str]:
    """Returns a mark for each note, "" for an empty note, and the footnotes' lines.

    >>> footnotes(["", "not proven", "not proven"])
    (['', ' [1]', ' [1]'], '\\n\\n[1] not proven')
    """
    distinct = list(dict.fromkeys(note for note in notes if note))
    marks = [f" [{distinct.index(note) + 1}]" if note else "" for note in notes]
    lines = "".join(f"\n[{i}] {note}" for i, note in enumerate(distinct, start=1))
    return marks, f"\n{lines}" if lines else ""


def at_least(value: float) -> str:
    """Returns a lower bound as text, rounded down; "-" for none.

    >>> at_least(1.82897), at_least(0.0)
    ('1.828', '-')
    """
    return rounded_down(value) if value > 0 else "-"


def yes_or_no(value: Any) -> str:
    """Returns "yes" or "no"."""
    return "yes" if value else "no"
