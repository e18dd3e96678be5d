"""The section of a report on searches: grids, greedy searches, and the noise of searches."""

from collections.abc import Sequence
from math import prod

from dpjax.papers.greedy_thresholds import GreedySearch, Thresholds
from dpjax.papers.outcome import Outcome
from dpjax.papers.plateaus import PlateauSearch
from dpjax.papers.prerequisites import Findings, Prerequisite, TunedNoise
from dpjax.papers.printed_numbers import Cell
from dpjax.papers.recipes import recipe_of
from dpjax.papers.report import markdown

__all__ = ["searches"]

_GRIDS = """\
As in the papers, the choice is by test accuracy, and its privacy is not paid for (but in DC-SGD's
tables II and III). Each candidate has one run with seed 0, which no reported number uses; the best
is bold, and is taken at every ε of the table. G is the size of the paper's own grid, where it says
one."""

_GREEDY = """\
Lin et al.'s algorithm 1 on public data, in a reduced form: the paper goes from C = 0.05 in steps of
0.01 with five first epochs. Transfer takes the thresholds in their order; Decay takes
the mean of the first epochs as C₀."""

_TUNED = """\
DC-SGD's tables II and III: the noise multiplier of one run that leaves the whole search of G
candidates within ε, by Liu and Talwar's theorem (LT) or by composing all runs (RDP)."""


def searches(outcomes: Sequence[Outcome], found: Findings) -> str:
    """Returns all searches that were made, each once.

    Args:
        outcomes: our results for the cells.
        found: the thresholds and noises that were found.
    """
    questions = _questions(outcomes)
    greedy = [(q, found.thresholds.get(q.key)) for q in questions if isinstance(q, GreedySearch)]
    tuned = [(q, found.noises.get(q.key)) for q in questions if isinstance(q, TunedNoise)]
    grids = _grids(outcomes)
    parts = ["## What was chosen", _GRIDS, grids] if grids else []
    if any(thresholds for _, thresholds in greedy):
        parts += ["### Greedy searches", _GREEDY]
        parts += [_greedy(q, thresholds) for q, thresholds in greedy if thresholds]
    if any(noise for _, noise in tuned):
        rows = [_tuned(question, noise) for question, noise in tuned if noise]
        header = ["data", "method", "ε of the search", "paid by", "G", "noise multiplier of a run"]
        parts += ["### The noise of a whole search", _TUNED, markdown.table(header, rows)]
    falls = [
        (q, found.plateaus[q.key])
        for q in questions
        if isinstance(q, PlateauSearch) and q.key in found.plateaus
    ]
    if falls:
        parts += ["### Plateaus", *(_plateaus(search, epochs) for search, epochs in falls)]
    return "\n\n".join(parts)


def _questions(outcomes: Sequence[Outcome]) -> list[Prerequisite]:
    """Returns the prerequisites of the cells' recipes."""
    asked = [recipe_of(outcome.cell).waits_for for outcome in outcomes]
    return list({question.key: question for question in asked if question is not None}.values())


def _grids(outcomes: Sequence[Outcome]) -> str:
    made: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.searched:
            keys = tuple(run.key for run in outcome.recipe.candidates())
            made.setdefault(keys, []).append(outcome)
    header = ["data, model", "searched with", "at ε", "for", "candidates", "G"]
    rows = [_grid(own) for own in made.values()]
    return markdown.table(header, rows) if rows else ""


def _grid(own: Sequence[Outcome]) -> list[str]:
    first = own[0]
    searched = first.recipe.searched
    if searched is None:
        raise RuntimeError(f"{first.cell.name}: a search without an experiment")
    epsilon = searched.privacy.epsilon
    return [
        f"{first.cell.dataset}, {first.cell.model}",
        str(searched.method["name"]),
        "" if epsilon is None else f"{epsilon:g}",
        _users([outcome.cell for outcome in own]),
        _candidates(first),
        _size(own),
    ]


def _size(own: Sequence[Outcome]) -> str:
    sizes = {prod(map(len, o.recipe.paper_grid.values())) for o in own if o.recipe.paper_grid}
    return ", ".join(map(str, sorted(sizes)))


def _users(cells: Sequence[Cell]) -> str:
    """Returns the methods, with the tables that use the choice."""
    methods: dict[str, list[str]] = {}
    for cell in cells:
        methods.setdefault(cell.method, []).append(cell.table_name)
    return "; ".join(f"{m} of {', '.join(dict.fromkeys(t))}" for m, t in methods.items())


def _candidates(outcome: Outcome) -> str:
    """Returns the candidates with their accuracies, in the order of the grid."""
    scores = {record.experiment: 100 * record.accuracy for record in outcome.searched}
    texts = []
    for run, values in zip(outcome.recipe.candidates(), outcome.recipe.grid, strict=True):
        score = scores.get(run.key.rpartition("-")[0])
        text = f"{markdown.setting(values)}: {'not run' if score is None else f'{score:.2f}'}"
        texts.append(f"**{text}**" if values == outcome.choice else text)
    return "<br>".join(texts)


def _greedy(search: GreedySearch, found: Thresholds) -> str:
    experiment = search.experiment
    head = (
        f"On {experiment.data.name} with {experiment.model.name} at ε = "
        f"{experiment.privacy.epsilon:g}: from C = {search.start:g} in steps of {search.step:g}, "
        f"until accuracy falls by {100 * search.fall:g} points; {found.trials} epochs trained. "
        f"First epochs: C = {', '.join(f'{c:g}' for c in found.first)}, so C₀ = "
        f"{found.initial:g}."
    )
    header = ["epoch", *(str(i) for i in range(1, len(found.thresholds) + 1))]
    rows = [
        ["C", *(f"{c:g}" for c in found.thresholds)],
        ["accuracy", *(f"{100 * accuracy:.1f}" for accuracy in found.accuracies)],
    ]
    return f"{head}\n\n{markdown.table(header, rows)}"


def _plateaus(search: PlateauSearch, epochs: Sequence[int]) -> str:
    experiment = search.experiment
    where = f"On {experiment.data.name} with {experiment.model.name}, the test loss stopped falling"
    times = f"after epochs {', '.join(map(str, epochs))}" if epochs else "never"
    return f"{where} {times}; the learning rate is multiplied by {search.factor:g} there."


def _tuned(question: TunedNoise, noise: float) -> list[str]:
    experiment = question.experiment
    return [
        experiment.data.name,
        str(experiment.method["name"]),
        f"{experiment.privacy.epsilon:g}",
        question.way,
        str(question.candidates),
        f"{noise:.4g}",
    ]
