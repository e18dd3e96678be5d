"""Checks of public configuration: one sentence with the field, its value and what was expected.

Every comparison is written so that NaN fails it (``not value > 0`` and never ``value <= 0``).
"""

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any

__all__ = ["finite", "fraction", "integer", "nearest", "non_negative", "ordered", "positive"]


def finite(field: str, value: Any) -> float:
    """Returns `value` as a Python float, or refuses what is no finite real number.

    >>> finite("lr", 1)
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{field} = {value!r}: expected a real number, got {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{field} = {value!r}: expected a finite number")
    return number


def positive(field: str, value: Any) -> float:
    """Returns `value` as a float that is finite and above zero.

    >>> positive("threshold", float("nan"))
    Traceback (most recent call last):
    ...
    ValueError: threshold = nan: expected a finite number > 0
    """
    if _is_real(value) and not (0 < value < math.inf):
        raise ValueError(f"{field} = {value!r}: expected a finite number > 0")
    return finite(field, value)


def non_negative(field: str, value: Any) -> float:
    """Returns `value` as a float that is finite and at least zero."""
    if _is_real(value) and not (0 <= value < math.inf):
        raise ValueError(f"{field} = {value!r}: expected a finite number >= 0")
    return finite(field, value)


def fraction(field: str, value: Any, *, zero: bool = False, one: bool = False) -> float:
    """Returns `value` as a float between 0 and 1; `zero` and `one` say which ends are allowed."""
    inside = _is_real(value) and (0 < value < 1 or (zero and value == 0) or (one and value == 1))
    if _is_real(value) and not inside:
        interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        raise ValueError(f"{field} = {value!r}: expected a number in {interval}")
    return finite(field, value)


def integer(field: str, value: Any, *, at_least: int) -> int:
    """Returns `value` as a Python int that is not below `at_least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{field} = {value!r}: expected an integer >= {at_least}")
    if value < at_least:
        raise ValueError(f"{field} = {value!r}: expected an integer >= {at_least}")
    return int(value)


def ordered(low_field: str, low: float, high_field: str, high: float) -> None:
    """Refuses limits that are not in order."""
    if not low < high:
        raise ValueError(f"{low_field} = {low!r}: expected less than {high_field} = {high!r}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Says which known name was probably meant, for the end of an error message.

    >>> nearest("gama", ["gamma", "scale"])
    "did you mean 'gamma'? (known: gamma, scale)"
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}(known: {', '.join(names) or 'none'})"


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
