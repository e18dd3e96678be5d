"""The sections of a report on cells without a run, and on runs without a cell."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dpjax.papers.agenda import why_not_here
from dpjax.papers.core_hours import estimated_search_seconds, estimated_seconds, is_measured
from dpjax.papers.greedy_thresholds import GreedySearch
from dpjax.papers.outcome import Outcome
from dpjax.papers.plateaus import PlateauSearch
from dpjax.papers.recipe import SEEDS, Recipe, SeededRun
from dpjax.papers.report import markdown
from dpjax.papers.report.result_tables import TITLES
from dpjax.papers.store import RunRecord, Store

__all__ = ["missing_cells", "other_runs"]

_LEGEND = f"""\
Every cell has its experiment (`dpjax papers config CELL` prints it) unless an obstacle is named.
Core-hours are estimates for all of a row's cells with {SEEDS} seeds, searches included, on one core
of the machine that made this report, from measured steps; what is in the store already is not
counted again, and in the last row a run that several tables share counts once. *Not run yet*: data
and code are at hand, the hours were not spent."""

_OTHERS_LEGEND = """\
Runs in the store that stand behind no cell: each changes something in the experiment of the cell
that it is nearest to."""

_NOT_RUN = "not run yet"


class _Missing(NamedTuple):
    """A cell that was not run, and the runs that it needs."""

    outcome: Outcome
    runs: list[SeededRun]


def missing_cells(outcomes: Sequence[Outcome], store: Store, data_dir: str | None = None) -> str:
    """Returns the cells that were not run, by table, data, network and reason.

    Args:
        outcomes: our results for the cells.
        store: the finished runs.
        data_dir: the folder of the data sets.
    """
    without = [
        _Missing(o, _runs(o.recipe))
        for o in outcomes
        if not o.records and o.recipe.computed is None
    ]
    if not without:
        return "## What was not run\n\nEvery cell has a run."
    groups: dict[tuple[str, ...], list[_Missing]] = {}
    for one in without:
        groups.setdefault(_key(one.outcome, data_dir), []).append(one)
    rows = [[*key[:2], _named(own), *_counted(own, store), key[-1]] for key, own in groups.items()]
    rows.append(["all", "", "", *_counted(without, store), ""])
    header = ["paper", "table", "data, model", "cells", "core-hours", "why"]
    few = sum(0 < len(outcome.records) < SEEDS for outcome in outcomes)
    begun = f"Of the cells that were run, {few} have fewer than {SEEDS} seeds."
    parts = ["## What was not run", _LEGEND, *([begun] if few else [])]
    return "\n\n".join([*parts, markdown.table(header, rows)])


def _key(outcome: Outcome, data_dir: str | None) -> tuple[str, ...]:
    """Returns what the cells of one row have in common; the reason comes last."""
    cell, why = outcome.cell, why_not_here(outcome.recipe, data_dir) or _NOT_RUN
    if outcome.recipe.experiment is None:  # the obstacle does not depend on the data
        return TITLES[cell.paper], cell.table, why
    return TITLES[cell.paper], cell.table, cell.dataset, cell.model, why


def _named(own: Sequence[_Missing]) -> str:
    cells = [one.outcome.cell for one in own]
    return "; ".join(dict.fromkeys(f"{cell.dataset}, {cell.model}" for cell in cells))


def _counted(own: Sequence[_Missing], store: Store) -> list[str]:
    hours, measured = _hours(own, store)
    written = f"{hours:,.1f}" if hours < 100 else f"{hours:,.0f}"
    if not measured:
        written = f"{written} and what was not measured" if hours else "not measured"
    return [str(len(own)), written if hours or not measured else ""]


def _hours(own: Sequence[_Missing], store: Store) -> tuple[float, bool]:
    """Returns the hours of the measured networks, and whether all are measured."""
    runs = {run.key: run for one in own for run in one.runs}
    questions = [one.outcome.recipe.waits_for for one in own]
    searches = {q.key: q for q in questions if isinstance(q, GreedySearch | PlateauSearch)}
    left = [run for key, run in runs.items() if key not in store.records]
    known = [run for run in left if is_measured(run)]
    seconds = sum(map(estimated_seconds, known))
    seconds += sum(map(estimated_search_seconds, searches.values()))
    return seconds / 3600, len(known) == len(left)


def _runs(recipe: Recipe) -> list[SeededRun]:
    """Returns as many runs as a recipe needs; every candidate costs the same."""
    if recipe.experiment is None:
        return []
    chosen = recipe.experiment.with_values(recipe.only_choice)
    results = [SeededRun(chosen, seed) for seed in range(1, SEEDS + 1)]
    return [*recipe.candidates(), *results, *recipe.sound_results()]


def other_runs(outcomes: Sequence[Outcome], store: Store) -> str:
    """Returns the runs that no cell uses, with the nearest cell's experiment; empty if none.

    Args:
        outcomes: our results for the cells.
        store: the finished runs.
    """
    used = {record.key for o in outcomes for record in (*o.records, *o.sound, *o.searched)}
    others = [record for key, record in store.records.items() if key not in used]
    if not others:
        return ""
    plain, known = store.experiments, _known(outcomes)
    rows = [_row(record, plain, known) for record in others]
    header = ["data", "method", "nearest cell", "changed (from)", "seed", "accuracy", "cell's own"]
    return "\n\n".join(["## Other runs", _OTHERS_LEGEND, markdown.table(header, rows)])


def _row(
    record: RunRecord,
    plain: Mapping[str, dict[str, object]],
    known: Sequence[tuple[Outcome, dict[str, object]]],
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
    own: Mapping[str, object], outcome: Outcome, theirs: Mapping[str, object]
) -> tuple[int, ...]:
    """Returns how far an experiment is from a cell's; another method counts most."""
    method = own.get("method.name") != theirs.get("method.name")
    return int(method), len(_changed(own, theirs)), int(not outcome.records)


def _known(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, dict[str, object]]]:
    """Returns the experiments of the cells that have one, with the chosen candidate."""
    found = []
    for outcome in outcomes:
        recipe = outcome.recipe
        if recipe.experiment is None or recipe.waits_for is not None:
            continue
        if outcome.cell.metric == "accuracy":
            chosen = recipe.experiment.with_values(outcome.choice or recipe.only_choice)
            found.append((outcome, _flat(chosen.to_plain())))
    return found


def _flat(plain: Mapping[str, object]) -> dict[str, object]:
    """Returns the values of all tables by their paths, except those that do not matter here."""
    return {
        f"{section}.{key}": value
        for section, table in plain.items()
        if isinstance(table, Mapping) and section != "run"
        for key, value in table.items()
        if key not in ("chunk", "engine")
    }


def _changed(own: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    """Returns the paths at which two experiments differ."""
    paths = dict.fromkeys((*own, *theirs))
    return [path for path in paths if own.get(path) != theirs.get(path)]
