"""The part of a report on suspicions: one setting changed, and what it changed."""

from dpjax.reproduce.explanations import EXPLANATIONS, Explanation
from dpjax.reproduce.outcome import outcome_of
from dpjax.reproduce.printed import cell_named
from dpjax.reproduce.report import markdown
from dpjax.reproduce.store import Store

__all__ = ["explained"]

_LEGEND = """\
A cell that does not come out as printed counts as explained only with a run that changes the
suspected setting (`dpjax reproduce explain` makes these runs, with seed 1), and with what it
changed. "Explains" says how much of the difference went away with it."""


def explained(store: Store) -> str:
    """Returns the suspicions that were tried, and what people wrote of them; empty for neither.

    Args:
        store: the finished runs; what is written in ``explained.md`` beside them is taken as it is.
    """
    rows = [_row(each, store) for each in EXPLANATIONS if each.accuracy(store) is not None]
    parts = []
    if rows:
        header = ["cell", "printed", "ours", "changed", "then", "explains", "suspicion"]
        parts.append(f"{_LEGEND}\n\n{markdown.table(header, rows)}")
    file = store.path / "explained.md"
    if file.exists():
        parts.append(file.read_text(encoding="utf-8").strip())
    return "\n\n".join(["## Explained differences", *parts]) if parts else ""


def _row(explanation: Explanation, store: Store) -> list[str]:
    outcome = outcome_of(cell_named(explanation.cell), store)
    printed, then = outcome.cell.accuracy, explanation.accuracy(store)
    return [
        explanation.cell,
        f"{printed:.2f}",
        markdown.plus_minus(outcome.mean, outcome.deviation),
        explanation.changed,
        "" if then is None else f"{then:.2f}",
        _share(printed, outcome.mean, then),
        explanation.suspicion,
    ]


def _share(printed: float, ours: float | None, then: float | None) -> str:
    """Returns how much nearer the changed run is to the printed number, in points."""
    if ours is None or then is None:
        return ""
    gained = abs(ours - printed) - abs(then - printed)
    return f"{gained:+.2f} of {abs(ours - printed):.2f}"
