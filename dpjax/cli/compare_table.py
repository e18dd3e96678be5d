"""The table of a comparison, for a terminal."""

from collections.abc import Sequence

import numpy as np

from dpjax.accounting import Bound
from dpjax.accounting.bound import rounded_up
from dpjax.cli import tables
from dpjax.cli.compared import ComparedRun, MethodRuns, read_comparison
from dpjax.cli.run_privacy import NO_GUARANTEE

__all__ = ["comparison_text"]


def comparison_text(rows: Sequence[ComparedRun]) -> str:
    """Returns a comparison as text: what was compared, a table with the best first, the cost.

    Args:
        rows: the runs, as for `dpjax.cli.compare_plots.draw_comparison`.
    """
    comparison = read_comparison(rows)
    costs = iter(comparison.spent.each)
    each = {entry.method: [next(costs) for _ in entry.runs] for entry in comparison.methods}
    header = ["method", "accuracy", "epsilon", "sigma at end", "C at end"]
    if comparison.seeds > 1:
        header.append("seeds")
    body = []
    for i in comparison.best_first:
        entry = comparison.methods[i]
        ends = [_at_end(entry, column) for column in ("sigma", "threshold")]
        cells = [entry.method, entry.final_text, _most(each[entry.method]), *ends]
        body.append([*cells, str(len(entry.runs))][: len(header)])
    table = tables.table(header, body)
    return f"{comparison.title}\n\n{table}\n\n{comparison.spent.sentence}"


def _most(epsilons: Sequence[Bound | None]) -> str:
    """Writes the largest epsilon of a method's runs, and what it is worth."""
    known = [epsilon for epsilon in epsilons if epsilon is not None]
    if len(known) < len(epsilons):
        return NO_GUARANTEE
    text = rounded_up(max(known))
    return text if all(epsilon.guarantee for epsilon in known) else f"{text}, {NO_GUARANTEE}"


def _at_end(entry: MethodRuns, column: str) -> str:
    """Writes a number of the last step, from the least to the most of groups and seeds."""
    rows = [np.atleast_1d(run.steps[column][-1]) for run in entry.runs if run.steps[column]]
    values = np.concatenate(rows) if rows else np.empty(0)
    if not values.size or not np.isfinite(values).all():  # not every method has the number
        return "-"
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"
