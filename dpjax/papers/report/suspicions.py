"""Investigated differences: one suspected setting is changed at a time."""

from collections.abc import Sequence

from dpjax.papers.outcome import Outcome, outcome_of
from dpjax.papers.printed_numbers import PAPERS, cell_named
from dpjax.papers.report import markdown
from dpjax.papers.store import Store
from dpjax.papers.suspected_settings import SUSPECTED_SETTINGS, SuspectedSetting

__all__ = ["far_from_print", "suspicions"]

_LEGEND = """\
Runs with a suspected setting changed (`dpjax papers explain` makes them, with seed 1; the mean,
where other seeds are there too). "Nearer" says by how much they came nearer to print. A number that
was fitted to a row on its own is no explanation of it, and stands apart."""

_FITS = """\
**Fitted row by row.** Each row has a value of its own here, which the paper does not have: that
such a value exists says nothing of why the printed one does not give the number."""


def suspicions(outcomes: Sequence[Outcome], store: Store) -> str:
    """Returns the suspicions about a paper's cells that were tried; empty if none.

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


_FAR = """\
Every experiment that is more than one point from a number it stands behind, the farthest first.
*Tried* is the run with a suspected setting changed that came nearest (one seed, unless the paper's
page says otherwise). It *explains* the difference if it is within one point of print and at least
half of the difference is gone, and if it does the same for every other method of the table that it
was tried on. Settings that were fitted to a row on its own do not count."""


def far_from_print(outcomes: Sequence[Outcome], store: Store) -> str:
    """Returns the experiments that are more than a point from print, and what was tried.

    Args:
        outcomes: our results for the cells.
        store: the finished runs.
    """
    far: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.difference is not None and not outcome.within:
            far.setdefault(outcome.records[0].experiment, []).append(outcome)
    if not far:
        return ""
    worst = [max(own, key=lambda o: abs(o.difference or 0.0)) for own in far.values()]
    worst.sort(key=lambda o: -abs(o.difference or 0.0))
    header = ["cell", "printed", "ours", "difference", "seeds", "tried", "then", "explained"]
    rows = [_far_row(outcome, store) for outcome in worst]
    explained = sum(row[-1] == "yes" for row in rows)
    count = (
        f"{markdown.counted(len(rows), 'distinct experiment')} more than a point from print; a run "
        f"explains {explained} of these differences."
    )
    return "\n\n".join(["## Far from print", f"**{count}** {_FAR}", markdown.table(header, rows)])


def _far_row(outcome: Outcome, store: Store) -> list[str]:
    cell = outcome.cell
    tried = [
        (abs(then - cell.value), then, each)
        for each in SUSPECTED_SETTINGS
        if each.cell == cell.name and not each.fitted and (then := each.accuracy(store)) is not None
    ]
    start = [
        f"[{cell.name}]({PAPERS[cell.paper]}.md)",
        f"{cell.value:.2f}",
        markdown.plus_minus(outcome.mean, outcome.deviation),
        markdown.points(outcome.difference),
        str(len(outcome.records)),
    ]
    if not tried:
        return [*start, "nothing yet", "", "no"]
    _, then, nearest = min(tried, key=lambda entry: entry[0])
    explained = "no"
    if _explains(nearest, store):
        alike = [each for each in SUSPECTED_SETTINGS if _is_alike(each, nearest)]
        others = [each for each in alike if each.accuracy(store) is not None]
        everywhere = all(_explains(each, store) for each in others)
        explained = "yes" if everywhere else "no: other methods keep theirs"
    return [*start, nearest.changed, f"{then:.2f}", explained]


def _is_alike(one: SuspectedSetting, other: SuspectedSetting) -> bool:
    """Returns whether two suspicions make the same change within one table, data and budget."""
    places = (each.cell.rpartition("/")[0] for each in (one, other))
    return len(set(places)) == 1 and one.values == other.values


def _explains(suspected: SuspectedSetting, store: Store) -> bool:
    """Returns whether a run comes within a point of print and halves the difference."""
    outcome, then = outcome_of(cell_named(suspected.cell), store), suspected.accuracy(store)
    if then is None or outcome.difference is None:
        return False
    left = abs(then - outcome.cell.value)
    return left <= min(1.0, abs(outcome.difference) / 2)


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
