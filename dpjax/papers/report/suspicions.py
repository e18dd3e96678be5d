"""Differences that were looked into: one suspected setting changed at a time."""

from collections.abc import Sequence

from dpjax.papers.outcome import Outcome, outcome_of
from dpjax.papers.printed_numbers import cell_named
from dpjax.papers.report import markdown
from dpjax.papers.store import Store
from dpjax.papers.suspected_settings import SUSPECTED_SETTINGS, SuspectedSetting

__all__ = ["suspicions"]

_LEGEND = """\
Runs with a suspected setting changed (`dpjax papers explain` makes them, with seed 1; the mean,
where other seeds are there too). "Nearer" says by how much they came nearer to print. A number that
was fitted to a row on its own is no explanation of it, and stands apart."""

_FITS = """\
**Fitted row by row.** Each row has a value of its own here, which the paper does not have: that
such a value exists says nothing of why the printed one does not give the number."""


def suspicions(outcomes: Sequence[Outcome], store: Store) -> str:
    """Returns the suspicions about a paper's cells that were tried; empty for none.

    Args:
        outcomes: our results for the paper's cells.
        store: the finished runs.
    """
    names = {outcome.cell.name for outcome in outcomes}
    tried = [
        each
        for each in SUSPECTED_SETTINGS
        if each.cell in names and each.accuracy(store) is not None
    ]
    causes = [_row(each, store) for each in tried if not each.fitted]
    fits = [_row(each, store) for each in tried if each.fitted]
    header = ["cell", "printed", "ours", "changed", "then", "nearer", "suspicion"]
    parts = ["## Differences that were looked into", _LEGEND] if tried else []
    if causes:
        parts.append(markdown.table(header, causes))
    if fits:
        parts += [_FITS, markdown.table(header, fits)]
    return "\n\n".join(parts)


def _row(suspected: SuspectedSetting, store: Store) -> list[str]:
    outcome = outcome_of(cell_named(suspected.cell), store)
    printed, then = outcome.cell.value, suspected.accuracy(store)
    return [
        suspected.cell,
        f"{printed:.2f}",
        markdown.plus_minus(outcome.mean, outcome.deviation),
        suspected.changed,
        "" if then is None else f"{then:.2f}",
        _nearer(printed, outcome.mean, then),
        suspected.suspicion,
    ]


def _nearer(printed: float, ours: float | None, then: float | None) -> str:
    """Returns how much nearer the changed run is to the printed number, in points."""
    if ours is None or then is None:
        return ""
    gained = abs(ours - printed) - abs(then - printed)
    return f"{gained:+.2f} of {abs(ours - printed):.2f}"
