"""``dpjax reproduce explain``: runs that change a suspected setting of a cell that is off."""

import argparse

from dpjax.cli import tables
from dpjax.cli.command import Command
from dpjax.cli.reproduce.flags import (
    add_data_flag,
    add_store_flag,
    add_workers_flag,
    store_of,
    workers_of,
)
from dpjax.cli.train import say
from dpjax.reproduce import Store, cell_named, outcome_of, run_all
from dpjax.reproduce.explanations import EXPLANATIONS, Explanation

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_data_flag(parser)
    add_workers_flag(parser)
    add_store_flag(parser)


def _run(args: argparse.Namespace) -> int:
    store = store_of(args)
    runs = [run for each in EXPLANATIONS if (run := each.run(store)) is not None]
    run_all(runs, store, args.data_dir, workers_of(args), say)
    header = ("cell", "printed", "ours", "changed", "then")
    print(tables.table(header, [_row(each, store) for each in EXPLANATIONS]))
    return 0


def _row(explanation: Explanation, store: Store) -> list[str]:
    outcome = outcome_of(cell_named(explanation.cell), store)
    found = explanation.accuracy(store)
    return [
        explanation.cell,
        f"{outcome.cell.accuracy:.2f}",
        "-" if outcome.mean is None else f"{outcome.mean:.2f}",
        explanation.changed,
        "-" if found is None else f"{found:.2f}",
    ]


COMMAND = Command(
    _add_flags,
    _run,
)
