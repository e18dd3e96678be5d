"""The numbers given by the papers' own formulas, and what Auto DP-SGD's epsilons imply."""

from collections.abc import Sequence

from dpjax.papers.outcome import Outcome
from dpjax.papers.recipes.auto_dp_numbers import decay_of, implied_sensitivity
from dpjax.papers.report import markdown

__all__ = ["formulas"]

_LEGEND = """\
No run is needed for these: a formula of the paper, or its accountant, gives the number."""

_IMPLIED = """\
### What the printed epsilons imply

Auto DP-SGD's printed ε is its table 8's formula of the average sensitivity C, *as printed, no
guarantee*. The formula grows with C, so that each printed ε can be turned round: this is the C
behind it. C changes slowly with the noise and little between linear and time decay; where the table
jumps, a number is misprinted or a run was another. The formula's epochs are 100 also for AG News:
with the 40 that it is trained for, C would be 11 to 142."""


def formulas(outcomes: Sequence[Outcome]) -> str:
    """Returns a table of a paper's computed and printed numbers; empty if there are none.

    Args:
        outcomes: our results for the paper's cells.
    """
    rows = [_row(outcome) for outcome in outcomes if outcome.recipe.computed is not None]
    parts = []
    if rows:
        header = ["table", "data, model", "σ₀", "method", "metric", "printed", "formula", "how"]
        parts += ["## Numbers that formulas give", _LEGEND, markdown.table(header, rows)]
    implied = _implied(outcomes)
    if implied:
        parts += [_IMPLIED, implied]
    return "\n\n".join(parts)


def _row(outcome: Outcome) -> list[str]:
    cell, value = outcome.cell, outcome.recipe.computed or 0.0
    same = abs(value - cell.value) <= 0.005 + 1e-9
    return [
        cell.table,
        f"{cell.dataset}, {cell.model}",
        "" if cell.sigma0 is None else f"{cell.sigma0:g}",
        cell.method,
        cell.metric,
        f"{cell.value:g}",
        f"**{value:.2f}**" if same else f"{value:.2f}",
        outcome.recipe.ours,
    ]


def _implied(outcomes: Sequence[Outcome]) -> str:
    """Returns the average sensitivities behind the epsilons of tables 14 to 17."""
    found: dict[tuple[str, float], dict[str, float]] = {}
    for outcome in outcomes:
        cell, decay = outcome.cell, decay_of(outcome.cell)
        appendix = cell.paper == "AutoDP" and cell.table in ("14", "15", "16", "17")
        if appendix and cell.metric == "epsilon" and decay and cell.sigma0 is not None:
            row = found.setdefault((cell.dataset, cell.sigma0), {})
            row[decay] = implied_sensitivity(cell)
    if not found:
        return ""
    decays = ("linear", "time", "step", "exponential")
    rows = [
        [data, f"{sigma:g}", *(f"{row[d]:.2f}" if d in row else "" for d in decays)]
        for (data, sigma), row in found.items()
    ]
    return markdown.table(["data", "σ₀", *decays], rows)
