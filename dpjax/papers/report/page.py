"""A report in Markdown: a front page, and a page for each paper."""

from collections import Counter
from collections.abc import Sequence

from dpjax.papers.agenda import why_not_here
from dpjax.papers.outcome import Outcome, outcome_of
from dpjax.papers.printed_numbers import PAPERS, Cell
from dpjax.papers.recipe import SEARCH_SEED, SEEDS
from dpjax.papers.report import markdown
from dpjax.papers.report.formulas import formulas
from dpjax.papers.report.missing_cells import missing_cells, other_runs
from dpjax.papers.report.result_tables import TITLES, results
from dpjax.papers.report.searches import searches
from dpjax.papers.report.suspicions import far_from_print, suspicions
from dpjax.papers.report.verdicts import orders, verdict_counts
from dpjax.papers.store import RunRecord, Store

__all__ = ["FRONT", "NOT_RUN", "report"]

FRONT = "REPORT.md"
"""The name of the front page."""

NOT_RUN = "not-run.md"
"""The name of the page on cells without a run, and on runs without a cell."""


def report(store: Store, cells: Sequence[Cell], data_dir: str | None = None) -> dict[str, str]:
    """Returns the pages by file name, computed from the store alone; nothing is trained.

    Args:
        store: the finished runs. Hand-written files ``notes-<paper>.md`` in the same folder are
            included in the papers' pages, and their first paragraphs in the front page.
        cells: the printed numbers.
        data_dir: the folder of the data sets, to say which are missing.
    """
    outcomes = [outcome_of(cell, store) for cell in cells]
    pages = {FRONT: _front(outcomes, store, data_dir)}
    for name, short in PAPERS.items():
        own = [outcome for outcome in outcomes if outcome.cell.paper == name]
        if own:
            pages[f"{short}.md"] = _paper(name, own, store, data_dir)
    rest = [missing_cells(outcomes, store, data_dir), other_runs(outcomes, store)]
    head = ["# What was not run, and other runs", f"[All papers]({FRONT})"]
    pages[NOT_RUN] = "\n\n".join([*head, *(part for part in rest if part)]) + "\n"
    return pages


