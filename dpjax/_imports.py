"""Imports of user code named in a configuration, restricted to modules the user has allowed."""

from importlib import import_module
from typing import Any

__all__ = ["allow_import", "imported"]

_allowed: set[str] = set()


def allow_import(module: str) -> None:
    """Imports a module and lets configurations refer to its contents as ``"module:name"``.

    A configuration alone never runs code, because it may come from an untrusted source.

    Args:
        module: its name, as in an import statement.

    Raises:
        ImportError: if there is no such module.

    Example:
        >>> allow_import("colorsys")
        >>> imported("data.name", "colorsys:rgb_to_hsv")(1.0, 0.0, 0.0)
        (0.0, 1.0, 1.0)
    """
    import_module(module)
    _allowed.add(module)


def imported(field: str, path: str) -> Any:
    """Returns the object that a configuration names as ``"module:name"``.

    Args:
        field: the configuration's field, for the error message.
        path: the name, such as ``"mine:Net"``.

    Raises:
        ValueError: if the module was not allowed or has no such name.

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
