"""Makes a mechanism of a table: its plain form, or a constructor's name with arguments."""

import inspect
from collections.abc import Callable, Mapping

from dpjax import _checks, methods
from dpjax._record import Record
from dpjax.mechanism import Mechanism, Release

__all__ = ["build_method", "constructors", "register"]

_REGISTERED: dict[str, Callable[..., Release]] = {}


def constructors() -> dict[str, Callable[..., Release]]:
    """Returns the constructors by name: those of `dpjax.methods` and those registered.

    Example:
        >>> constructors()["dp_sgd"] is methods.dp_sgd
        True
    """
    return {**{name: getattr(methods, name) for name in methods.__all__}, **_REGISTERED}


def register(name: str, constructor: Callable[..., Release]) -> None:
    """Makes a constructor known by name, for tables and the command line.

    Args:
        name: the name, which must not be that of a constructor of `dpjax.methods`.
        constructor: returns a `Mechanism`, or another `Release` that is a record.

    Raises:
        ValueError: if the name is taken.
    """
    if name in methods.__all__ or _REGISTERED.get(name, constructor) is not constructor:
        raise ValueError(f"name = {name!r}: expected a name that is not taken")
    _REGISTERED[name] = constructor


def build_method(table: Mapping[str, object] | None, facts: Mapping[str, object]) -> Release:
    """Returns the mechanism that a table, such as one of a TOML file, describes.

    Args:
        table: the plain form of a mechanism, which has a "kind", or the "name" of a constructor
            with its arguments.
        facts: values for required arguments that the table leaves out: steps, steps_per_epoch,
            epochs, dataset_size.

    Raises:
        ValueError: if the table names no known constructor, an unknown or invalid argument, or
            leaves out a required one that `facts` does not have either.

    Example:
        >>> build_method({"name": "yu", "c0": 2.0}, {"steps": 100}).threshold
        yu_linear(init=2.0, steps=100)
    """
    if table is None:
        raise ValueError("method: missing; expected the name of a constructor of dpjax.methods")
    if "kind" in table:
        try:
            return _release(Record.from_plain(table))
        except (TypeError, ValueError) as error:
            raise ValueError(f"method: {error}") from error
    return _constructed(table, facts)


def _release(record: Record) -> Release:
    if isinstance(record, Mechanism) or hasattr(record, "transformation"):
        return record  # type: ignore[return-value]
    raise TypeError(f"{record!r}: expected the plain form of a mechanism")


def _constructed(table: Mapping[str, object], facts: Mapping[str, object]) -> Release:
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


def _from_facts(name: str, key: str, facts: Mapping[str, object]) -> object:
    if facts.get(key) is None:
        raise ValueError(f"method.{key}: missing; {name} needs it")
    return facts[key]


def _value(value: object) -> object:
    """Returns an argument, with records for their plain forms; groups are tables without a kind."""
    if isinstance(value, dict) and "kind" in value:
        return Record.from_plain(value)
    if isinstance(value, list):
        return tuple(_value(item) for item in value)
    return value
