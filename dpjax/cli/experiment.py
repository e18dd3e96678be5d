"""The flags of `train` and `compare` that define the experiment."""

import argparse
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dpjax import data
from dpjax.cli.flags import add_config_flag, assignment
from dpjax.data import Dataset
from dpjax.mechanism import Mechanism
from dpjax.train import allow_import, load_dataset
from dpjax.train.config import DIGITS, Experiment
from dpjax.train.folder import RunFolder

__all__ = [
    "add_experiment_flags",
    "check_arguments",
    "load_data",
    "read_experiment",
    "stored_experiment",
    "unused_folder",
    "with_method",
]


def add_experiment_flags(
    parser: argparse.ArgumentParser, room: str, seeds: int = 1
) -> tuple[Any, Any]:
    """Adds the flags of an experiment and of its run; returns both groups for further flags.

    Args:
        parser: the command's parser.
        room: the folder in configs/ in which --config looks up a name.
        seeds: the number of runs without --seeds, for the help.
    """
    what = parser.add_argument_group("experiment")
    add_config_flag(what, room, meaning="without one, the embedded digits")
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change a value, as in train.batch_size=128; 'none' removes it; repeatable",
    )
    what.add_argument(
        "--import",
        action="append",
        default=[],
        dest="imports",
        metavar="MODULE",
        help="let data.name and model.name be MODULE:NAME, which runs its code; repeatable",
    )
    what.add_argument("--epsilon", type=float, metavar="X", help="the budget, privacy.epsilon")
    run = parser.add_argument_group("run")
    run.add_argument(
        "--out", metavar="DIR", help="the folder to write; without it, a new one in runs/"
    )
    run.add_argument(
        "--data-dir",
        metavar="DIR",
        help="the folder of the data sets; without it, DPJAX_DATA or ~/.cache/dpjax",
    )
    run.add_argument(
        "--seed",
        type=int,
        metavar="S",
        help="fix the noise, to reproduce a run; such a run must not be published",
    )
    run.add_argument(
        "--seeds",
        type=int,
        metavar="K",
        help="runs to train together, each with its own noise; without it the file's number, "
        f"or {seeds}",
    )
    run.add_argument(
        "--diagnostics",
        action="store_true",
        help="also write non-private numbers, such as gradient norms, labelled so",
    )
    run.add_argument("--quiet", action="store_true", help="show no progress")
    run.add_argument("--json", action="store_true", help="print JSON, at full precision")
    return what, run


def read_experiment(
    args: argparse.Namespace, base: Experiment | None = None, method: str | None = None
) -> Experiment:
    """Returns the experiment that the flags describe.

    Args:
        args: the arguments.
        base: the experiment if there is no --config; None for the embedded digits.
        method: the constructor whose arguments --set gives; None keeps the method.
    """
    for module in args.imports:
        allow_import(module)
    if args.config is not None:
        experiment = Experiment.from_file(args.config)
    else:
        experiment = base or _default(args)
    changes: dict[str, Any] = dict(map(assignment, args.set))
    experiment = with_method(experiment, changes.pop("method.name", None) or method)
    check_arguments(experiment, changes)
    flags = {"privacy.epsilon": args.epsilon, "run.seed": args.seed, "run.seeds": args.seeds}
    changes |= {path: value for path, value in flags.items() if value is not None}
    if args.diagnostics:
        changes["run.diagnostics"] = True
    return experiment.with_values(changes)


def _default(args: argparse.Namespace) -> Experiment:
    """Returns the experiment for the embedded digits; for other data, the general defaults."""
    own_data = any(text.strip().startswith("data.") for text in args.set)
    return Experiment() if own_data else DIGITS


def with_method(experiment: Experiment, name: str | None) -> Experiment:
    """Returns the experiment with the named method; the same method keeps its arguments."""
    table = experiment.method
    if name is None or ("kind" not in table and table.get("name") == name):
        return experiment
    return replace(experiment, method={"name": name})


def check_arguments(experiment: Experiment, changes: Mapping[str, Any]) -> None:
    """Refuses a constructor's argument if the method is in plain form."""
    table = experiment.method
    if "kind" not in table:
        return
    known = {field.name for field in fields(Mechanism)}
    for path in changes:
        section, _, key = path.partition(".")
        if section == "method" and key.partition(".")[0] not in known:
            raise ValueError(
                f"{path} with a method in plain form (kind = {table['kind']!r}), as runs "
                "store it: expected one of its fields, or --method NAME with all arguments"
            )


def stored_experiment(folder: Path, varied: bool = False) -> Experiment:
    """Returns the experiment stored in a folder, to resume it.

    Args:
        folder: the folder of a run, or of several runs that were started together.
        varied: whether the flags say how these differ.

    Raises:
        FileNotFoundError: if no run was started there.
    """
    inside = sorted(file.parent for file in folder.glob("*/run.json"))
    is_run = RunFolder(folder).exists or not inside
    first = RunFolder(folder if is_run else inside[0])
    together, experiment = first.identity().members, first.read_config()
    if is_run:
        return experiment
    if together == 1:
        raise ValueError(f"{folder} holds several runs: expected one of them, as {first.path}")
    if together > experiment.run.seeds and not varied:
        raise ValueError(f"{folder} holds runs that differ: expected --vary as it was")
    return experiment


def load_data(experiment: Experiment, data_dir: str | None = None) -> Dataset:
    """Returns the data of an experiment: by name, from a file, or from a user's function."""
    config = experiment.data
    if config.path is not None:
        return data.read_file(config.path, config.name)
    if ":" in config.name:
        return data.from_function(config.name)
    return load_dataset(experiment, data_dir)


def unused_folder(name: str) -> Path:
    """Returns a folder in runs/ that does not exist yet.

    >>> unused_folder("no-such-run").as_posix()
    'runs/no-such-run'
    """
    path, number = Path("runs") / name, 2
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path
