"""The flags of accounting commands, and how ``--config`` and ``--set KEY=VALUE`` are read."""

import argparse
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

__all__ = ["add_config_flag", "add_request_flags", "add_target_flag", "assignment"]


def shipped_config(name: str, *rooms: str) -> str:
    """Returns the file of an experiment that ships with the package.

    Args:
        name: its name, such as "digits".
        rooms: the folders in configs/ to look it up in, in this order.
    """
    folders = [Path(str(files("dpjax.configs") / room)) for room in rooms]
    known = {path.stem: path for folder in reversed(folders) for path in folder.glob("*.toml")}
    if name not in known:
        names = ", ".join(sorted(known))
        raise argparse.ArgumentTypeError(
            f"{name!r}: expected a TOML file, or the name of a shipped one ({names})"
        )
    return str(known[name])


def add_config_flag(group: Any, *rooms: str, meaning: str = "flags override it") -> None:
    """Adds --config, which takes a file or the name of a shipped one.

    Args:
        group: the parser.
        rooms: the folders in configs/ to look a name up in, in this order.
        meaning: the end of the help text.
    """

    def shipped_or_given(text: str) -> str:
        if Path(text).exists() or Path(text).suffix:
            return text
        return shipped_config(text, *rooms)

    group.add_argument(
        "--config",
        type=shipped_or_given,
        metavar="FILE",
        help=f"a TOML file, or the name of a shipped one; {meaning}",
    )


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a request; a flag that is not given is absent from the namespace."""
    parser.set_defaults(config=None, json=False)
    add_config_flag(parser, "accounting", "methods", "train")
    parser.add_argument("--json", action="store_true", help="print JSON, at full precision")
    _add_method_flags(parser.add_argument_group("method"))
    _add_sampling_flags(parser.add_argument_group("sampling and length"))
    _add_accounting_flags(parser.add_argument_group("accounting"))


def add_target_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --epsilon, the budget to calibrate for."""
    _add(parser, "--epsilon", type=float, metavar="X", help="the budget, for instance 2")


def _add_method_flags(group: Any) -> None:
    _add(group, "--method", metavar="NAME", help="a constructor in dpjax.methods")
    _add(
        group,
        "--set",
        action="append",
        metavar="KEY=VALUE",
        help="an argument of that constructor, as a TOML literal; repeatable",
    )
    _add(group, "--noise-multiplier", type=float, metavar="X", help="the total, accounted sigma")


def _add_sampling_flags(group: Any) -> None:
    _add(group, "--sampling", metavar="NAME", help="poisson (default), truncated, fixed or full")
    _add(group, "--dataset-size", type=int, metavar="N", help="the number of examples")
    _add(group, "--batch-size", type=int, metavar="B", help="expected batch size; the rate is B/N")
    _add(group, "--max-size", type=int, metavar="M", help="the largest batch, for truncated")
    _add(group, "--steps", type=int, metavar="T", help="how many steps are released")
    _add(group, "--epochs", type=float, metavar="E", help="instead of steps: ceil(E N / B) steps")
    _add(group, "--start", type=int, metavar="T", help="how many steps were released before")


def _add_accounting_flags(group: Any) -> None:
    _add(group, "--delta", type=_delta, metavar="X", help='a number or "1/N", the default')
    _add(
        group,
        "--accountant",
        action="append",
        metavar="NAME",
        help="pld, rdp, tcdp, gdp, or all that know the sampler; repeatable",
    )
    _add(group, "--relation", metavar="NAME", help="add_or_remove_one or replace_one")


def _add(group: Any, flag: str, **kwargs: Any) -> None:
    group.add_argument(flag, default=argparse.SUPPRESS, **kwargs)


def _delta(text: str) -> float | str:
    return text if text == "1/N" else float(text)


_delta.__name__ = "delta"  # argparse shows it in its error message


def assignment(text: str) -> tuple[str, Any]:
    """Reads ``key=value``: a TOML literal, or a bare word or path, which is a string.

    >>> assignment("thresholds=[1, 0.5]"), assignment("privacy.delta=1/N")
    (('thresholds', [1, 0.5]), ('privacy.delta', '1/N'))
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise ValueError(f"--set {text}: expected KEY=VALUE")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError as error:
        if re.fullmatch(r"[\w./~+:-]+", value):
            return key, value
        raise ValueError(
            f'--set {text}: expected a TOML literal such as 0.5, 3, true, "text" or [1, 2]; in a '
            f"shell, quote text twice: --set '{key}=\"...\"'"
        ) from error
    if set(parsed) != {"value"}:
        raise ValueError(f"--set {text}: expected one value")
    return key, parsed["value"]
