"""``dpjax papers run`` and ``explain``: train the runs that the store does not have yet."""

import argparse
import os

from dpjax import data
from dpjax._checks import nearest
from dpjax.cli import printing
from dpjax.cli.command import Command
from dpjax.cli.papers.flags import (
    add_cell_flags,
    add_data_flag,
    add_store_flag,
    add_workers_flag,
    chosen_cells,
    store_of,
    workers_of,
)
from dpjax.cli.train import say
from dpjax.papers import (
    Cell,
    GreedySearch,
    Outcome,
    PlateauSearch,
    SeededRun,
    Store,
    cell_named,
    greedy_search,
    outcome_of,
    plateau_search,
    run_all,
)
from dpjax.papers.agenda import Agenda, agenda_of
from dpjax.papers.prerequisites import Prerequisite
from dpjax.papers.suspected_settings import SUSPECTED_SETTINGS, SuspectedSetting

__all__ = ["EXPLAIN", "RUN"]


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    add_cell_flags(parser)
    add_workers_flag(parser)
    parser.add_argument(
        "--pretrained",
        metavar="DIR",
        help="a pre-trained network's Hugging Face directory, or a folder that holds several "
        "networks by their published names, as roberta-base or dm_nfnet_f0.safetensors",
    )


def _run_cells(args: argparse.Namespace) -> int:
    cells, store = chosen_cells(args), store_of(args)
    workers_of(args)  # checked before anything is trained
    try:
        _make(cells, store, args)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command resumes where it stopped") from None
    print(_outcome_table([outcome_of(cell, store, args.seeds) for cell in cells]))
    return 0


def _make(cells: list[Cell], store: Store, args: argparse.Namespace) -> None:
    def agenda() -> Agenda:
        return agenda_of(cells, store, args.seeds, args.data_dir, args.pretrained)

    first = agenda()
    for why, count in first.obstacles.items():
        say(f"not run: {count} cells: {why}")
    for wanted in first.prerequisites:
        _find(wanted, store, args.data_dir)
    _train(agenda().searches, store, args)
    _train(agenda().results, store, args)


def _train(runs: tuple[SeededRun, ...], store: Store, args: argparse.Namespace) -> None:
    if runs:
        say(f"{len(runs)} runs on {args.workers or os.cpu_count()} cores")
        run_all(runs, store, args.data_dir, workers_of(args), say, args.pretrained)


def _find(wanted: Prerequisite, store: Store, data_dir: str | None) -> None:
    if isinstance(wanted, GreedySearch):
        name = wanted.experiment.data.name
        say(f"searching thresholds on {name}")
        found = greedy_search(wanted, data.load(name, data_dir), say)
        store.add_finding(wanted, found)
    elif isinstance(wanted, PlateauSearch):
        name = wanted.experiment.data.name
        say(f"searching plateaus of the test loss on {name}")
        store.add_finding(wanted, plateau_search(wanted, data.load(name, data_dir), say))
    else:
        store.add_finding(wanted, wanted.find())


def _outcome_table(outcomes: list[Outcome]) -> str:
    rows = [
        [
            outcome.cell.name,
            f"{outcome.cell.value:.2f}",
            "-" if outcome.mean is None else f"{outcome.mean:.2f}",
            "-" if outcome.deviation is None else f"{outcome.deviation:.2f}",
            "-" if outcome.difference is None else f"{outcome.difference:+.2f}",
            str(len(outcome.records)),
        ]
        for outcome in outcomes
    ]
    return printing.table(("cell", "printed", "ours", "sd", "difference", "seeds"), rows)


RUN = Command(
    _add_run_flags,
    _run_cells,
    (
        "dpjax papers run dc-sgd/IV --rows mnist --seeds 1",
        "dpjax papers run dc-sgd/IV/mnist/cnn/2/dp-sgd",
        "dpjax papers run psasc/III --rows mnist --rows dp-psac,dp-psasc",
        "dpjax papers run auto-clip/2 --rows sst2 --pretrained roberta-base",
    ),
)


def _add_explain_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "cells",
        nargs="*",
        metavar="CELL",
        help="the cells whose suspected settings are tried, as dc-sgd/VIII/mnist/cnn/2/autoclip; "
        "all without it",
    )
    add_data_flag(parser)
    add_workers_flag(parser)
    add_store_flag(parser)


def _run_explain(args: argparse.Namespace) -> int:
    store, suspected = store_of(args), _suspected_settings(args.cells)
    runs = [run for each in suspected if (run := each.run(store)) is not None]
    run_all(runs, store, args.data_dir, workers_of(args), say)
    header = ("cell", "printed", "ours", "changed", "then")
    print(printing.table(header, [_explained_row(each, store) for each in suspected]))
    return 0


def _suspected_settings(cells: list[str]) -> list[SuspectedSetting]:
    known = {each.cell: None for each in SUSPECTED_SETTINGS}
    for cell in cells:
        if cell not in known:
            raise ValueError(f"CELL {cell}: {nearest(cell, known)}")
    return [each for each in SUSPECTED_SETTINGS if not cells or each.cell in cells]


def _explained_row(suspected: SuspectedSetting, store: Store) -> list[str]:
    outcome = outcome_of(cell_named(suspected.cell), store)
    found = suspected.accuracy(store)
    return [
        suspected.cell,
        f"{outcome.cell.value:.2f}",
        "-" if outcome.mean is None else f"{outcome.mean:.2f}",
        suspected.changed,
        "-" if found is None else f"{found:.2f}",
    ]


EXPLAIN = Command(
    _add_explain_flags,
    _run_explain,
    ("dpjax papers explain", "dpjax papers explain dc-sgd/VIII/mnist/cnn/2/autoclip"),
)
