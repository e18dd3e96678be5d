"""The papers' figures: what one is. Each is drawn by a `Figure` in a file of this folder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpjax.papers import Store

__all__ = ["Figure", "Sources"]


@dataclass(frozen=True)
class Sources:
    """What figures are drawn from.

    Attributes:
        store: the finished runs.
        data_dir: the folder of the data sets; None where none was named.
    """

    store: Store
    data_dir: str | None = None


@dataclass(frozen=True)
class Figure:
    """One figure, or a family of them.

    Attributes:
        summary: what it shows, and which of the papers' figures that is.
        draw: returns the matplotlib figure.
        measure: trains what the figure needs and the store does not hold; None for most.
    """

    summary: str
    draw: Callable[[Sources], Any]
    measure: Callable[[Sources, Callable[[str], None]], None] | None = None
