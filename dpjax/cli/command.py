"""Commands, the parser built from a table of commands, and handling of Ctrl-C."""

import _thread
import argparse
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

__all__ = ["Command", "Group", "Parser", "StoppedError", "add_command", "interrupts_kept"]

_SECONDS = 0.05  # the delay before raising it again, by when the callback has ended


class StoppedError(Exception):
    """A command was stopped from outside; the message says how to resume.

    Args:
        message: the message, one line.
        code: the exit code.
    """

    def __init__(self, message: str, code: int) -> None:
        """Stores the exit code."""
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Command:
    """One command.

    Args:
        add_flags: adds the command's flags to its parser.
        run: does the work and returns the exit code; its errors become one line on stderr.
        examples: command lines for the end of its help.
    """

    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: Sequence[str] = ()


@dataclass(frozen=True)
class Group:
    """A command with subcommands, such as ``dpjax plot privacy``.

    Args:
        commands: for each name, one line for the help and the command.
    """

    commands: Mapping[str, tuple[str, Command]]


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps line breaks, and puts each command on its own line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = 14  # argparse ignores the indentation of command names


class Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing its usage and exiting, so all errors look alike."""

    def __init__(self, **kwargs: Any) -> None:
        """Disallows abbreviated flags, since a new flag could break scripts that use them."""
        super().__init__(**kwargs, allow_abbrev=False, formatter_class=_Formatter)

    def error(self, message: str) -> NoReturn:
        """Raises the message."""
        raise ValueError(message)


def add_command(parsers: Any, name: str, summary: str, command: Command | Group | None) -> None:
    """Adds the parser of a command and, for a group, the parsers of its commands.

    Args:
        parsers: the result of ``add_subparsers``.
        name: the command's name.
        summary: one line for the help.
        command: the command; None if it is only listed.
    """
    own = parsers.add_parser(name, help=summary, description=summary)
    if isinstance(command, Group):
        inner = own.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
        for each, (line, member) in command.commands.items():
            add_command(inner, each, line, member)
    elif command is not None:
        command.add_flags(own)
        if command.examples:
            own.epilog = "\n  ".join(("examples:", *command.examples))
        own.set_defaults(run=command.run)


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raises a KeyboardInterrupt again if it was raised where Python ignores exceptions.

    That is in a callback of the garbage collector (JAX has one) or of a weak reference, or in a
    ``__del__``, where Python prints an exception and continues.
    """
    before = sys.unraisablehook

    def again(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Timer(_SECONDS, _thread.interrupt_main).start()
        else:
            before(unraisable)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before
