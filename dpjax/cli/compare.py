"""``dpjax compare``: several methods at one budget, in a table, a picture and a report."""

import argparse
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from dpjax import _checks, _toml
from dpjax._files import refuse_links, write_atomically
from dpjax.cli import compare_plots, printing
from dpjax.cli.command import Command
from dpjax.cli.comparison import ComparedRun, comparison_text
from dpjax.cli.experiment import add_experiment_flags, read_experiment, unused_folder
from dpjax.cli.flags import shipped_config
from dpjax.cli.report import report_page
from dpjax.cli.train import resumable, say, trained
from dpjax.methods.table import constructors
from dpjax.train import Experiment

__all__ = ["COMMAND"]

METHODS = ("dp_sgd", "auto_s", "psasc", "dc_sgd_p", "dc_sgd_e")
SEEDS = 5


def _add_flags(parser: argparse.ArgumentParser) -> None:
    what, run = add_experiment_flags(parser, "compare", SEEDS)
    what.add_argument(
        "--methods",
        metavar="NAME,...",
        help="constructors in dpjax.methods; without it, those in [methods] of the file, or "
        f"{', '.join(METHODS)}",
    )
    run.add_argument(
        "--resume", action="store_true", help="resume the runs in --out; the same flags again"
    )


def _run(args: argparse.Namespace) -> int:
    experiment, methods = _asked(args)
    folder = Path(args.out) if args.out else unused_folder(f"compare-{experiment.data.name}")
    if args.resume and args.out is None:
        raise ValueError("--resume: expected --out DIR, the runs to resume")
    begun = {label for label in methods if any((folder / label).glob("**/run.json"))}
    _check_begun(folder, begun, args.resume)
    rows, seconds, say_once = [], {}, _once()
    for label, table in methods.items():
        own = Experiment.from_plain({**experiment.to_plain(), "method": table})
        with resumable(folder):
            results = trained(own, folder / label, args, say_once, resume=label in begun)
        rows += [ComparedRun(label, result.folder) for result in results]
        seconds[label] = max(result.seconds for result in results)
    text = comparison_text(rows)
    refuse_links(folder)
    write_atomically(folder / "table.txt", text + "\n")
    picture = _drawn(rows, folder / "compare.png")
    report = folder / "report.html"
    write_atomically(report, report_page(rows))
    written = [("table", str(folder / "table.txt")), ("report", str(report))]
    if picture:
        written.append(("picture", picture))
    shown = f"{text}\n\n{printing.pairs(written)}"
    data = {
        "folder": str(folder),
        "picture": picture,
        "report": str(report),
        "seconds": seconds,
        "runs": [
            {"method": row.method, "folder": str(row.folder.path), **row.folder.released()[-1]}
            for row in rows
        ],
    }
    printing.show(args.json, shown, data)
    return 0


def _asked(args: argparse.Namespace) -> tuple[Experiment, dict[str, dict[str, Any]]]:
    """Returns the experiment that all methods share, and each method's table by its label."""
    for text in args.set:
        if text.strip().startswith("method."):
            raise ValueError(
                f"--set {text}: expected arguments in a table [methods.NAME] of --config"
            )
    own_data = any(text.strip().startswith("data.") for text in args.set)
    file = args.config or (None if own_data else shipped_config("digits", "compare"))
    plain = _toml.read(file) if file is not None else {}
    tables: Mapping[str, Any] = plain.pop("methods", {})
    plain["run"] = {"seeds": SEEDS, **plain.get("run", {})}
    args = argparse.Namespace(**{**vars(args), "config": None})
    experiment = read_experiment(args, Experiment.from_plain(plain))
    names = args.methods.split(",") if args.methods else list(tables) or METHODS
    labels = [name.strip() for name in names]
    methods = {label: _table(label, tables.get(label, {})) for label in labels}
    for label in methods:
        if not re.fullmatch(r"\w[\w.-]*", label):  # it names a folder inside the comparison's
            raise ValueError(f"methods.{label}: expected letters, digits, '_', '.' and '-'")
    return experiment, methods


def _table(label: str, given: Any) -> dict[str, Any]:
    """Returns a method's table; the label is the method's name unless the table has another."""
    if not isinstance(given, dict):
        raise TypeError(f"methods.{label} = {given!r}: expected a table of arguments")
    if "kind" in given:
        return dict(given)
    table, known = {"name": label, **given}, constructors()
    if table["name"] not in known:  # check this before the first method is trained
        raise ValueError(
            f"methods: {table['name']!r}: {_checks.nearest(str(table['name']), known)}"
        )
    return table


def _check_begun(folder: Path, begun: Collection[str], resume: bool) -> None:
    """Refuses existing runs unless resuming, and missing runs when resuming."""
    if begun and not resume:
        raise ValueError(
            f"{folder / min(begun)} holds a run: expected --resume to resume it, or another --out"
        )
    if resume and not begun:
        raise ValueError(f"{folder} holds no run of these methods: expected one to resume")


def _once() -> Callable[[str], None]:
    """Returns a `say` that prints each message once, however many methods produce it."""
    said = set()

    def say_once(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return say_once


def _drawn(rows: list[ComparedRun], output: Path) -> str | None:
    try:
        compare_plots.draw_comparison(rows, str(output))
    except ImportError as error:
        say(str(error))
        return None
    return str(output)


COMMAND = Command(
    _add_flags,
    _run,
    (
        "dpjax compare --epsilon 2",
        "dpjax compare --methods dp_sgd,auto_s,dc_sgd_e --seeds 5 --out runs/three",
    ),
)
