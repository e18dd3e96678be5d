"""The part of a report on runs of no cell: which number they change, and what came of it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dpjax.reproduce.outcome import Outcome
from dpjax.reproduce.record import Record
from dpjax.reproduce.report import markdown
from dpjax.reproduce.store import Store

__all__ = ["probes"]

_LEGEND = """\
Runs in the store that stand behind no cell: each changes something in the experiment of the cell
that it is nearest to."""


def probes(outcomes: Sequence[Outcome], store: Store) -> str:
    """Returns the runs that no cell uses, beside the nearest experiment of a cell; empty for none.

    Args:
        outcomes: what came of the cells.
        store: the finished runs.
    """
    used = {record.key for o in outcomes for record in (*o.records, *o.sound, *o.searched)}
    others = [record for key, record in store.records.items() if key not in used]
    if not others:
        return ""
    plain, known = _experiments(store), _known(outcomes)
    rows = [_row(record, plain, known) for record in others]
    header = ["data", "method", "nearest cell", "changed (from)", "seed", "accuracy", "cell's own"]
    return "\n\n".join(["## Other runs", _LEGEND, markdown.table(header, rows)])


def _row(
    record: Record,
    plain: Mapping[str, dict[str, Any]],
    known: Sequence[tuple[Outcome, dict[str, Any]]],
) -> list[str]:
    own = _flat(plain.get(record.experiment, {}))
    same = [entry for entry in known if entry[1].get("data.name") == record.data]
    nearest = min(same or known, key=lambda entry: _distance(own, *entry), default=None)
    start = [record.data, record.method]
    end = [str(record.seed), f"{100 * record.accuracy:.2f}"]
    if nearest is None:
        return [*start, "", "", *end, ""]
    outcome, theirs = nearest
    changed = [f"{p} {own.get(p, 'none')} ({theirs.get(p, 'none')})" for p in _changed(own, theirs)]
    mean = markdown.plus_minus(outcome.mean, outcome.deviation)
    return [*start, outcome.cell.name, "<br>".join(changed) or "the seed alone", *end, mean]


def _distance(
    own: Mapping[str, Any], outcome: Outcome, theirs: Mapping[str, Any]
) -> tuple[int, ...]:
    """Returns how far an experiment is from a cell's: another method is farther than all else."""
    method = own.get("method.name") != theirs.get("method.name")
    return int(method), len(_changed(own, theirs)), int(not outcome.records)


def _known(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, dict[str, Any]]]:
    """Returns the experiments of the cells that have one, with the choice in them."""
    found = []
    for outcome in outcomes:
        recipe = outcome.recipe
        if recipe.experiment is not None and recipe.waits_for is None:
            chosen = recipe.experiment.with_values(outcome.choice or recipe.only_choice)
            found.append((outcome, _flat(chosen.to_plain())))
    return found


def _experiments(store: Store) -> dict[str, dict[str, Any]]:
    file = store.path / "experiments.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {line["experiment"]: line for line in map(json.loads, lines)}


def _flat(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of all tables by their paths, but for those of no consequence here."""
    return {
        f"{section}.{key}": value
        for section, table in plain.items()
        if isinstance(table, Mapping) and section != "run"
        for key, value in table.items()
        if key not in ("chunk", "engine")
    }


def _changed(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Returns the paths at which two experiments differ."""
    paths = dict.fromkeys((*own, *theirs))
    return [path for path in paths if own.get(path) != theirs.get(path)]
