"""``dpjax reproduce plan``: the runs behind a table, and how long they take."""

import argparse
from collections.abc import Sequence

from dpjax.cli import report, tables
from dpjax.cli.command import Command
from dpjax.cli.reproduce.agenda import Agenda, agenda_of
from dpjax.cli.reproduce.flags import add_cell_flags, chosen_cells, store_of
from dpjax.reproduce import GreedySearch, Run
from dpjax.reproduce.hours import estimated_seconds

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_cell_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(args: argparse.Namespace) -> int:
    agenda = agenda_of(chosen_cells(args), store_of(args), args.seeds, args.data_dir)
    runs = [*agenda.searches, *agenda.results]
    seconds = sum(map(estimated_seconds, runs))
    data = {
        "runs": [_data(run) for run in runs],
        "waiting_for": [_question(question) for question in agenda.questions],
        "undecided": agenda.undecided,
        "refused": [{"cell": cell.name, "why": why} for cell, why in agenda.refused],
        "core_hours": seconds / 3600,
    }
    report.show(args.json, _text(agenda, runs, seconds), data)
    return 0


def _text(agenda: Agenda, runs: Sequence[Run], seconds: float) -> str:
    lines = []
    if runs:
        header = ("run", "data", "model", "method", "epsilon", "seed", "for", "minutes")
        lines.append(tables.table(header, [_cells(run) for run in runs]))
    lines += [f"first: {_question(question)}" for question in agenda.questions]
    if agenda.undecided:
        lines.append(f"then {agenda.undecided} runs with what these find")
    for why in dict.fromkeys(why for _, why in agenda.refused):
        count = sum(reason == why for _, reason in agenda.refused)
        lines.append(f"not here: {count} cells: {why}")
    lines.append(f"{len(runs)} runs, about {seconds / 3600:.1f} hours of one core")
    return "\n".join(lines)


def _cells(run: Run) -> list[str]:
    shown = [str(value) for name, value in _data(run).items() if name != "seconds"]
    return [*shown, f"{estimated_seconds(run) / 60:.0f}"]


def _data(run: Run) -> dict[str, object]:
    experiment = run.experiment
    return {
        "run": run.key,
        "data": experiment.data.name,
        "model": experiment.model.name,
        "method": experiment.method["name"],
        "epsilon": experiment.privacy.epsilon or "-",
        "seed": run.seed,
        "for": run.purpose,
        "seconds": estimated_seconds(run),
    }


def _question(question: object) -> str:
    if isinstance(question, GreedySearch):
        return f"a greedy search of thresholds on {question.experiment.data.name}"
    return "the noise that a budget for tuning leaves"


COMMAND = Command(
    _add_flags,
    _run,
    ("dpjax reproduce plan dc-sgd/IV --rows mnist", "dpjax reproduce plan all --json"),
)
