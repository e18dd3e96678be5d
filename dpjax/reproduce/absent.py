"""Why a recipe cannot be run where one is: no task for it, no weights, or no data."""

from dpjax.data import data_directory, source_of
from dpjax.reproduce.recipe import Recipe

__all__ = ["why_not_here"]


def why_not_here(recipe: Recipe, data_dir: str | None = None) -> str:
    """Says why a recipe cannot be run here; empty if it can.

    Args:
        recipe: the recipe.
        data_dir: the folder of the data sets, as `dpjax.data.load` takes it.
    """
    if recipe.experiment is None:
        return recipe.obstacle
    reasons = []
    if recipe.needs and recipe.experiment.model.weights is None:
        reasons.append(f"needs {recipe.needs}")
    name = recipe.experiment.data.name
    folder = source_of(name).folder
    if folder is not None and not (data_directory(data_dir) / folder).exists():
        reasons.append(f"{name}: no files at hand")
    return "; ".join(reasons)
