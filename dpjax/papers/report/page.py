"""A report in Markdown: the papers' printed numbers beside what the stored runs gave."""

from collections import Counter
from collections.abc import Sequence

from dpjax.papers.outcome import Outcome, outcome_of
from dpjax.papers.printed_numbers import PAPERS, Cell
from dpjax.papers.recipe import SEARCH_SEED, SEEDS
from dpjax.papers.report import markdown
from dpjax.papers.report.missing_cells import missing_cells, other_runs
from dpjax.papers.report.result_tables import TITLES, explained_differences, results
from dpjax.papers.report.searches import searches
from dpjax.papers.report.verdicts import orders
from dpjax.papers.store import RunRecord, Store

__all__ = ["report"]


def report(store: Store, cells: Sequence[Cell], data_dir: str | None = None) -> str:
    """Returns the report, computed from the store alone; nothing is trained.

    Args:
        store: the finished runs; a file ``differences.md`` beside them becomes a part of it.
        cells: the printed numbers.
        data_dir: the folder of the data sets, to say which are missing.
    """
    outcomes = [outcome_of(cell, store) for cell in cells]
    parts = [
        _head(outcomes, store),
        results(outcomes),
        explained_differences(store),
        orders(outcomes),
        searches(outcomes, store.findings),
        other_runs(outcomes, store),
        missing_cells(outcomes, store, data_dir),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(outcomes: Sequence[Outcome], store: Store) -> str:
    records = list(store.records.values())
    hours = sum(record.seconds for record in records) / 3600
    ours = [outcome for outcome in outcomes if outcome.records]
    behind = {record.key for o in outcomes for record in (*o.records, *o.sound)}
    searched = {record.key for o in outcomes for record in o.searched} - behind
    others = len(records) - len(behind) - len(searched)
    seeds = sorted({record.seed for o in ours for record in o.records})
    different = {outcome.records[0].experiment for outcome in ours}
    outside = {outcome.records[0].experiment for outcome in ours if not outcome.within}
    lines = [
        "# The papers' tables, run again",
        f"{len(records)} runs, {hours:.1f} hours by the clock with a core each: {len(behind)} "
        f"behind the numbers below (seeds {', '.join(map(str, seeds)) or 'none'}), "
        f"{len(searched)} that chose among candidates (seed {SEARCH_SEED}), {others} others. "
        f"**{len(ours)} of {len(outcomes)} printed numbers have one of ours beside them, "
        f"{sum(outcome.within for outcome in ours)} within 1.0 point**. Some numbers are printed "
        f"in several tables: these are {len(different)} different experiments, of which "
        f"{len(different - outside)} are within 1.0 point wherever they are printed. "
        f"{_noises(records)}",
        _by_paper(outcomes),
        "![Printed against ours](report.png)",
        _COMMANDS.format(store=_named(store), seeds=SEEDS),
    ]
    return "\n\n".join(lines)


_COMMANDS = """\
All of this is recomputed from the stored runs (`runs.csv`, `curves.csv`, `experiments.jsonl`,
`findings.jsonl`) by one command, and any single cell is run again by another; runs that are in the
store are not made twice, so give another `--store` to make them anew:

    dpjax papers report --store {store}
    dpjax papers run dc-sgd/IV --rows mnist --rows 2 --rows dp-sgd,du --seeds {seeds}

`--rows` takes parts of the cells' names; `dpjax papers config dc-sgd/IV/mnist/cnn/2/dp-sgd`
prints the experiment of one cell as a file for `dpjax train`."""


def _noises(records: Sequence[RunRecord]) -> str:
    """Returns a sentence on how the noise of the runs was drawn."""
    counts = Counter(record.noise_definition for record in records)
    return "Their noise: " + ", ".join(f"`{name}` ({n} runs)" for name, n in counts.items()) + "."


def _named(store: Store) -> str:
    """Returns the store's folder; of an absolute path, its name alone."""
    path = store.path
    return path.as_posix() if not path.is_absolute() else path.name


def _by_paper(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for name in PAPERS:
        own = [outcome for outcome in outcomes if outcome.cell.paper == name]
        if own:
            rows.append([TITLES[name], *_counts(own)])
    rows.append(["all", *_counts(outcomes)])
    header = ["paper", "printed numbers", "ours", f"with {SEEDS} seeds", "within 1.0 point"]
    return markdown.table([*header, "largest difference"], rows)


def _counts(own: Sequence[Outcome]) -> list[str]:
    differences = [outcome.difference for outcome in own if outcome.difference is not None]
    largest = max(differences, key=abs, default=None)
    return [
        str(len(own)),
        str(sum(bool(outcome.records) for outcome in own)),
        str(sum(len(outcome.records) >= SEEDS for outcome in own)),
        str(sum(outcome.within for outcome in own)),
        "" if largest is None else f"{largest:+.2f}",
    ]
