"""The runs that some cells still need: prerequisites, searches, then results by seed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpjax.data import File, Folder, data_directory, source_of
from dpjax.papers import Cell, SeededRun, Store, recipe_of
from dpjax.papers.prerequisites import Prerequisite
from dpjax.papers.recipe import Recipe
from dpjax.papers.running import NFNETS, nfnet_path, pretrained_path
from dpjax.train.config import ModelConfig

__all__ = ["Agenda", "agenda_of", "why_not_here"]


@dataclass(frozen=True)
class Agenda:
    """What is still to be run.

    Attributes:
        prerequisites: what experiments need first.
        searches: runs that choose among candidates.
        results: runs behind the numbers, ordered by seed; cells whose search is unfinished have
            none yet.
        undecided: how many results wait for a prerequisite or a choice.
        refused: the cells that cannot be run here, with the reason.
    """

    prerequisites: tuple[Prerequisite, ...]
    searches: tuple[SeededRun, ...]
    results: tuple[SeededRun, ...]
    undecided: int
    refused: tuple[tuple[Cell, str], ...]

    @property
    def obstacles(self) -> Counter[str]:
        """The number of cells that each reason keeps from being run."""
        return Counter(why for _, why in self.refused)


def agenda_of(
    cells: Iterable[Cell],
    store: Store,
    seeds: int,
    data_dir: str | None = None,
    pretrained: str | None = None,
) -> Agenda:
    """Returns the runs that cells need and the store does not have.

    Args:
        cells: the cells.
        store: the finished runs.
        seeds: the number of seeds of each result.
        data_dir: the folder of the data sets.
        pretrained: as for `why_not_here`.
    """
    recipes = [(cell, recipe_of(cell, store.findings)) for cell in cells]
    reasons = [(cell, why_not_here(recipe, data_dir, pretrained)) for cell, recipe in recipes]
    able = [recipe for (_, recipe), (_, why) in zip(recipes, reasons, strict=True) if not why]
    questions = {q.key: q for recipe in able if (q := recipe.waits_for) is not None}
    results, undecided = [], 0
    for recipe in able:
        choice = store.choice(recipe)
        if choice is None or recipe.waits_for is not None:
            undecided += seeds
        else:
            results += recipe.results(choice, seeds)
        results += recipe.sound_results(seeds)
    return Agenda(
        tuple(questions.values()),
        _new([run for recipe in able for run in recipe.candidates()], store),
        _new(sorted(results, key=lambda run: run.seed), store),
        undecided,
        tuple((cell, why) for cell, why in reasons if why),
    )


def _new(runs: Sequence[SeededRun], store: Store) -> tuple[SeededRun, ...]:
    return tuple({run.key: run for run in runs if run.key not in store.records}.values())


def why_not_here(recipe: Recipe, data_dir: str | None = None, pretrained: str | None = None) -> str:
    """Returns why a recipe cannot be run on this machine; empty if it can.

    Args:
        recipe: the recipe.
        data_dir: the folder of the data sets, as `dpjax.data.load` takes it.
        pretrained: a Hugging Face directory, or a folder of published networks by their names.
    """
    if recipe.experiment is None:
        return recipe.obstacle
    reasons = []
    model = recipe.experiment.model
    if recipe.needs and not (pretrained and _published_path(model, pretrained)):
        reasons.append(f"needs {recipe.needs}")
    source = source_of(recipe.experiment.data.name)
    folder = data_directory(data_dir) / (source.folder or "")
    missing = [entry for entry in source.files if not _is_there(entry, folder)]
    if missing:
        some = "no" if len(missing) == len(source.files) else "not all"
        reasons.append(f"{source.name}: {some} files at hand")
    return "; ".join(reasons)


def _published_path(model: ModelConfig, directory: str) -> Path | None:
    if model.pretrained is not None:
        return pretrained_path(model.pretrained, directory)
    return nfnet_path(model.name, directory) if model.name in NFNETS else None


def _is_there(entry: File | Folder, folder: Path) -> bool:
    if isinstance(entry, Folder):
        return (folder / entry.path).is_dir()
    return entry.present(folder) is not None
