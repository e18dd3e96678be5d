"""Checks of public configuration: one sentence with the field, its value and what was expected.

Every comparison is written so that NaN fails it (``not value > 0`` and never ``value <= 0``).
"""

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import TypeGuard

__all__ = [
    "LARGEST",
    "SMALLEST",
    "batch_size",
    "choice",
    "finite",
    "fraction",
    "integer",
    "nearest",
    "non_negative",
    "normal",
    "ordered",
    "positive",
]

SMALLEST, LARGEST = 1e-25, 1e25
"""The range of numbers for which float32 arithmetic is far from both underflow and overflow."""

_LAST_INTEGER = 2**63 - 1
_LISTED = 100  # a message lists at most this many names, and otherwise the nearest ones


def finite(field: str, value: object) -> float:
    """Returns `value` as a Python float; raises unless it is a finite real number.

    >>> finite("lr", 1)
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{field} = {value!r}: expected a real number, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{field} = {_shown(value)}: expected a finite number")
    return number


def positive(field: str, value: object) -> float:
    """Returns `value` as a float that is finite and above zero.

    >>> positive("threshold", float("nan"))
    Traceback (most recent call last):
    ...
    ValueError: threshold = nan: expected a finite number > 0
    """
    if _is_real(value) and not (0 < value < math.inf):
        raise ValueError(f"{field} = {_shown(value)}: expected a finite number > 0")
    return finite(field, value)


def normal(field: str, value: object, *, zero: bool = False) -> float:
    """Returns `value` as a float in [`SMALLEST`, `LARGEST`], or 0 where `zero` allows it.

    For numbers used in float32 arithmetic, where 1e300 is infinite and 1e-300 is 0.

    >>> normal("c0", 1e300)
    Traceback (most recent call last):
    ...
    ValueError: c0 = 1e+300: expected a number in [1e-25, 1e+25], where float32 has room
    """
    number = non_negative(field, value) if zero else positive(field, value)
    if not (SMALLEST <= number <= LARGEST or (zero and number == 0)):
        raise ValueError(
            f"{field} = {_shown(value)}: expected a number in [{SMALLEST:g}, {LARGEST:g}], where "
            "float32 has room"
        )
    return number


def batch_size(field: str, value: object) -> float:
    """Returns an expected batch size as a float that is at least 1.

    >>> batch_size("expected_batch_size", 0.1)
    Traceback (most recent call last):
    ...
    ValueError: expected_batch_size = 0.1: expected a number >= 1: examples, not a sampling rate
    """
    if _is_real(value) and not value >= 1:
        rate = ": examples, not a sampling rate" if 0 < value < 1 else ""
        raise ValueError(f"{field} = {_shown(value)}: expected a number >= 1{rate}")
    return normal(field, value)


def non_negative(field: str, value: object) -> float:
    """Returns `value` as a float that is finite and at least zero."""
    if _is_real(value) and not (0 <= value < math.inf):
        raise ValueError(f"{field} = {_shown(value)}: expected a finite number >= 0")
    return finite(field, value)


def fraction(field: str, value: object, *, zero: bool = False, one: bool = False) -> float:
    """Returns `value` as a float between 0 and 1; `zero` and `one` say which ends are allowed."""
    inside = _is_real(value) and (0 < value < 1 or (zero and value == 0) or (one and value == 1))
    if _is_real(value) and not inside:
        interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        raise ValueError(f"{field} = {_shown(value)}: expected a number in {interval}")
    return finite(field, value)


def integer(field: str, value: object, *, at_least: int) -> int:
    """Returns `value` as a Python int that is not below `at_least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{field} = {value!r}: expected an integer >= {at_least}")
    number = int(value)
    if not at_least <= number <= _LAST_INTEGER:
        below = "" if number < at_least else " and below 2^63"
        raise ValueError(f"{field} = {_shown(number)}: expected an integer >= {at_least}{below}")
    return number


def choice(field: str, value: object, known: Iterable[str]) -> str:
    """Returns `value` if it is one of the known names; anything else raises."""
    names = list(known)
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{field} = {value!r}: {nearest(str(value), names)}")
    return value


def ordered(low_field: str, low: float, high_field: str, high: float) -> None:
    """Raises unless ``low < high``."""
    if not low < high:
        raise ValueError(f"{low_field} = {low!r}: expected less than {high_field} = {high!r}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns the end of an error message: a suggestion, and the known names.

    >>> nearest("gama", ["gamma", "scale"])
    "did you mean 'gamma'? (known: gamma, scale)"
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=4)
    hint = f"did you mean {close[0]!r}? " if close else ""
    if len(names) > _LISTED:
        names = [*close, f"{len(names) - len(close)} others"]
    return f"{hint}(known: {', '.join(names) or 'none'})"


def _is_real(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:
        if not isinstance(value, int):
            raise
        return f"an integer of {value.bit_length()} bits"  # more digits than Python writes
