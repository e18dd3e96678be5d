"""Calls of the command line, as the tests make them."""

import json
from collections.abc import Sequence
from typing import Any

from dpjax.cli import main

RUN = (
    *("--method", "dp_sgd", "--noise-multiplier", "1.1"),
    *("--dataset-size", "1000", "--batch-size", "10", "--steps", "50"),
)
SMALL = (*RUN, "--accountant", "rdp")


def printed(capsys, argv: Sequence[str]) -> str:
    """Returns what a command prints that goes well."""
    code = main(argv)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return out


def data(capsys, argv: Sequence[str]) -> dict[str, Any]:
    """Returns the JSON that a command prints."""
    return json.loads(printed(capsys, [*argv, "--json"]))


def refused(capsys, argv: Sequence[str]) -> str:
    """Returns the one line of a command that is refused."""
    code = main(argv)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("dpjax: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("dpjax: error: ").rstrip("\n")
