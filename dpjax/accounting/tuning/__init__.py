"""The price of tuning: ways to choose among private runs, each accounted and runnable."""

from dpjax.accounting.tuning.choices import (
    disjoint_split,
    grid_composition,
    liu_talwar,
    repeat_and_select,
)
from dpjax.accounting.tuning.search import Found, Search, Tuning

__all__ = [
    "Found",
    "Search",
    "Tuning",
    "disjoint_split",
    "grid_composition",
    "liu_talwar",
    "repeat_and_select",
]
