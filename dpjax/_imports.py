"""Code that a configuration may name: only what the person at the keyboard has allowed."""

from importlib import import_module
from typing import Any

__all__ = ["allow_import", "imported"]

_allowed: set[str] = set()


def allow_import(module: str) -> None:
    """Imports a module and lets configurations name what is in it, as ``"module:name"``.

    A configuration alone never runs code: it may come from anywhere.

    Args:
        module: its name, as in an import statement.

    Raises:
        ImportError: there is no such module.
    """
    import_module(module)
    _allowed.add(module)


def imported(field: str, path: str) -> Any:
    """Returns what a configuration names by ``"module:name"``.

    Args:
        field: of the configuration, for the message.
        path: the name.

    Raises:
        ValueError: the module was not allowed, or has no such name.

    Example:
        >>> imported("model.name", "os:system")
        Traceback (most recent call last):
        ...
        ValueError: model.name = 'os:system': expected allow_import('os') first, since a ...
    """
    module, _, name = path.partition(":")
    if module not in _allowed:
        raise ValueError(
            f"{field} = {path!r}: expected allow_import({module!r}) first, since a configuration "
            "alone runs no code"
        )
    found = getattr(import_module(module), name, None)
    if not callable(found):
        raise ValueError(f"{field} = {path!r}: expected a function or class {name!r} in {module}")
    return found
