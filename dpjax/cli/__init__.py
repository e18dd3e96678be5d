"""The command line: ``dpjax COMMAND ...``. A new command is a module and a row of `COMMANDS`."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import dpjax
from dpjax.cli.command import (
    Command,
    Group,
    Parser,
    StoppedError,
    add_command,
    interrupts_kept,
)

__all__ = ["COMMANDS", "main"]

COMMANDS: Mapping[str, str] = {
    "train": "train a network with differential privacy",
    "compare": "train several methods at one budget: a table, a picture and a report",
    "report": "one HTML page about runs: accuracy, privacy in words, ledger, configuration",
    "export": "write the publishable parts of a run: model, experiment, privacy statement",
    "predict": "classify or continue texts with an exported language network",
    "data": "list data sets, check their files, download them",
    "epsilon": "the epsilon of a method under a sampler",
    "calibrate": "the noise multiplier that a budget allows",
    "tune-cost": "what tuning costs, by how it is accounted",
    "plot": "figures",
    "papers": "rerun the papers' tables and compare them with the printed numbers",
    "audit": "lower bounds on epsilon from attacks, compared with the claimed epsilon",
    "bench": "what a private step costs on this machine, engine by engine",
}
"""What each command does. Its module, of the same name, is imported when it is called."""

# What library errors advise, and how the command line says it.
_ADVICE = {
    r"resume=True": "--resume",
    r"rekey=True": "--rekey",
    r"another folder": "another --out",
    r"allow_import\('([^']*)'\)": r"--import \1",
    r"call dpjax\.data\.fetch\('(\w+)'\)": r"run `dpjax data fetch \1`",
    r"call dpjax\.data\.fetch\('(\w+)', (['\"])(.*?)\2\)": (
        r"run `dpjax data fetch \1 --data-dir \3`"
    ),
}

# Errors of a wrong request, file or environment; any other error is a bug and keeps its traceback.
_REFUSALS = (
    *(ValueError, TypeError, OSError, ImportError),
    *(ArithmeticError, MemoryError, RecursionError),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the arguments; None for the process's own.

    Returns:
        The exit code: 0 on success; 2 after one line on stderr that says what was wrong; 130 after
        Ctrl-C and 143 after SIGTERM, with a line that says how to resume.

    >>> main(["epsilon", "--method", "dp_sgd", "--noise-multiplier", "1", "--accountant", "rdp",
    ...       "--dataset-size", "1000", "--batch-size", "10", "--steps", "100", "--delta", "1e-5"])
    method    dp_sgd, noise multiplier 1
    sampling  Poisson at rate 0.01 (10 of 1000 expected)
    steps     100
    delta     1e-05
    <BLANKLINE>
    accountant  epsilon  at least  relation           guarantee
    rdp         1.215    -         add_or_remove_one  yes
    0
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        with interrupts_kept():
            args = _parser(arguments).parse_args(arguments)
            code = args.run(args)
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _REFUSALS as error:
        print(f"dpjax: error: {_sentence(error)}", file=sys.stderr)
        return 2
    except StoppedError as stop:
        print(f"dpjax: {stop}", file=sys.stderr)
        return stop.code
    except KeyboardInterrupt as stop:
        print(f"dpjax: stopped{''.join(f'; {how}' for how in stop.args)}", file=sys.stderr)
        return 130


def _parser(arguments: Sequence[str]) -> Parser:
    """Returns a parser with the names of all commands, and the flags of the one being called."""
    parser = Parser(
        prog="dpjax",
        description="Differentially private training, and what it costs.",
        epilog="`dpjax COMMAND --help` describes each command.",
    )
    parser.add_argument("--version", action="version", version=f"dpjax {dpjax.__version__}")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    called = next((word for word in arguments if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        add_command(parsers, name, summary, _command(name) if name == called else None)
    return parser


def _command(name: str) -> Command | Group:
    import_module("dpjax.papers.auto_dp_sgd")  # registers a method for the command line only
    module = import_module(f"dpjax.cli.{name.replace('-', '_')}")
    return module.GROUP if hasattr(module, "GROUP") else module.COMMAND


def _sentence(error: BaseException) -> str:
    """Returns an error's message on one line; for a file error, the file's name and the reason."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    else:
        text = " ".join(str(error).split()) or type(error).__name__
    for advised, here in _ADVICE.items():
        text = re.sub(advised, here, text)
    # A file may hold terminal control characters: escape them.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
