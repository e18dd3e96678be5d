"""``dpjax export``: what may be published of a run."""

import argparse
from pathlib import Path

from dpjax import data
from dpjax.cli.command import Command
from dpjax.train import RunFolder, export

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--output", required=True, metavar="DIR", help="a new folder")
    parser.add_argument(
        "--data-dir", metavar="DIR", help="where data sets are; DPJAX_DATA by default"
    )


def _run(args: argparse.Namespace) -> int:
    run = RunFolder(Path(args.run))
    dataset = data.load(run.read_config().data.name, args.data_dir)
    for file in export(run, dataset, Path(args.output)):
        print(file)
    return 0


COMMAND = Command("the model of a run, its experiment and its privacy statement", _add_flags, _run)
