"""Reads a request from a TOML file and from flags, which override it."""

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import _toml
from dpjax.cli.flags import assignment
from dpjax.cli.request import Request
from dpjax.data.registry import source_of
from dpjax.train.config import Experiment

__all__ = ["read_request"]

_FIELDS = tuple(field.name for field in dataclasses.fields(Request))

# The fields taken from an experiment, besides its method and the size of its data.
_TAKEN = {
    "train": ("batch_size", "epochs", "steps", "sampling", "max_size"),
    "privacy": ("epsilon", "delta", "accountant"),
}

# A flag also removes the fields of the file that it replaces.
_REPLACES = {"steps": ("epochs",), "epochs": ("steps",), "sampling": ("max_size",)}


def read_request(args: argparse.Namespace) -> Request:
    """Returns the request for a command's arguments.

    A file is an experiment, as `dpjax train` reads it; accounting uses its data, method, train and
    privacy tables. It may also be a single mechanism, as in configs/methods and as written by
    `dpjax calibrate --output`.
    """
    file = _read(args.config)
    flags = {key: value for key, value in vars(args).items() if key in _FIELDS}
    table = _method(file.pop("method", None), flags.pop("method", None), _changes(args))
    for flag in flags:
        for replaced in _REPLACES.get(flag, ()):
            file.pop(replaced, None)
    if flags.get("sampling") == "full":
        file.pop("batch_size", None)
    merged = {**file, **flags}
    merged["accountant"] = _names(merged.get("accountant", ()))
    return Request(method=table, **merged)


def _read(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    plain = _toml.read(path)
    if "kind" in plain:
        return {"method": plain}
    Experiment.from_plain(plain)  # refuses what `dpjax train` would refuse
    found = {
        key: plain[section][key]
        for section, keys in _TAKEN.items()
        for key in keys
        if key in plain.get(section, {})
    }
    if "method" in plain:
        found["method"] = plain["method"]
    if (size := _dataset_size(plain.get("data", {}))) is not None:
        found["dataset_size"] = size
    return found


def _dataset_size(data: Mapping[str, Any]) -> int | None:
    """Returns the number of private examples, from the file or from the data set."""
    if "examples" in data:
        return data["examples"]
    return source_of(data["name"]).examples[0] if "name" in data else None


def _method(written: Any, name: str | None, changes: dict[str, Any]) -> Any:
    """Returns the method's table with changes applied: the file's, or the one a flag names."""
    table = {"name": written} if isinstance(written, str) else written
    if not isinstance(table, dict | None):
        raise TypeError(f"method = {table!r}: expected a table or a name")
    if name is not None and (table is None or "kind" in table or table.get("name") != name):
        table = {"name": name}
    if table is None and changes:
        raise ValueError(f"{next(iter(changes))} without a method: expected --method NAME")
    if table is None or not changes:
        return table
    return _changed_plain(table, changes) if "kind" in table else {**table, **changes}


def _changed_plain(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Changes the noise multiplier of a plain form, which has no other arguments to set."""
    for key in changes:
        if key != "noise_multiplier":
            raise ValueError(
                f"--set {key} with a method in plain form (kind = {table['kind']!r}): expected a "
                "[method] table with the name of a constructor"
            )
    return {**table, **changes}


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments that flags set."""
    changes = dict(assignment(text) for text in getattr(args, "set", ()))
    if hasattr(args, "noise_multiplier"):
        changes["noise_multiplier"] = args.noise_multiplier
    return changes


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise TypeError(f"accountant = {value!r}: expected a name or a list of names")
    return tuple(value)
