"""Markdown for reports: tables, numbers and footnotes."""

from collections.abc import Mapping, Sequence

from dpjax.accounting.bound import rounded_up

__all__ = ["counted", "epsilon", "footnotes", "plus_minus", "points", "setting", "table"]

# Arguments that are left out of lists: the name itself, and what the tables show elsewhere.
_ELSEWHERE = ("name", "noise_multiplier", "steps_per_epoch", "epochs")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table.

    >>> print(table(("method", "ours"), [("DP-SGD", "95.1")]))
    | method | ours |
    |---|---|
    | DP-SGD | 95.1 |
    """
    lines = [header, ["---"] * len(header), *rows]
    written = ["|".join(cell if cell == "---" else f" {cell} " for cell in line) for line in lines]
    return "\n".join(f"|{line}|" for line in written)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def plus_minus(mean: float | None, deviation: float | None) -> str:
    """Returns a number with its spread, if it has one.

    >>> plus_minus(95.618, 0.151), plus_minus(95.6, None), plus_minus(None, None)
    ('95.62 ± 0.15', '95.60', '')
    """
    if mean is None:
        return ""
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def points(difference: float | None) -> str:
    """Returns a difference with its sign, in bold if it is at most one point.

    >>> points(-0.5), points(1.234), points(None)
    ('**-0.50**', '+1.23', '')
    """
    if difference is None:
        return ""
    return f"**{difference:+.2f}**" if abs(difference) <= 1.0 else f"{difference:+.2f}"


def epsilon(values: Sequence[float | None]) -> str:
    """Returns the largest epsilon of some runs, rounded up.

    >>> epsilon([1.99999, 1.5]), epsilon([2426.33]), epsilon([None]), epsilon([])
    ('2', '2,427', 'none', '')
    """
    if not values:
        return ""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "none"
    text = rounded_up(max(known), 4)
    return f"{float(text):,.0f}" if max(known) >= 1000 else text


def setting(values: Mapping[str, object]) -> str:
    """Returns arguments in short form, without the names of their tables.

    >>> setting({"method.threshold": 0.5, "optimizer.learning_rate": 4.0})
    'threshold 0.5, learning rate 4'
    """
    short = {path.rpartition(".")[2]: value for path, value in values.items()}
    return ", ".join(
        f"{name.replace('learning_rate', 'learning rate')} {_value(value)}"
        for name, value in short.items()
        if name not in _ELSEWHERE
    )


def footnotes(notes: Sequence[str]) -> tuple[list[str], str]:
    """Returns a mark for each note, "" for an empty note, and the list of footnotes.

    >>> footnotes(["", "ten epochs", "ten epochs"])
    (['', '[1]', '[1]'], '[1] ten epochs')
    """
    distinct = list(dict.fromkeys(note for note in notes if note))
    marks = [f"[{distinct.index(note) + 1}]" if note else "" for note in notes]
    return marks, "<br>\n".join(f"[{i}] {note}" for i, note in enumerate(distinct, start=1))


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value)) if len(value) < 4 else f"({len(value)} values)"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
