"""``dpjax epsilon``: the cost of a run by each requested accountant."""

import argparse

from dpjax.cli import accountant_table, describe, flags, printing
from dpjax.cli.command import Command
from dpjax.cli.request import read_request

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add_request_flags(parser)
    parser.add_argument(
        "--runs",
        type=int,
        default=argparse.SUPPRESS,
        metavar="K",
        help="the number of runs published: print the cost of each, and of all",
    )


def _run(args: argparse.Namespace) -> int:
    request = read_request(args)
    setting = request.resolved()
    found = accountant_table.measured(setting, request.accountants(setting), request.runs)
    head = printing.pairs(describe.headed(request, setting))
    text = f"{head}\n\n{accountant_table.text(found, request.runs)}"
    data = describe.setting_data(request, setting)
    data.update(runs=request.runs, results=accountant_table.data(found))
    printing.show(args.json, text, data)
    return 0


COMMAND = Command(_add_flags, _run)
