"""``dpjax export``: writes the parts of a run that may be published."""

import argparse
from pathlib import Path

from dpjax.cli.command import Command
from dpjax.cli.experiment import load_data
from dpjax.train import RunFolder, allow_import, export

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the folder of a run, as in runs/mnist")
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="a new folder, or an empty one"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="the folder of the data sets; without it, DPJAX_DATA or ~/.cache/dpjax",
    )
    parser.add_argument(
        "--import",
        action="append",
        default=[],
        dest="imports",
        metavar="MODULE",
        help="the same as for training",
    )


def _run(args: argparse.Namespace) -> int:
    run = RunFolder(Path(args.folder))
    for module in args.imports:
        allow_import(module)
    dataset = load_data(run.read_config(), args.data_dir)
    for file in export(run, dataset, Path(args.output)):
        print(file)
    return 0


COMMAND = Command(
    _add_flags,
    _run,
    ("dpjax export runs/mnist --output mnist-model",),
)
