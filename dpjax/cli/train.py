"""``dpjax train``: trains one experiment, or several variants of it, at a budget."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import jax

from dpjax._files import refuse_links
from dpjax.accounting.bound import rounded_up
from dpjax.cli import diagnostics_plots, printing, run_plots
from dpjax.cli.command import Command, StoppedError
from dpjax.cli.experiment import (
    add_experiment_flags,
    load_data,
    read_experiment,
    stored_experiment,
    unused_folder,
)
from dpjax.cli.flags import assignment
from dpjax.cli.released_runs import read_run, read_runs, spent_by
from dpjax.train import Experiment, LostProcessError, Preempted, Result, train
from dpjax.train.mesh import leave_together
from dpjax.train.progress import progress_for

__all__ = ["COMMAND", "resumable", "say", "trained"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    what, run = add_experiment_flags(parser, "train")
    what.add_argument(
        "--method", metavar="NAME", help="a constructor in dpjax.methods; --set method.ARG=VALUE"
    )
    what.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="PATH=[V, ...]",
        help="a run for each value of optimizer.learning_rate or method.threshold; repeatable",
    )
    run.add_argument("--resume", action="store_true", help="resume --out from its last checkpoint")
    run.add_argument(
        "--rekey",
        action="store_true",
        help="resume --out as another experiment, or under other versions, with new keys",
    )
    several = parser.add_argument_group("several processes")
    several.add_argument(
        "--distributed",
        action="store_true",
        help="join several processes into one run; same command on each, shared --out",
    )
    several.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="process 0; without it JAX_COORDINATOR_ADDRESS, or JAX's cluster detection",
    )
    several.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="the number of processes; without it JAX_NUM_PROCESSES",
    )
    several.add_argument(
        "--process-id",
        type=int,
        metavar="I",
        help="the number of this process; without it JAX_PROCESS_ID",
    )


def _run(args: argparse.Namespace) -> int:
    if not args.distributed:
        return _trained_and_shown(args)
    _join(args)
    try:
        code = _trained_and_shown(args)
        leave_together()
        return code
    except BaseException as error:
        # The other processes wait for this one while it lives, and a normal exit waits for them.
        say(" ".join(f"process {args.process_id}: {error}".split()))
        _leave_at_once(error.code if isinstance(error, StoppedError) else 2)


def _join(args: argparse.Namespace) -> None:
    """Joins this process with the others of one run, through JAX's distributed runtime."""
    if args.out is None:
        raise ValueError("--distributed: expected --out DIR, a folder that all processes share")
    for flag, variable in (("processes", "JAX_NUM_PROCESSES"), ("process_id", "JAX_PROCESS_ID")):
        if getattr(args, flag) is None and variable in os.environ:
            setattr(args, flag, int(os.environ[variable]))
    jax.distributed.initialize(args.coordinator, args.processes, args.process_id)
    args.process_id = jax.process_index()
    args.quiet = args.quiet or args.process_id > 0


