"""The printed numbers and ours, table by table."""

import statistics
from collections.abc import Callable, Sequence

from dpjax.papers.outcome import Outcome
from dpjax.papers.recipes.auto_dp_numbers import as_printed, decay_of
from dpjax.papers.report import markdown

__all__ = ["TITLES", "results"]

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

# Notes for the reader of a table.
_REMARKS = {
    "dc-sgd/I": "Seconds of one run, on other machines: only the ratios to DP-SGD can be compared. "
    "Ours is the shortest of the seeds' runs by the clock: others were held up by other work.",
    "dc-sgd/II": "The ε of the table is that of the whole search by Liu and Talwar's theorem; the "
    "ε of a run is that of a single one of its runs.",
    "dc-sgd/III": "The ε of the table is that of all G runs of the grid composed by RDP; the ε of "
    "a run is that of a single one of them.",
    "auto-clip/1": "The printed ± is half a 95% confidence interval over five runs.",
}
_AS_PRINTED = """\
σ₀ is the paper's first noise multiplier. The printed ε of the Auto DP rows comes from the paper's
own formula of the average sensitivity; beside it stands that formula's value with a sensitivity of
1 (*as printed, no guarantee*: the method has no bound on what an example contributes, so no epsilon
exists). The sound version clips, with the same noise schedule, and its ε is a guarantee."""

_Column = tuple[str, Callable[[Outcome], str]]


def results(outcomes: Sequence[Outcome]) -> str:
    """Returns a section for each table of which we ran a cell, with the rows that were run.

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
    return "\n\n".join(["## Printed and ours", _LEGEND, *sections]) if sections else ""


def _section(name: str, rows: Sequence[Outcome], remarks: Sequence[str]) -> str:
    cell = rows[0].cell
    parts = [
        f"### {TITLES[cell.paper]}, table {cell.table}",
        f"Again: `dpjax papers run {name} --rows {_rows(rows)} --seeds 3`.",
        *remarks,
    ]
    for metric in dict.fromkeys(row.cell.metric for row in rows):
        own = [row for row in rows if row.cell.metric == metric]
        parts += [] if metric == "accuracy" else [f"**{metric[:1].upper()}{metric[1:]}**"]
        parts.append(_table(own))
    return "\n\n".join(parts)


def _table(rows: Sequence[Outcome]) -> str:
    marks, notes = markdown.footnotes([row.recipe.ours for row in rows])
    columns = _columns(rows)
    header = [title for title, _ in columns]
    body = [
        [*(text(row) for _, text in columns), mark] for row, mark in zip(rows, marks, strict=True)
    ]
    return "\n\n".join([markdown.table([*header, "notes"], body), *([notes] if notes else [])])


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
        *_difference_columns(rows),
        ("seeds", lambda row: str(len(row.records))),
        ("ε of the run, RDP", lambda row: markdown.epsilon([r.epsilon_rdp for r in row.records])),
        ("PLD", lambda row: markdown.epsilon([r.epsilon_pld for r in row.records])),
    ]
    if any(row.sound for row in rows):
        columns += [
            ("ε by its formula", _as_printed),
            ("sound version", _sound),
            ("its ε, RDP", lambda row: markdown.epsilon([r.epsilon_rdp for r in row.sound])),
            ("its ε, PLD", lambda row: markdown.epsilon([r.epsilon_pld for r in row.sound])),
        ]
    return [*columns, ("with", _chosen)]


def _difference_columns(rows: Sequence[Outcome]) -> list[_Column]:
    if rows[0].cell.is_score:
        return [("difference", lambda row: markdown.points(row.difference))]
    if rows[0].cell.metric != "seconds":
        return [("ours over printed", lambda row: _ratio(row.mean, row.cell.value))]
    plain = {row.cell.model: row for row in rows if row.cell.method == "DP-SGD"}

    def ratio(row: Outcome, ours: bool) -> str:
        base = plain.get(row.cell.model)
        if base is None:
            return ""
        pair = (row.mean, base.mean) if ours else (row.cell.value, base.cell.value)
        return _ratio(*pair)

    return [
        ("to DP-SGD, printed", lambda row: ratio(row, False)),
        ("to DP-SGD, ours", lambda row: ratio(row, True)),
    ]


def _ratio(number: float | None, to: float | None) -> str:
    return f"{number / to:.2f}" if number is not None and to else ""


def _budget_columns(rows: Sequence[Outcome]) -> list[_Column]:
    if rows[0].cell.sigma0 is None:
        return [("ε", lambda row: row.cell.budget)]
    return [
        ("σ₀", lambda row: f"{row.cell.sigma0:g}"),
        ("printed ε", lambda row: "" if row.cell.epsilon is None else f"{row.cell.epsilon:g}"),
    ]


def _sound(row: Outcome) -> str:
    if not row.sound:
        return ""
    accuracies = [100 * record.accuracy for record in row.sound]
    deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    return markdown.plus_minus(row.sound_mean, deviation)


def _as_printed(row: Outcome) -> str:
    """Returns the paper's formula for its own run, with a threshold of one."""
    if decay_of(row.cell) is None:
        return ""
    return f"{as_printed(row.cell, 1.0):.3g}"


def _chosen(row: Outcome) -> str:
    """Returns the method's parameters, and the learning rate if it was chosen."""
    if row.recipe.experiment is None:
        return ""
    return markdown.setting({**row.recipe.experiment.method, **_plain(row)})


def _plain(row: Outcome) -> dict[str, object]:
    return {path.removeprefix("method."): value for path, value in (row.choice or {}).items()}
