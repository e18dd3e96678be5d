"""Standard JSON, which has neither NaN nor infinity."""

import json
import math

__all__ = ["dumps"]


def dumps(plain: object) -> str:
    """Returns plain data as JSON on one line; a number that is not finite becomes null.

    >>> dumps({"loss": float("nan"), "thresholds": [0.5, float("inf")]})
    '{"loss": null, "thresholds": [0.5, null]}'
    """
    return json.dumps(_finite(plain), allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
