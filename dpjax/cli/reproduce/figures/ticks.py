"""Ticks of logarithmic axes that can be read: 0.2, 0.5, 1, 2 and not 2 x 10^-1."""

import math
from typing import Any

__all__ = ["plain_ticks"]

_MOST_DECADES = 3.5


def plain_ticks(axes: Any) -> None:
    """Writes 1, 2 and 5 of each decade on the upward axis; of many decades, only their ends.

    An axis that is not logarithmic is left as it is.
    """
    if axes.get_yscale() != "log":
        return
    low, high = axes.get_ylim()
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    leading = (1, 2, 5) if math.log10(high / low) < _MOST_DECADES else (1,)
    ticks = [m * 10.0**k for k in range(first, last + 1) for m in leading]
    inside = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(inside, [f"{tick:g}" for tick in inside])
    axes.minorticks_off()
