"""The price of tuning: ways to choose among private runs, each accounted and runnable."""

from dpjax.accounting.tuning.base import Found, Search, Tuning
from dpjax.accounting.tuning.grid import grid_composition
from dpjax.accounting.tuning.liu_talwar import liu_talwar
from dpjax.accounting.tuning.repeat import repeat_and_select
from dpjax.accounting.tuning.split import disjoint_split

__all__ = [
    "Found",
    "Search",
    "Tuning",
    "disjoint_split",
    "grid_composition",
    "liu_talwar",
    "repeat_and_select",
]
