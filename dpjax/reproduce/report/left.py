"""The part of a report on what was not run: how much it is, and why."""

from collections.abc import Sequence
from typing import NamedTuple

from dpjax.reproduce.absent import why_not_here
from dpjax.reproduce.greedy import GreedySearch
from dpjax.reproduce.hours import estimated_search_seconds, estimated_seconds
from dpjax.reproduce.outcome import Outcome
from dpjax.reproduce.recipe import SEEDS, Recipe, Run
from dpjax.reproduce.report import markdown
from dpjax.reproduce.report.tables import TITLES
from dpjax.reproduce.store import Store

__all__ = ["left"]

_LEGEND = f"""\
Every cell has its experiment (`dpjax reproduce config CELL` prints it) unless an obstacle is named.
Core-hours are estimates for all of a row's cells with {SEEDS} seeds, searches included, on one core
of the machine that made this report; what is in the store already is not counted again, and in the
last row a run that several tables share counts once. *Too long here*: data and code are at hand,
the hours were not spent."""

_TOO_LONG = "too long here"


class _Left(NamedTuple):
    """A cell without a run of ours, and the runs that it will come to."""

    outcome: Outcome
    runs: list[Run]


def left(outcomes: Sequence[Outcome], store: Store, data_dir: str | None = None) -> str:
    """Returns the cells without a run of ours, by table, data, network and reason.

    Args:
        outcomes: what came of the cells.
        store: the finished runs.
        data_dir: the folder of the data sets.
    """
    without = [_Left(o, _runs(o.recipe)) for o in outcomes if not o.records]
    if not without:
        return "## What was not run\n\nEvery cell has a run."
    groups: dict[tuple[str, ...], list[_Left]] = {}
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
    cell, why = outcome.cell, why_not_here(outcome.recipe, data_dir) or _TOO_LONG
    if outcome.recipe.experiment is None:  # the same obstacle, whatever the data
        return TITLES[cell.paper], cell.table, why
    return TITLES[cell.paper], cell.table, cell.dataset, cell.model, why


def _named(own: Sequence[_Left]) -> str:
    cells = [one.outcome.cell for one in own]
    return "; ".join(dict.fromkeys(f"{cell.dataset}, {cell.model}" for cell in cells))


def _counted(own: Sequence[_Left], store: Store) -> list[str]:
    hours = _hours(own, store)
    written = f"{hours:,.1f}" if hours < 100 else f"{hours:,.0f}"
    return [str(len(own)), written if hours else ""]


def _hours(own: Sequence[_Left], store: Store) -> float:
    runs = {run.key: run for one in own for run in one.runs}
    questions = [one.outcome.recipe.waits_for for one in own]
    greedy = {q.key: q for q in questions if isinstance(q, GreedySearch)}
    seconds = sum(estimated_seconds(run) for key, run in runs.items() if key not in store.records)
    return (seconds + sum(map(estimated_search_seconds, greedy.values()))) / 3600


def _runs(recipe: Recipe) -> list[Run]:
    """Returns as many runs as a recipe will come to; which candidate wins costs the same."""
    if recipe.experiment is None:
        return []
    chosen = recipe.experiment.with_values(recipe.only_choice)
    results = [Run(chosen, seed) for seed in range(1, SEEDS + 1)]
    return [*recipe.candidates(), *results, *recipe.sound_results()]
