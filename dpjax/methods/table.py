"""Makes a method of a table: its plain form, or a constructor's name with arguments."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dpjax import _checks, methods
from dpjax._record import Record
from dpjax.mechanism import Mechanism
from dpjax.methods.base import Method

__all__ = ["build_method", "constructors"]


def constructors() -> dict[str, Callable[..., Method]]:
    """Returns the constructors of `dpjax.methods` by name."""
    return {name: getattr(methods, name) for name in methods.__all__ if name != "Method"}


def build_method(table: Any, facts: Mapping[str, Any]) -> Method | Mechanism:
    """Returns the method that a table describes.

    Args:
        table: a plain form, which has a "kind", or the "name" of a constructor with its arguments.
        facts: what the rest of the request says, for arguments that a constructor cannot do
            without and the table does not give: steps, steps_per_epoch, epochs, dataset_size.
    """
    if table is None:
        raise ValueError("method: missing; expected --method NAME, or a [method] table in the file")
    if "kind" in table:
        family = Mechanism if table["kind"] == "Mechanism" else Method
        try:
            return family.from_plain(table)
        except (TypeError, ValueError) as error:
            raise ValueError(f"method: {error}") from error
    return _constructed(table, facts)


def _constructed(table: dict[str, Any], facts: Mapping[str, Any]) -> Method:
    name, by_name = table.get("name"), constructors()
    if not isinstance(name, str) or name not in by_name:
        hint = _checks.nearest(str(name), by_name)
        raise ValueError(f"method.name = {name!r}: {hint}")
    known = inspect.signature(by_name[name]).parameters
    given = {key: value for key, value in table.items() if key != "name"}
    for key in given:
        if key not in known:
            raise ValueError(f"method.{key}: unknown; {_checks.nearest(key, known)}")
    for key, parameter in known.items():
        if key not in given and parameter.default is parameter.empty:
            given[key] = _from_facts(name, key, facts)
    try:
        return by_name[name](**{key: _value(value) for key, value in given.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"method {name}: {error}") from error


def _from_facts(name: str, key: str, facts: Mapping[str, Any]) -> Any:
    if facts.get(key) is None:
        raise ValueError(f"method.{key}: missing; {name} needs it, as in --set {key}=...")
    return facts[key]


def _value(value: Any) -> Any:
    """Returns an argument, with records for their plain forms; groups are tables without a kind."""
    if isinstance(value, dict) and "kind" in value:
        return Record.from_plain(value)
    if isinstance(value, list):
        return tuple(_value(item) for item in value)
    return value
