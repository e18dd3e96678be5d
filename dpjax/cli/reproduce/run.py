"""``dpjax reproduce run``: makes the runs behind a table's cells that the store has not got."""

import argparse
import os

from dpjax import data
from dpjax.cli import tables
from dpjax.cli.command import Command
from dpjax.cli.reproduce.agenda import Agenda, agenda_of
from dpjax.cli.reproduce.flags import (
    add_cell_flags,
    add_workers_flag,
    chosen_cells,
    store_of,
    workers_of,
)
from dpjax.cli.train import say
from dpjax.reproduce import (
    Cell,
    GreedySearch,
    Outcome,
    Run,
    Store,
    greedy_search,
    outcome_of,
    run_all,
)
from dpjax.reproduce.findings import Question

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_cell_flags(parser)
    add_workers_flag(parser)


def _run(args: argparse.Namespace) -> int:
    cells, store = chosen_cells(args), store_of(args)
    workers_of(args)  # what is wrong with it is said before anything is searched
    try:
        _make(cells, store, args)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on from where it was") from None
    print(_text([outcome_of(cell, store, args.seeds) for cell in cells]))
    return 0


def _make(cells: list[Cell], store: Store, args: argparse.Namespace) -> None:
    def agenda() -> Agenda:
        return agenda_of(cells, store, args.seeds, args.data_dir)

    first = agenda()
    for why in dict.fromkeys(why for _, why in first.refused):
        count = sum(reason == why for _, reason in first.refused)
        say(f"not run: {count} cells: {why}")
    for question in first.questions:
        _answer(question, store, args.data_dir)
    _train(agenda().searches, store, args)
    _train(agenda().results, store, args)


def _train(runs: tuple[Run, ...], store: Store, args: argparse.Namespace) -> None:
    if runs:
        say(f"{len(runs)} runs on {args.workers or os.cpu_count()} cores")
        run_all(runs, store, args.data_dir, workers_of(args), say)


def _answer(question: Question, store: Store, data_dir: str | None) -> None:
    if isinstance(question, GreedySearch):
        name = question.experiment.data.name
        say(f"searching thresholds on {name}")
        found = greedy_search(question, data.load(name, data_dir), say)
        store.add_finding(question, found)
    else:
        store.add_finding(question, question.find())


def _text(outcomes: list[Outcome]) -> str:
    rows = [
        [
            outcome.cell.name,
            f"{outcome.cell.accuracy:.2f}",
            "-" if outcome.mean is None else f"{outcome.mean:.2f}",
            "-" if outcome.deviation is None else f"{outcome.deviation:.2f}",
            "-" if outcome.difference is None else f"{outcome.difference:+.2f}",
            str(len(outcome.records)),
        ]
        for outcome in outcomes
    ]
    return tables.table(("cell", "printed", "ours", "sd", "difference", "seeds"), rows)


COMMAND = Command(
    _add_flags,
    _run,
    (
        "dpjax reproduce run dc-sgd/IV --rows mnist --seeds 1",
        "dpjax reproduce run psasc/III --rows mnist --rows dp-psac,dp-psasc",
    ),
)