def _leave_at_once(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _trained_and_shown(args: argparse.Namespace) -> int:
    experiment, vary = _asked(args)
    folder = Path(args.out) if args.out else unused_folder(_name(experiment))
    resume = args.resume or args.rekey
    with resumable(folder):
        results = trained(experiment, folder, args, vary=vary, resume=resume, rekey=args.rekey)
    if jax.process_index() > 0:
        return 0
    pictures = _plotted(results, folder)
    printing.show(args.json, _text(results, folder, pictures), _data(results, folder, pictures))
    return 0


def _asked(args: argparse.Namespace) -> tuple[Experiment, dict[str, Any]]:
    """Returns the experiment and what varies, from the flags or from the run to resume."""
    if args.out is None and (args.resume or args.rekey):
        raise ValueError("--resume: expected --out DIR, the run to resume")
    vary = dict(map(_varied, args.vary))
    if not (args.resume or args.rekey):
        return read_experiment(args, method=args.method), vary
    base, method = stored_experiment(Path(args.out), bool(vary)), args.method
    if method is None and not args.rekey and _has_arguments(args, vary):
        method = base.method.get("name")  # the same command must give the same method
    return read_experiment(args, base, method), vary


def _varied(text: str) -> tuple[str, list[Any]]:
    path, equals, _ = text.partition("=")
    values = assignment(text)[1] if path and equals else None
    if not isinstance(values, list) or not values:
        raise ValueError(f"--vary {text}: expected PATH=[V, ...], as method.threshold=[0.1, 0.3]")
    return path.strip(), values


def _has_arguments(args: argparse.Namespace, vary: Mapping[str, Any]) -> bool:
    return any(text.strip().startswith("method.") for text in (*args.set, *vary))


def say(text: str) -> None:
    """Prints a message on stderr, apart from the results."""
    print(f"dpjax: {text}", file=sys.stderr)


def trained(
    experiment: Experiment,
    folder: Path,
    args: argparse.Namespace,
    say: Callable[[str], None] = say,
    **options: Any,
) -> list[Result]:
    """Trains with the data, the progress and the messages of the command line."""
    dataset = load_data(experiment, args.data_dir)
    return train(
        experiment,
        dataset,
        folder,
        progress=lambda label: progress_for(label, args.quiet),
        say=say,
        **options,
    )


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Tells the user how to resume if they stop the block and there is a run to resume."""
    how = f"the same command with --resume --out {shlex.quote(str(folder))} resumes"
    try:
        yield
    except KeyboardInterrupt:
        if not any(folder.glob("**/run.json")):
            raise
        raise KeyboardInterrupt(f"{how} from the last checkpoint") from None
    except (Preempted, LostProcessError) as error:
        code = 143 if isinstance(error, Preempted) else 3  # 143: a shell's code for SIGTERM
        raise StoppedError(f"{error}; {how} from the last checkpoint", code) from error


def _name(experiment: Experiment) -> str:
    return f"{experiment.data.name}-{experiment.method.get('name', 'mechanism')}"


def _plotted(results: Sequence[Result], folder: Path) -> list[str]:
    """Draws the runs; without matplotlib, says so and draws nothing."""
    try:
        runs = [read_run(result.folder) for result in results]
        refuse_links(folder)
        output = folder / "plots" / "run.png"
        output.parent.mkdir(parents=True, exist_ok=True)
        run_plots.draw_runs(runs, str(output))
        return [str(output), *(f"{f} (not private)" for f in diagnostics_plots.draw_beside(runs))]
    except ImportError as error:
        say(str(error))
        return []


def _text(results: Sequence[Result], folder: Path, pictures: Sequence[str]) -> str:
    plan = results[0].plan
    spent = spent_by(read_runs([str(result.folder.path) for result in results]))
    rows = [
        [
            result.folder.path.name,
            f"{result.accuracy:.2%}",
            _threshold(result.threshold),
            "no guarantee" if result.epsilon is None else rounded_up(result.epsilon),
        ]
        for result in results
    ]
    head = [
        ("method", plan.name),
        ("data", f"{plan.experiment.data.name}, {plan.dataset_size} examples"),
        ("steps", f"{plan.steps}" + (", stopped by the budget" if plan.stopped_early else "")),
        ("delta", rounded_up(plan.delta)),
        ("run", str(folder)),
        *(("picture", picture) for picture in pictures),
    ]
    table = printing.table(("run", "accuracy", "C", "epsilon"), rows)
    return f"{printing.pairs(head)}\n\n{table}\n\n{spent.sentence}"


def _threshold(value: Any) -> str:
    if value is None:
        return "-"
    return " ".join(f"{c:.4g}" for c in (value if isinstance(value, list) else [value]))


def _data(results: Sequence[Result], folder: Path, pictures: Sequence[str]) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "pictures": list(pictures),
        "runs": [
            {
                "folder": str(result.folder.path),
                "accuracy": result.accuracy,
                "epsilon": result.epsilon,
                "delta": result.plan.delta,
                "accountant": result.plan.accountant,
                "threshold": result.threshold,
                "steps": result.plan.steps,
                "stopped_early": result.plan.stopped_early,
                "seconds": result.seconds,
            }
            for result in results
        ],
    }


COMMAND = Command(
    _add_flags,
    _run,
    (
        "dpjax train --method auto_s --epsilon 2",
        "dpjax train --set optimizer.learning_rate=0.01 --seeds 5 --out runs/five",
        "dpjax train --config mnist_dp_sgd --out runs/mnist",
        "dpjax train --resume --out runs/mnist",
    ),
)
