"""``dpjax reproduce report``: the stored runs beside the printed numbers, and a picture."""

import argparse
from pathlib import Path

from dpjax.cli.command import Command
from dpjax.cli.reproduce import report_plots
from dpjax.cli.reproduce.flags import add_store_flag, store_of
from dpjax.cli.train import say
from dpjax.reproduce import Store, cells, outcome_of
from dpjax.reproduce.report import report
from dpjax.train.folder import write_atomically

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_store_flag(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="where REPORT.md and report.png go; without it, --store"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="the folder of the data sets, to say which are not at hand; without it, DPJAX_DATA "
        "or ~/.cache/dpjax",
    )


def _run(args: argparse.Namespace) -> int:
    store = store_of(args)
    if not store.records:
        raise ValueError(f"--store {args.store}: expected a folder with finished runs")
    folder = Path(args.out) if args.out else store.path
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "REPORT.md", report(store, cells(), args.data_dir))
    print(folder / "REPORT.md")
    picture = _drawn(store, folder / "report.png")
    if picture:
        print(picture)
    return 0


def _drawn(store: Store, output: Path) -> str | None:
    outcomes = [outcome_of(cell, store) for cell in cells()]
    try:
        report_plots.draw_report(outcomes, str(output))
    except ImportError as error:
        say(str(error))
        return None
    return str(output)


COMMAND = Command(
    _add_flags,
    _run,
    ("dpjax reproduce report", "dpjax reproduce report --store runs/mine --out runs/mine/report"),
)
