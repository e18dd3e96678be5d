"""The printed numbers beside ours, table by table, and the differences that were looked into."""

import statistics
from collections.abc import Callable, Sequence

from dpjax.papers.auto_dp_epsilon import auto_dp_sgd_epsilon_as_printed
from dpjax.papers.outcome import Outcome, outcome_of
from dpjax.papers.printed_numbers import cell_named, training_size
from dpjax.papers.recipes import auto_dp
from dpjax.papers.report import markdown
from dpjax.papers.store import Store
from dpjax.papers.suspected_settings import SUSPECTED_SETTINGS, SuspectedSetting

__all__ = ["TITLES", "explained_differences", "results"]

TITLES = {
    "DC-SGD": "DC-SGD",
    "Lin": "Lin et al.",
    "AutoDP": "Auto DP-SGD",
    "PSASC": "DP-PSASC",
    "AutoClip": "Automatic Clipping",
    "De": "De et al.",
}
"""The papers' names in print."""

_LEGEND = """\
Accuracies are in percent on the test set, ours as mean ± standard deviation over the seeds; a
difference (ours less printed) in bold is at most one point. ε of the run is what the accountants
say of what ran, rounded up: by RDP, which set the noise, and by PLD. Numbers in brackets point to
what a paper leaves open and what is taken here."""

_DIFFERENCES_LEGEND = """\
A cell that does not come out as printed counts as explained only with a run that changes the
suspected setting (`dpjax papers explain` makes these runs, with seed 1), and with what it
changed. "Explains" says how much of the difference went away with it."""

# What a reader of a table must know.
_REMARKS = {
    "dc-sgd/II": "The ε of the table is that of the whole search by Liu and Talwar's theorem; the "
    "ε of a run is that of a single one of its runs.",
    "dc-sgd/III": "The ε of the table is that of all G runs of the grid composed by RDP; the ε of "
    "a run is that of a single one of them.",
    "auto-clip/1": "The printed ± is half a 95% confidence interval over five runs.",
}
_AS_PRINTED = """\
σ₀ is the paper's first noise multiplier. The printed ε of the Auto DP rows comes from the paper's
own formula; beside it stands that formula's value with a threshold of 1 (*as printed,
no guarantee*: the method has no bound on what an example contributes, so no epsilon exists). The
sound version clips, with the same noise schedule, and its ε is a guarantee."""

_Column = tuple[str, Callable[[Outcome], str]]


def results(outcomes: Sequence[Outcome]) -> str:
    """Returns a section for each table with a run of ours, with those rows that have one.

    Args:
        outcomes: our results for the cells.
    """
    tables: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.records or outcome.sound:
            tables.setdefault(outcome.cell.table_name, []).append(outcome)
    sections, explained = [], False
    for name, rows in tables.items():
        remarks = [_REMARKS[name]] if name in _REMARKS else []
        if rows[0].cell.paper == "AutoDP" and not explained:
            remarks, explained = [*remarks, _AS_PRINTED], True
        sections.append(_section(name, rows, remarks))
    return "\n\n".join(["## Printed and ours", _LEGEND, *sections])


def _section(name: str, rows: Sequence[Outcome], remarks: Sequence[str]) -> str:
    marks, notes = markdown.footnotes([row.recipe.ours for row in rows])
    columns = _columns(rows)
    header = [title for title, _ in columns]
    body = [
        [*(text(row) for _, text in columns), mark] for row, mark in zip(rows, marks, strict=True)
    ]
    cell = rows[0].cell
    return "\n\n".join(
        [
            f"### {TITLES[cell.paper]}, table {cell.table}",
            f"Again: `dpjax papers run {name} --rows {_rows(rows)} --seeds 3`.",
            *remarks,
            markdown.table([*header, "notes"], body),
            notes,
        ]
    )


def _rows(rows: Sequence[Outcome]) -> str:
    """Returns the data sets as parts of the cells' names."""
    place = rows[0].cell.table_name.count("/") + 1
    return ",".join(dict.fromkeys(row.cell.name.split("/")[place] for row in rows))


