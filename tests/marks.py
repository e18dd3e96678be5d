"""What runs by default and what is slow."""

from collections.abc import Collection, Iterable

import pytest


def some(names: Iterable[str], fast: Collection[str]) -> list:
    """Returns names as pytest's parameters; those that are not `fast` are marked slow."""
    names = list(names)
    unknown = set(fast) - set(names)
    if unknown:
        raise ValueError(f"fast = {sorted(unknown)}: expected some of {names}")
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in names]
