"""Prints what a command found: text for people, or JSON with every digit."""

import json
import math
from typing import Any

from dpjax.accounting import Bound

__all__ = ["bound_data", "show"]


def show(as_json: bool, text: str, data: dict[str, Any]) -> None:
    """Prints the one or the other."""
    print(json.dumps(_finite(data), indent=1, allow_nan=False) if as_json else text)


def bound_data(bound: Bound) -> dict[str, Any]:
    """Returns a bound on epsilon as plain data."""
    return {
        "epsilon": bound.upper,
        "lower": bound.lower,
        "accountant": bound.accountant,
        "relation": bound.relation,
        "guarantee": bound.guarantee,
        "note": bound.note,
    }


def _finite(value: Any) -> Any:
    """Writes infinity as "inf" and NaN as null: JSON has no numbers for them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return str(value) if isinstance(value, float) and math.isinf(value) else value
