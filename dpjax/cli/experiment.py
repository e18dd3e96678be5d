"""The flags that say what is trained; `train` and `compare` have them."""

import argparse
from pathlib import Path
from typing import Any

from dpjax import _toml
from dpjax.train.config import Experiment
from dpjax.train.defaults import DIGITS

__all__ = ["add_experiment_flags", "read_experiment", "unused_folder"]


def add_experiment_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of an experiment and of its run."""
    what = parser.add_argument_group("experiment")
    what.add_argument(
        "--config", metavar="FILE", help="a TOML file; without one, the embedded digits"
    )
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a value of the experiment, as in train.batch_size=128; 'none' takes one away",
    )
    what.add_argument("--epsilon", type=float, metavar="X", help="the budget: privacy.epsilon")
    run = parser.add_argument_group("run")
    run.add_argument("--out", metavar="DIR", help="where the run goes; a new folder in runs/")
    run.add_argument("--data-dir", metavar="DIR", help="where data sets are; DPJAX_DATA by default")
    run.add_argument(
        "--seed", type=int, metavar="S", help="fixed keys, for reproduction; such noise is known"
    )
    run.add_argument("--seeds", type=int, metavar="K", help="so many runs, each with its own keys")
    run.add_argument(
        "--diagnostics", action="store_true", help="also write non-private numbers, labelled so"
    )
    run.add_argument("--quiet", action="store_true", help="no progress")
    run.add_argument("--json", action="store_true", help="print JSON, at full precision")


def read_experiment(args: argparse.Namespace, base: Experiment | None = None) -> Experiment:
    """Returns the experiment that the flags describe.

    Args:
        args: the arguments.
        base: what --config is read in place of; None for the embedded digits.
    """
    if args.config is not None:
        experiment = Experiment.from_file(args.config)
    else:
        experiment = DIGITS if base is None else base
    changes: dict[str, Any] = dict(map(_toml.assignment, args.set))
    flags = {"privacy.epsilon": args.epsilon, "run.seed": args.seed, "run.seeds": args.seeds}
    changes |= {path: value for path, value in flags.items() if value is not None}
    if args.diagnostics:
        changes["run.diagnostics"] = True
    for path, value in changes.items():
        experiment = experiment.set(path, value)
    return experiment


def unused_folder(name: str) -> Path:
    """Returns a folder in runs/ that does not exist yet.

    >>> unused_folder("no-such-run").as_posix()
    'runs/no-such-run'
    """
    path, number = Path("runs") / name, 2
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path