def _columns(rows: Sequence[Outcome]) -> list[_Column]:
    columns: list[_Column] = [
        ("data, model", lambda row: f"{row.cell.dataset}, {row.cell.model}"),
        *_budget_columns(rows),
        ("method", lambda row: row.cell.method),
        ("printed", lambda row: markdown.plus_minus(row.cell.value, row.cell.spread)),
        ("ours", lambda row: markdown.plus_minus(row.mean, row.deviation)),
        ("difference", lambda row: markdown.points(row.difference)),
        ("seeds", lambda row: str(len(row.records))),
        ("ε of the run, RDP", lambda row: markdown.epsilon([r.epsilon_rdp for r in row.records])),
        ("PLD", lambda row: markdown.epsilon([r.epsilon_pld for r in row.records])),
    ]
    if any(auto_dp.decay_of(row.cell) is not None for row in rows):
        columns += [
            ("ε by its formula", _as_printed),
            ("sound version", _sound),
            ("its ε, RDP", lambda row: markdown.epsilon([r.epsilon_rdp for r in row.sound])),
            ("its ε, PLD", lambda row: markdown.epsilon([r.epsilon_pld for r in row.sound])),
        ]
    return [*columns, ("with", _chosen)]


def _budget_columns(rows: Sequence[Outcome]) -> list[_Column]:
    if rows[0].cell.sigma0 is None:
        return [("ε", lambda row: f"{row.cell.epsilon:g}")]
    return [
        ("σ₀", lambda row: f"{row.cell.sigma0:g}"),
        ("printed ε", lambda row: f"{row.cell.epsilon:g}"),
    ]


def _sound(row: Outcome) -> str:
    if not row.sound:
        return ""
    accuracies = [100 * record.accuracy for record in row.sound]
    deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    return markdown.plus_minus(row.sound_mean, deviation)


def _as_printed(row: Outcome) -> str:
    """Returns what the paper's formula says of its own run, with a threshold of one."""
    cell, experiment, decay = row.cell, row.recipe.experiment, auto_dp.decay_of(row.cell)
    if decay is None or experiment is None or cell.sigma0 is None:
        return ""
    batch = experiment.train.batch_size or 1
    epochs = auto_dp.EPOCHS[cell.data]
    size = training_size(cell.data)
    return f"{auto_dp_sgd_epsilon_as_printed(decay, cell.sigma0, size, batch, epochs).epsilon:.3g}"


def _chosen(row: Outcome) -> str:
    """Returns the numbers of the method, and the learning rate where it was chosen."""
    if row.recipe.experiment is None:
        return ""
    return markdown.setting({**row.recipe.experiment.method, **_plain(row)})


def _plain(row: Outcome) -> dict[str, object]:
    return {path.removeprefix("method."): value for path, value in (row.choice or {}).items()}


def explained_differences(store: Store) -> str:
    """Returns the suspicions that were tried, and what people wrote of them; empty for neither.

    Args:
        store: the finished runs; ``differences.md`` beside them is copied word for word.
    """
    rows = [_row(each, store) for each in SUSPECTED_SETTINGS if each.accuracy(store) is not None]
    parts = []
    if rows:
        header = ["cell", "printed", "ours", "changed", "then", "explains", "suspicion"]
        parts.append(f"{_DIFFERENCES_LEGEND}\n\n{markdown.table(header, rows)}")
    file = store.path / "differences.md"
    if file.exists():
        parts.append(file.read_text(encoding="utf-8").strip())
    return "\n\n".join(["## Explained differences", *parts]) if parts else ""


def _row(suspected: SuspectedSetting, store: Store) -> list[str]:
    outcome = outcome_of(cell_named(suspected.cell), store)
    printed, then = outcome.cell.value, suspected.accuracy(store)
    return [
        suspected.cell,
        f"{printed:.2f}",
        markdown.plus_minus(outcome.mean, outcome.deviation),
        suspected.changed,
        "" if then is None else f"{then:.2f}",
        _share(printed, outcome.mean, then),
        suspected.suspicion,
    ]


def _share(printed: float, ours: float | None, then: float | None) -> str:
    """Returns how much nearer the changed run is to the printed number, in points."""
    if ours is None or then is None:
        return ""
    gained = abs(ours - printed) - abs(then - printed)
    return f"{gained:+.2f} of {abs(ours - printed):.2f}"
