"""The command line: ``dpjax COMMAND ...``. A new command is one row of `COMMANDS`."""

import sys
from collections.abc import Mapping, Sequence

from dpjax.cli import (
    audit,
    calibrate,
    compare,
    data,
    epsilon,
    export,
    plot,
    reproduce,
    train,
    tune_cost,
)
from dpjax.cli.command import Command, Group, Parser, add_commands
from dpjax.cli.interrupt import interrupts_kept

__all__ = ["COMMANDS", "main"]

COMMANDS: Mapping[str, Command | Group] = {
    "train": train.COMMAND,
    "compare": compare.COMMAND,
    "export": export.COMMAND,
    "data": data.GROUP,
    "epsilon": epsilon.COMMAND,
    "calibrate": calibrate.COMMAND,
    "tune-cost": tune_cost.COMMAND,
    "plot": plot.GROUP,
    "reproduce": reproduce.GROUP,
    "audit": audit.COMMAND,
}

# What a wrong request, file or environment raises; anything else is a bug and keeps its traceback.
_REFUSALS = (
    *(ValueError, TypeError, OSError, ImportError),
    *(ArithmeticError, MemoryError, RecursionError),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the arguments; None takes the process's own.

    Returns:
        The exit code: 0; 2 after one line on stderr that says what was wrong; 130 after Ctrl-C,
        and a line that says how to go on.

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
    parser = Parser(
        prog="dpjax",
        description="Differentially private training, and what it costs.",
        epilog="`dpjax COMMAND --help` says more of each.",
    )
    add_commands(parser, COMMANDS)
    try:
        with interrupts_kept():
            args = parser.parse_args(argv)
            return args.run(args)
    except _REFUSALS as error:
        print(f"dpjax: error: {_sentence(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"dpjax: stopped{''.join(f'; {how}' for how in stop.args)}", file=sys.stderr)
        return 130


def _sentence(error: BaseException) -> str:
    """Returns what an error says, on one line; of a file, its name and what is wrong with it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    else:
        text = " ".join(str(error).split()) or type(error).__name__
    # A file may hold what a terminal obeys: it is shown, not sent.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
