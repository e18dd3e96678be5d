"""``dpjax papers list``, ``config`` and ``plan``: overviews that train nothing."""

import argparse
from collections.abc import Sequence

from dpjax.cli import printing
from dpjax.cli.command import Command
from dpjax.cli.papers.flags import add_cell_flags, add_store_flag, chosen_cells, store_of
from dpjax.papers import GreedySearch, Outcome, PlateauSearch, SeededRun, cell_named, outcome_of
from dpjax.papers import tables as printed_tables
from dpjax.papers.agenda import Agenda, agenda_of
from dpjax.papers.core_hours import estimated_seconds, is_measured

__all__ = ["CONFIG", "LIST", "PLAN"]


def _add_list_flags(parser: argparse.ArgumentParser) -> None:
    add_store_flag(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run_list(args: argparse.Namespace) -> int:
    store, rows = store_of(args), []
    for name, cells in printed_tables().items():
        outcomes = [outcome_of(cell, store) for cell in cells]
        rows.append(
            {
                "table": name,
                "cells": len(cells),
                "with_config": sum(outcome.recipe.experiment is not None for outcome in outcomes),
                "run": sum(bool(outcome.records) for outcome in outcomes),
                "within_1_point": sum(outcome.within for outcome in outcomes),
                "data": _distinct(outcomes),
            }
        )
    header = ("table", "cells", "configs", "run", "within 1.0", "data")
    text = printing.table(header, [[str(value) for value in row.values()] for row in rows])
    printing.show(args.json, text, {"tables": rows})
    return 0


def _distinct(outcomes: list[Outcome]) -> str:
    return ", ".join(dict.fromkeys(outcome.cell.dataset for outcome in outcomes))


LIST = Command(
    _add_list_flags,
    _run_list,
    ("dpjax papers list",),
)


def _add_config_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "cell", metavar="CELL", help="a cell's name, such as dc-sgd/IV/mnist/cnn/2/dp-sgd"
    )
    add_store_flag(parser)


def _run_config(args: argparse.Namespace) -> int:
    outcome = outcome_of(cell_named(args.cell), store_of(args))
    recipe = outcome.recipe
    if recipe.experiment is None:
        why = recipe.obstacle or f"A formula gives {recipe.computed:g}: {recipe.ours}"
        raise ValueError(f"{args.cell}: expected a cell with runs. {why}")
    chosen = recipe.experiment.with_values(outcome.choice or recipe.only_choice)
    said = [f"# {args.cell}: printed {outcome.cell.value:g}"]
    said += [f"# ours to say: {recipe.ours}"] if recipe.ours else []
    said += [f"# needs {recipe.needs}"] if recipe.needs else []
    said += _unsearched(outcome)
    said += [f"# {path}: the paper tries {list(v)}" for path, v in recipe.paper_grid.items()]
    print("\n".join([*said, chosen.to_toml().rstrip()]))
    return 0


def _unsearched(outcome: Outcome) -> list[str]:
    """Returns a warning if the grid has not been searched."""
    count = len(outcome.recipe.candidates())
    if outcome.choice is not None or not count:
        return []
    return [f"# NOT SEARCHED: the first of {count} candidates, which none was compared with"]


CONFIG = Command(
    _add_config_flags,
    _run_config,
    ("dpjax papers config dc-sgd/IV/mnist/cnn/2/dp-sgd > cell.toml",),
)


def _add_plan_flags(parser: argparse.ArgumentParser) -> None:
    add_cell_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run_plan(args: argparse.Namespace) -> int:
    agenda = agenda_of(chosen_cells(args), store_of(args), args.seeds, args.data_dir)
    runs = [*agenda.searches, *agenda.results]
    seconds = sum(estimated_seconds(run) for run in runs if is_measured(run))
    data = {
        "runs": [_run_data(run) for run in runs],
        "waiting_for": [_prerequisite(wanted) for wanted in agenda.prerequisites],
        "undecided": agenda.undecided,
        "refused": [{"cell": cell.name, "why": why} for cell, why in agenda.refused],
        "core_hours": seconds / 3600,
    }
    printing.show(args.json, _plan_text(agenda, runs, seconds), data)
    return 0


def _plan_text(agenda: Agenda, runs: Sequence[SeededRun], seconds: float) -> str:
    lines = []
    if runs:
        header = ("run", "data", "model", "method", "epsilon", "seed", "for", "minutes")
        lines.append(printing.table(header, [_run_cells(run) for run in runs]))
    lines += [f"first: {_prerequisite(wanted)}" for wanted in agenda.prerequisites]
    if agenda.undecided:
        lines.append(f"then {agenda.undecided} runs with what these find")
    lines += [f"not here: {n} cells: {why}" for why, n in agenda.obstacles.items()]
    lines.append(f"{len(runs)} runs, about {seconds / 3600:.1f} hours of one core")
    return "\n".join(lines)


def _run_cells(run: SeededRun) -> list[str]:
    shown = [str(value) for name, value in _run_data(run).items() if name != "seconds"]
    return [*shown, f"{estimated_seconds(run) / 60:.0f}" if is_measured(run) else "?"]


def _run_data(run: SeededRun) -> dict[str, object]:
    experiment = run.experiment
    return {
        "run": run.key,
        "data": experiment.data.name,
        "model": experiment.model.name,
        "method": experiment.method["name"],
        "epsilon": experiment.privacy.epsilon or "-",
        "seed": run.seed,
        "for": run.purpose,
        "seconds": estimated_seconds(run) if is_measured(run) else None,
    }


def _prerequisite(wanted: object) -> str:
    if isinstance(wanted, GreedySearch):
        return f"a greedy search of thresholds on {wanted.experiment.data.name}"
    if isinstance(wanted, PlateauSearch):
        return f"a run on {wanted.experiment.data.name} that finds where the learning rate falls"
    return "the noise that a budget for tuning leaves"


PLAN = Command(
    _add_plan_flags,
    _run_plan,
    ("dpjax papers plan dc-sgd/IV --rows mnist", "dpjax papers plan all --json"),
)
