"""The flags that choose cells, store and data."""

import argparse
from pathlib import Path

from dpjax.papers import SEEDS, Cell, Store, select, tables

__all__ = [
    "add_cell_flags",
    "add_data_flag",
    "add_store_flag",
    "add_workers_flag",
    "chosen_cells",
    "store_of",
    "workers_of",
]


def add_store_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag for the folder of finished runs."""
    parser.add_argument(
        "--store",
        default="docs/results",
        metavar="DIR",
        help="the folder of finished runs; docs/results without it",
    )


def add_data_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag for the folder of the data sets."""
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="the folder of the data sets; without it, DPJAX_DATA or ~/.cache/dpjax",
    )


def add_workers_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag for the number of parallel runs."""
    parser.add_argument(
        "--workers", type=int, metavar="K", help="parallel runs; one per core without it"
    )


def workers_of(args: argparse.Namespace) -> int | None:
    """Returns the number of parallel runs; None for one per core."""
    if args.workers is not None and args.workers < 1:
        raise ValueError(f"--workers {args.workers}: expected at least 1")
    return args.workers


def add_cell_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that choose cells, and the number of seeds of each."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a table, as dc-sgd/IV (`dpjax papers list` has them), a single cell, as "
        "dc-sgd/IV/mnist/cnn/2/dp-sgd, or 'all'",
    )
    parser.add_argument(
        "--rows",
        action="append",
        default=[],
        metavar="PART,...",
        help="cells whose names have one of these parts, as mnist or 2; repeatable, all must hold",
    )
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, metavar="K", help=f"seeds of each result; {SEEDS}"
    )
    add_data_flag(parser)
    add_store_flag(parser)


def store_of(args: argparse.Namespace) -> Store:
    """Returns the requested store."""
    return Store(Path(args.store))


def chosen_cells(args: argparse.Namespace) -> list[Cell]:
    """Returns the requested cells; raises ValueError if there are none."""
    if args.seeds < 1:
        raise ValueError(f"--seeds {args.seeds}: expected at least 1")
    names = list(tables()) if args.name == "all" else [args.name]
    found = [cell for name in names for cell in _of_table(name, args.rows, len(names) > 1)]
    if not found:
        raise ValueError(f"--rows {' --rows '.join(args.rows)}: expected parts that some cell has")
    return found


def _of_table(name: str, rows: list[str], among_others: bool) -> list[Cell]:
    try:
        return select(name, rows)
    except ValueError:
        if among_others:  # another table may have this part
            return []
        raise
