"""Frozen records: public configuration that can be compared, printed and converted to plain data.

A record is a frozen dataclass. Its plain form is a dict of numbers, strings, lists and such dicts,
with the class's name under ``"kind"``, so it fits in TOML and JSON. Reading it back only calls the
constructors of known records, so the worst a hostile file can do is raise an error.
"""

import dataclasses
from typing import Any, ClassVar, Self

from dpjax import _checks

__all__ = ["Record"]

_KINDS: dict[str, type["Record"]] = {}


class Record:
    """Base class of all frozen configuration; subclasses are ``@dataclass(frozen=True)``.

    `from_plain` finds a subclass by its class name as soon as it is defined, inside or outside the
    package.
    """

    role: ClassVar[str] = "record"

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Registers the class under its name; two modules cannot register the same name."""
        super().__init_subclass__(**kwargs)
        if "role" in cls.__dict__:  # a family's base, never instantiated
            return
        known = _KINDS.setdefault(cls.__name__, cls)
        if known.__module__ != cls.__module__:
            raise TypeError(
                f"record {cls.__name__!r} in {cls.__module__}: expected a new name, "
                f"{known.__module__} has one of that name"
            )
        _KINDS[cls.__name__] = cls

    def _set(self, **values: object) -> None:
        """Stores normalised field values; for ``__post_init__`` only."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def replace(self, **changes: object) -> Self:
        """Returns a copy with some fields changed, checked like a new one."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def to_plain(self) -> dict[str, Any]:
        """Returns the record as plain data; fields at None are left out (TOML has no null)."""
        plain: dict[str, Any] = {"kind": type(self).__name__}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None:
                plain[field.name] = _value_to_plain(field.name, value)
        return plain

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """Builds the record from the output of `to_plain`; unknown kinds and fields raise."""
        record = _value_from_plain(cls.__name__, plain)
        if not isinstance(record, cls):
            raise TypeError(f"{plain!r}: expected the plain form of a {cls.role}")
        return record


def _value_to_plain(field: str, value: object) -> Any:
    if isinstance(value, Record):
        return value.to_plain()
    if isinstance(value, tuple):
        return [_value_to_plain(f"{field}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{field} = {value!r}: a bare callable has no plain form; wrap it as "
        f"dpjax.schedules.table.from_callable({field}, steps)"
    )


def _value_from_plain(field: str, plain: object) -> Any:
    if isinstance(plain, dict):
        return _record_from_plain(field, plain)
    if isinstance(plain, list | tuple):
        return tuple(_value_from_plain(f"{field}[{i}]", item) for i, item in enumerate(plain))
    if isinstance(plain, bool | int | float | str):
        return plain
    raise TypeError(f"{field} = {plain!r}: expected a number, a string, a list or a table")


def _record_from_plain(field: str, plain: dict[str, Any]) -> Record:
    kind = plain.get("kind")
    if not isinstance(kind, str):
        raise ValueError(f"{field}: expected a 'kind' that names a record, got {kind!r}")
    if kind not in _KINDS:
        raise ValueError(f"{field}.kind = {kind!r}: {_checks.nearest(kind, _KINDS)}")
    known = {f.name: f for f in dataclasses.fields(_KINDS[kind])}  # type: ignore[arg-type]
    values = {key: value for key, value in plain.items() if key != "kind"}
    for key in values:
        if key not in known:
            raise ValueError(f"{field}.{key}: unknown; {_checks.nearest(str(key), known)}")
    for name, spec in known.items():
        if name not in values and spec.default is dataclasses.MISSING:
            raise ValueError(f"{field}.{name}: missing; kind {kind!r} needs it")
    return _KINDS[kind](
        **{name: _value_from_plain(f"{field}.{name}", value) for name, value in values.items()}
    )
