"""Any optax optimizer and schedule by name, from plain data."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import optax

from dpjax import _checks
from dpjax.train.config import OptimizerConfig

__all__ = ["build_optimizer", "optimizers", "schedules"]

# The length of a schedule that is given none is that of the run.
_LENGTHS = ("decay_steps", "transition_steps")

# Parts of optimizers; one that needs the loss's value at several points; one with noise of its own.
_UNFIT = ("scale_by_learning_rate", "scale_by_rprop", "scale_by_schedule", "lbfgs", "noisy_sgd")


def optimizers() -> dict[str, Callable[..., Any]]:
    """Returns optax's optimizers by name: its public functions that take a learning rate first.

    >>> {"sgd", "adam", "adamw", "lamb", "lion"} <= set(optimizers())
    True
    """
    found = {name: f for name, f in _functions().items() if _first(f) == "learning_rate"}
    return {name: f for name, f in found.items() if name not in _UNFIT}


def schedules() -> dict[str, Callable[..., Any]]:
    """Returns optax's schedules by name.

    >>> "cosine_onecycle_schedule" in schedules()
    True
    """
    names = [name for name in _functions() if name.endswith("_schedule") and name not in _UNFIT]
    return {name: _functions()[name] for name in (*names, "exponential_decay")}


def build_optimizer(
    config: OptimizerConfig, steps: int, learning_rate: Any = None
) -> optax.GradientTransformation:
    """Returns the optimizer of a config.

    Args:
        config: the table.
        steps: T, the length of a schedule that says none.
        learning_rate: in place of the config's, possibly traced.

    Example:
        >>> rate = {"name": "cosine_decay_schedule", "init_value": 0.1}
        >>> tx = build_optimizer(OptimizerConfig("sgd", rate, {"momentum": 0.9}), steps=100)
        >>> isinstance(tx, optax.GradientTransformation)
        True
    """
    known = optimizers()
    if config.name not in known:
        raise ValueError(f"optimizer.name = {config.name!r}: {_checks.nearest(config.name, known)}")
    rate = config.learning_rate if learning_rate is None else learning_rate
    if isinstance(rate, dict):
        rate = _schedule(rate, steps)
    arguments = {"learning_rate": rate, **config.options}
    return _call("optimizer", known[config.name], arguments)


def _schedule(table: Mapping[str, Any], steps: int) -> Any:
    known, where = schedules(), "optimizer.learning_rate"
    name = table.get("name")
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{where}.name = {name!r}: {_checks.nearest(str(name), known)}")
    arguments = {key: _boundaries(value) for key, value in table.items() if key != "name"}
    for length in _LENGTHS:
        if length in inspect.signature(known[name]).parameters:
            arguments.setdefault(length, steps)
    return _call(where, known[name], arguments)


def _call(where: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    parameters = inspect.signature(function).parameters
    for key, value in arguments.items():
        if key not in parameters:
            raise ValueError(f"{where}.{key}: unknown; {_checks.nearest(key, parameters)}")
        if isinstance(value, str):
            raise TypeError(f"{where}.{key} = {value!r}: expected a number, a flag or a list")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise ValueError(f"{where}.{key}: missing; {function.__name__} needs it")
    try:
        return function(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {function.__name__}: {error}") from error


def _boundaries(value: Any) -> Any:
    """Returns a table of steps and numbers with the steps as integers; TOML has them as text."""
    if isinstance(value, dict) and all(key.isdecimal() for key in value):
        return {int(key): item for key, item in value.items()}
    return value


def _functions() -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in vars(optax).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


def _first(function: Callable[..., Any]) -> str | None:
    return next(iter(inspect.signature(function).parameters), None)
