"""The recipes of all printed numbers, one file per paper."""

from collections.abc import Callable

from dpjax.papers.prerequisites import Findings
from dpjax.papers.printed_numbers import Cell
from dpjax.papers.recipe import Recipe
from dpjax.papers.recipes import auto_clip, auto_dp, dc_sgd, de, lin, psasc

__all__ = ["recipe_of"]

_RECIPES: dict[str, Callable[[Cell, Findings], Recipe]] = {
    "DC-SGD": dc_sgd.recipe,
    "Lin": lin.recipe,
    "AutoDP": auto_dp.recipe,
    "PSASC": psasc.recipe,
    "AutoClip": auto_clip.recipe,
    "De": de.recipe,
}


def recipe_of(cell: Cell, found: Findings | None = None) -> Recipe:
    """Returns how a printed number is reproduced.

    Args:
        cell: the number.
        found: the known results of prerequisites.

    Example:
        >>> from dpjax.papers.printed_numbers import cell_named
        >>> recipe_of(cell_named("psasc/III/mnist/4-layer-cnn/3/dp-psac")).experiment.method["name"]
        'psac'
    """
    return _RECIPES[cell.paper](cell, found or Findings())