def _front(outcomes: Sequence[Outcome], store: Store, data_dir: str | None) -> str:
    parts = [
        "# The papers' tables, run again",
        _sentence(outcomes, store),
        _by_paper(outcomes),
        _COUNTS,
        "![Printed against ours](report.png)",
        verdict_counts(outcomes),
        *_lessons(outcomes, store),
        far_from_print(outcomes, store),
        _gaps(outcomes, data_dir),
        _COMMANDS.format(store=_named(store), seeds=SEEDS),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _paper(name: str, own: Sequence[Outcome], store: Store, data_dir: str | None) -> str:
    parts = [
        f"# {TITLES[name]}",
        f"[All papers]({FRONT})",
        _notes(store, PAPERS[name]),
        results(own),
        formulas(own),
        suspicions(own, store),
        orders(own),
        searches(own, store.findings),
        missing_cells(own, store, data_dir),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sentence(outcomes: Sequence[Outcome], store: Store) -> str:
    records = list(store.records.values())
    hours = sum(record.seconds for record in records) / 3600
    run = [outcome for outcome in outcomes if outcome.records]
    computed = sum(outcome.recipe.computed is not None for outcome in outcomes)
    behind = {record.key for o in outcomes for record in (*o.records, *o.sound)}
    searched = {record.key for o in outcomes for record in o.searched} - behind
    others = len(records) - len(behind) - len(searched)
    seeds = sorted({record.seed for o in run for record in o.records})
    scores = [outcome for outcome in run if outcome.cell.is_score]
    different = {outcome.records[0].experiment for outcome in scores}
    outside = {outcome.records[0].experiment for outcome in scores if not outcome.within}
    return (
        f"**{len(outcomes):,} printed numbers; {len(run)} have a run of ours beside them and "
        f"{computed} a formula.** The runs are {len(different)} distinct experiments, of which "
        f"**{len(different - outside)} are within 1.0 point of print** wherever they are printed. "
        f"{len(records)} runs were made, {hours:.1f} hours by the clock with a core each: "
        f"{len(behind)} behind these numbers (seeds {', '.join(map(str, seeds)) or 'none'}), "
        f"{len(searched)} that chose among candidates (seed {SEARCH_SEED}), {others} others. "
        f"{_noises(records)}"
    )


_COUNTS = f"""\
*Experiment*: there is a run that could give the number. *Formula*: the paper's own formula gives
it. *Neither*: the paper's page says why not. *Run*: printed numbers with a run of ours; one
experiment can stand behind several. *Within 1.0 point* and *within two standard errors* are of
scores in percent, the latter of those with {SEEDS} seeds."""

_COMMANDS = """\
## How to make it again

All of this is recomputed from the stored runs (`runs.csv`, `curves.csv`, `experiments.jsonl`,
`findings.jsonl`) by one command, and any single cell is run again by another; runs that are in the
store are not made twice, so give another `--store` to make them anew:

    dpjax papers report --store {store}
    dpjax papers run dc-sgd/IV/mnist/cnn/2/dp-sgd --seeds {seeds}
    dpjax papers run dc-sgd/IV --rows mnist --rows 2 --rows dp-sgd,du --seeds {seeds}

`--rows` takes parts of the cells' names; `dpjax papers config dc-sgd/IV/mnist/cnn/2/dp-sgd`
prints the experiment of one cell as a file for `dpjax train`."""


def _noises(records: Sequence[RunRecord]) -> str:
    """Returns a sentence on how the noise of the runs was drawn."""
    counts = Counter(record.noise_definition for record in records)
    drawn = [f"`{name}` ({markdown.counted(n, 'run')})" for name, n in counts.items()]
    return f"Their noise: {', '.join(drawn)}."


def _named(store: Store) -> str:
    """Returns the store's folder; for an absolute path, only its name."""
    path = store.path
    return path.as_posix() if not path.is_absolute() else path.name


def _by_paper(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for name, short in PAPERS.items():
        own = [outcome for outcome in outcomes if outcome.cell.paper == name]
        if own:
            rows.append([f"[{TITLES[name]}]({short}.md)", *_counts(own)])
    rows.append(["all", *_counts(outcomes)])
    header = ["paper", "printed numbers", "experiment", "formula", "neither", "run"]
    header += [f"with {SEEDS} seeds", "within 1.0 point", "within two standard errors"]
    return markdown.table([*header, "largest difference"], rows)


def _counts(own: Sequence[Outcome]) -> list[str]:
    differences = [outcome.difference for outcome in own if outcome.difference is not None]
    largest = max(differences, key=abs, default=None)
    recipes = [outcome.recipe for outcome in own]
    decided = [o.within_errors for o in own if len(o.records) >= SEEDS and o.cell.is_score]
    return [
        f"{len(own):,}",
        f"{sum(recipe.experiment is not None for recipe in recipes):,}",
        str(sum(recipe.computed is not None for recipe in recipes)),
        str(sum(bool(recipe.obstacle) for recipe in recipes)),
        str(sum(bool(outcome.records) for outcome in own)),
        str(sum(len(outcome.records) >= SEEDS for outcome in own)),
        f"{sum(outcome.within for outcome in own)} of {len(differences)}",
        f"{sum(map(bool, decided))} of {len(decided)}",
        "" if largest is None else f"{largest:+.2f}",
    ]


def _gaps(outcomes: Sequence[Outcome], data_dir: str | None) -> str:
    """Returns how many printed numbers have no run yet, and why."""
    without = [o for o in outcomes if not o.records and o.recipe.computed is None]
    if not without:
        return ""
    none = sum(o.recipe.experiment is None for o in without)
    lack = sum(
        o.recipe.experiment is not None and bool(why_not_here(o.recipe, data_dir)) for o in without
    )
    return "\n\n".join(
        [
            "## What was not run",
            f"{len(without)} printed numbers have neither a run nor a formula: {none} have no "
            f"experiment, with the reason; {lack} need data sets or pre-trained weights that are "
            f"not at hand; for {len(without) - none - lack} all is at hand, and the hours were not "
            f"spent. [{NOT_RUN}]({NOT_RUN}) lists them, with core-hours.",
        ]
    )


def _lessons(outcomes: Sequence[Outcome], store: Store) -> list[str]:
    """Returns the first paragraph of each paper's notes."""
    present = {outcome.cell.paper for outcome in outcomes}
    parts = []
    for name, short in PAPERS.items():
        first = _notes(store, short).split("\n\n")[0] if name in present else ""
        if first:
            parts.append(f"**[{TITLES[name]}]({short}.md).** {first}")
    return ["## What was learned", *parts] if parts else []


def _notes(store: Store, short: str) -> str:
    file = store.path / f"notes-{short}.md"
    return file.read_text(encoding="utf-8").strip() if file.exists() else ""
