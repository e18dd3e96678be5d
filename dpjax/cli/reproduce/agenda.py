"""What is to be done for some cells, in order: questions, searches, then results by seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpjax.reproduce import Cell, Run, Store, recipe_of
from dpjax.reproduce.absent import why_not_here
from dpjax.reproduce.findings import Question

__all__ = ["Agenda", "agenda_of"]


@dataclass(frozen=True)
class Agenda:
    """What is to be done.

    Attributes:
        questions: what experiments wait for.
        searches: runs that choose among candidates.
        results: runs behind the numbers, those with the first seed first; without those whose
            choice is not made yet.
        undecided: how many results wait for a question or a choice.
        refused: the cells that cannot be run here, with the reason.
    """

    questions: tuple[Question, ...]
    searches: tuple[Run, ...]
    results: tuple[Run, ...]
    undecided: int
    refused: tuple[tuple[Cell, str], ...]


def agenda_of(
    cells: Iterable[Cell], store: Store, seeds: int, data_dir: str | None = None
) -> Agenda:
    """Returns what is to be done for cells that the store has no runs of yet.

    Args:
        cells: the cells.
        store: the finished runs.
        seeds: how many seeds each result has.
        data_dir: the folder of the data sets.
    """
    recipes = [(cell, recipe_of(cell, store.findings)) for cell in cells]
    reasons = [(cell, why_not_here(recipe, data_dir)) for cell, recipe in recipes]
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


def _new(runs: Sequence[Run], store: Store) -> tuple[Run, ...]:
    return tuple({run.key: run for run in runs if run.key not in store.records}.values())
