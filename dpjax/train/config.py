"""An experiment as a frozen record: what is trained, on what, how, and for which budget."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dpjax import _checks, _toml
from dpjax.train.sections import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PrivacyConfig,
    RunConfig,
    TrainConfig,
)

__all__ = ["Experiment"]

_OPEN = ("model", "optimizer")  # tables that also hold the arguments of what they name


@dataclass(frozen=True)
class Experiment:
    """One experiment: a TOML file has a table for each field; all have defaults.

    Args:
        data: the data set.
        model: the network.
        method: a table: a constructor's name in `dpjax.methods` with arguments, or a plain form.
        optimizer: the optimizer.
        train: the loop.
        privacy: the budget.
        run: seeds, evaluations, placement.

    Example:
        >>> experiment = Experiment.from_plain({"method": {"name": "auto_s"}})
        >>> experiment.set("optimizer.learning_rate", 0.01).optimizer.learning_rate
        0.01
        >>> Experiment.from_plain({"train": {"batchsize": 64}})
        Traceback (most recent call last):
        ...
        ValueError: train.batchsize: unknown; did you mean 'batch_size'? (known: augment, ...)
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: Mapping[str, Any] = field(default_factory=lambda: {"name": "dp_sgd", "threshold": 1.0})
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(batch_size=256, epochs=10))
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Reads an experiment; unknown keys are refused with the nearest name."""
        if not isinstance(plain, Mapping):
            raise TypeError(f"experiment = {plain!r}: expected a table of tables")
        sections = {f.name: f for f in dataclasses.fields(cls)}
        for key in plain:
            if key not in sections:
                raise ValueError(f"{key}: unknown; {_checks.nearest(str(key), sections)}")
        values: dict[str, Any] = {}
        for name, table in plain.items():
            if name == "method" and isinstance(table, str):
                table = {"name": table}  # noqa: PLW2901
            if not isinstance(table, Mapping):
                raise TypeError(f"{name} = {table!r}: expected a table")
            values[name] = dict(table) if name == "method" else _section(name, table)
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Reads a TOML file."""
        try:
            return cls.from_plain(_toml.read(path))
        except (TypeError, ValueError) as error:
            if str(error).startswith(str(path)):
                raise
            raise type(error)(f"{path}: {error}") from error

    def to_plain(self) -> dict[str, Any]:
        """Returns the experiment as plain data, with every default written out."""
        plain: dict[str, Any] = {}
        for section in dataclasses.fields(self):
            value = getattr(self, section.name)
            plain[section.name] = dict(value) if section.name == "method" else _plain(value)
        return plain

    def to_toml(self) -> str:
        """Returns the experiment as TOML."""
        return _toml.dumps(self.to_plain())

    def set(self, path: str, value: Any) -> Self:
        """Returns a copy with the value at a path such as "train.batch_size" changed."""
        return self.with_values({path: value})

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Returns a copy with the values at several paths changed, checked together.

        The word "none" takes a value away, where a default or its absence then holds.
        """
        plain = self.to_plain()
        for path, value in values.items():
            section, dot, key = path.partition(".")
            if not dot or not key:
                raise ValueError(f"{path}: expected a path such as train.batch_size")
            if section not in plain:
                raise ValueError(f"{path}: {section}: unknown; {_checks.nearest(section, plain)}")
            _give_way(plain, path, value)
            _put(plain[section], key.split("."), value, path)
        return self.from_plain(plain)

    @property
    def identity(self) -> str:
        """A hash of all that decides what is released: every table but `run`.

        It is folded into the keys, so that one noise never covers two signals.
        """
        plain = self.to_plain()
        del plain["run"]
        if self.model.weights_sha256 is not None:
            del plain["model"]["weights"]  # their content counts, not where they lie
        text = json.dumps(plain, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


_SECTIONS: dict[str, type[Any]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "train": TrainConfig,
    "privacy": PrivacyConfig,
    "run": RunConfig,
}


def _section(name: str, table: Mapping[str, Any]) -> Any:
    cls = _SECTIONS[name]
    known = {f.name for f in dataclasses.fields(cls)} - {"options"}
    rest = {key: value for key, value in table.items() if key not in known}
    own = {key: value for key, value in table.items() if key in known}
    if name in _OPEN:
        tables = {key: value for key, value in own.items() if isinstance(value, Mapping)}
        _refuse_not_finite(name, rest | tables)
        return cls(**own, options=rest)
    for key in rest:
        raise ValueError(f"{name}.{key}: unknown; {_checks.nearest(str(key), known)}")
    return cls(**own)


def _refuse_not_finite(path: str, value: Any) -> None:
    """Refuses numbers that are none: what they are passed to need not look at them."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_not_finite(f"{path}.{key}", item)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _refuse_not_finite(f"{path}[{i}]", item)
    elif isinstance(value, float):
        _checks.finite(path, value)


def _plain(section: Any) -> dict[str, Any]:
    """Returns a section as a table; fields at None are left out (TOML has no null)."""
    plain: dict[str, Any] = {}
    for f in dataclasses.fields(section):
        value = getattr(section, f.name)
        if f.name == "options":
            plain.update(value)
        elif value is not None:
            plain[f.name] = list(value) if isinstance(value, tuple) else value
    return plain


def _give_way(plain: dict[str, Any], path: str, value: Any) -> None:
    """Takes away what a new value stands in place of."""
    if path == "train.epochs":
        plain["train"].pop("steps", None)
    if path == "train.steps":
        plain["train"].pop("epochs", None)
    if path == "train.sampling" and value == "full":
        plain["train"].pop("batch_size", None)
    if path == "method.name" and plain["method"].get("name") != value:
        plain["method"] = {}  # another constructor has other arguments


def _put(table: dict[str, Any], keys: list[str], value: Any, path: str) -> None:
    for key in keys[:-1]:
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{path}: expected a table at {key!r}, found {inner!r}")
        table[key] = table = dict(inner)
    if value == "none":
        table.pop(keys[-1], None)
    else:
        table[keys[-1]] = value
