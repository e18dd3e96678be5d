"""Reads and writes TOML; the standard library only reads it."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["Table", "dumps", "read"]

Table: TypeAlias = Mapping[str, Any]
"""A table as TOML or JSON holds it; its values are checked where they are used."""


def read(path: str | Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        ValueError: naming the file, if it is not valid TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected TOML: {error}") from error


def dumps(plain: Mapping[str, object]) -> str:
    """Returns a table as TOML: values first, then a header for each table in it.

    More deeply nested tables are written inline, as in configs/methods.

    >>> print(dumps({"kind": "a", "inner": {"x": 1.0, "rule": {"kind": "b"}}}))
    kind = "a"
    <BLANKLINE>
    [inner]
    x = 1.0
    rule = { kind = "b" }
    <BLANKLINE>
    """
    values = {key: value for key, value in plain.items() if not isinstance(value, dict)}
    parts = [_lines(values)] if values else []
    for key, value in plain.items():
        if isinstance(value, dict):
            parts.append(f"[{_key(key)}]\n{_lines(value)}")
    return "\n".join(parts)


def _lines(values: Mapping[str, object]) -> str:
    return "".join(f"{_key(key)} = {_value(key, value)}\n" for key, value in values.items())


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _value(field: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # TOML writes 1e-05, inf and nan as Python does
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(field, item) for item in value)}]"
    if isinstance(value, dict):
        inside = ", ".join(f"{_key(key)} = {_value(key, item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    raise TypeError(f"{field} = {value!r}: expected a number, a string, a list or a table")


def _string(text: str) -> str:
    # JSON and TOML use the same escapes, except that JSON does not escape DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
