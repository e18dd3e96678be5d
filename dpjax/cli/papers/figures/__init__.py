"""The record of a paper's figure; each file in this folder defines one or more `Figure`s."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpjax.papers import Store

__all__ = ["Figure", "Sources"]


@dataclass(frozen=True)
class Sources:
    """The sources of figures.

    Attributes:
        store: the finished runs.
        data_dir: the folder of the data sets; None if none was given.
    """

    store: Store
    data_dir: str | None = None


@dataclass(frozen=True)
class Figure:
    """One figure, or a family of them.

    Attributes:
        summary: what it shows, and the number of the paper's figure.
        draw: returns the matplotlib figure.
        measure: trains what the figure needs beyond the store; None for most figures.
    """

    summary: str
    draw: Callable[[Sources], Any]
    measure: Callable[[Sources, Callable[[str], None]], None] | None = None
