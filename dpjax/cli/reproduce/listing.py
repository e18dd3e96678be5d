"""``dpjax reproduce list``: the tables, and how far each of them is."""

import argparse

from dpjax.cli import report, tables
from dpjax.cli.command import Command
from dpjax.cli.reproduce.flags import add_store_flag, store_of
from dpjax.reproduce import Outcome, outcome_of
from dpjax.reproduce import tables as printed_tables

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_store_flag(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(args: argparse.Namespace) -> int:
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
    text = tables.table(header, [[str(value) for value in row.values()] for row in rows])
    report.show(args.json, text, {"tables": rows})
    return 0


def _distinct(outcomes: list[Outcome]) -> str:
    return ", ".join(dict.fromkeys(outcome.cell.dataset for outcome in outcomes))


COMMAND = Command(
    _add_flags,
    _run,
    ("dpjax reproduce list",),
)
