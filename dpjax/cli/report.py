"""``dpjax report``: one readable page of HTML about runs."""

import argparse
import base64
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpjax._files import refuse_links, write_atomically
from dpjax.accounting import privacy_statement
from dpjax.accounting.bound import rounded_up
from dpjax.cli import compare_plots, run_plots
from dpjax.cli.command import Command
from dpjax.cli.comparison import ComparedRun, Comparison, read_comparison
from dpjax.cli.html import html_page
from dpjax.cli.released_runs import NO_GUARANTEE, ReleasedRun, spent_by
from dpjax.train.folder import RunFolder

__all__ = ["COMMAND", "picture", "report_page"]

_MOST_ROWS = 12  # in the table of epsilon over time


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="the folder of a run, or of several, as compare's"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="an .html file; for one folder RUN/report.html"
    )


def _run(args: argparse.Namespace) -> int:
    if args.output is None and len(args.runs) > 1:
        raise ValueError("--output: missing; expected an .html file for the page of several runs")
    output = Path(args.output or Path(args.runs[0]) / "report.html")
    if output.suffix != ".html":
        raise ValueError(f"--output = {output}: expected a name that ends in .html")
    rows = [row for folder in args.runs for row in _found(Path(folder))]
    page = report_page(rows)
    if args.output is None:
        refuse_links(output.parent)
    write_atomically(output, page)
    print(output)
    return 0


def _found(folder: Path) -> Iterator[ComparedRun]:
    """Finds the run in a folder, or the runs of several methods and seeds."""
    files = [folder / "run.json"] if RunFolder(folder).exists else sorted(folder.rglob("run.json"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no run: expected a folder with run.json")
    for file in files:
        inside = file.parent.relative_to(folder).parts
        named = inside and not inside[0].startswith("seed-")
        method = RunFolder(file.parent).read_config().method.get("name", "mechanism")
        yield ComparedRun(inside[0] if named else str(method), RunFolder(file.parent))


def report_page(rows: Sequence[ComparedRun]) -> str:
    """Returns one self-contained page of HTML, with its pictures embedded.

    It shows what was trained, the accuracy, the privacy cost in words and over time, the
    thresholds, the ledger and the configuration; only released numbers.

    Args:
        rows: the runs, on one data set and network; runs with one name are its seeds.
    """
    comparison = read_comparison(rows)
    firsts = [entry.runs[0] for entry in comparison.methods]
    parts = [
        f"# {_sign(comparison.title)}",
        _headline(comparison),
        *_trained(firsts),
        *_accuracy(comparison),
        *_privacy(comparison),
        *_over_time(firsts),
        *_ledgers(firsts),
        *_configurations(firsts),
    ]
    return html_page("\n\n".join(parts))


def _headline(comparison: Comparison) -> str:
    best, *_, worst = (comparison.methods[i] for i in (comparison.best_first * 2))
    spent = comparison.spent
    at = f", at {spent.target}" if spent.target else ""
    found = f"{best.method}: {best.final_text} of the test set is classified right"
    if len(comparison.methods) > 1:
        found = (
            f"{len(comparison.methods)} methods: {worst.final:.2%} ({worst.method}) to "
            f"{best.final:.2%} ({best.method}) of the test set is classified right, on average"
        )
    return f"**{_sign(found)}; {_sign(spent.sentence + at)}.**"


def _trained(runs: Sequence[ReleasedRun]) -> Iterator[str]:
    first = runs[0].experiment
    optimizer = f"{first.optimizer.name}, learning rate {first.optimizer.learning_rate}"
    yield "## What was trained"
    yield _table(
        ("", ""),
        [
            ("data", f"{first.data.name}, {first.data.examples or 'unknown'} training examples"),
            ("network", first.model.name),
            ("optimizer", optimizer),
            ("batches", f"{first.train.sampling}, {first.train.batch_size} examples expected"),
            ("steps", str(first.train.steps or f"{first.train.epochs} epochs")),
            ("methods", ", ".join(run.label for run in runs)),
        ],
    )


def _accuracy(comparison: Comparison) -> Iterator[str]:
    yield "## Accuracy"
    ranks = [_rank(rank) for rank in comparison.ranks]
    rows = [
        (
            ranks[i],
            comparison.methods[i].method,
            _sign(comparison.methods[i].final_text),
            ", ".join(f"{value:.2%}" for value in comparison.methods[i].finals),
        )
        for i in comparison.best_first
    ]
    yield _table(("rank", "method", "accuracy", "each seed"), rows)
    for sentence in comparison.caution.splitlines():
        yield f"{_sign(sentence[0].upper() + sentence[1:])}."
    if len(comparison.runs) > 1:  # a single run has its own figure below
        yield picture(
            lambda: compare_plots.comparison_figure(comparison), "Accuracy of the methods"
        )


def _rank(rank: tuple[int, int] | None) -> str:
    return "not ranked" if rank is None else "-".join(map(str, sorted(set(rank))))


def _privacy(comparison: Comparison) -> Iterator[str]:
    yield "## Privacy"
    spent = comparison.spent
    yield f"{_sign(spent.sentence)}. {_TOGETHER if len(comparison.runs) > 1 else ''}".strip()
    alike: dict[str, list[str]] = {}  # statements that differ only in their numbered lines
    for text in dict.fromkeys(map(_statement, comparison.runs)):
        alike.setdefault(_NUMBERED.sub("", text), []).append(text)
    for first, *others in alike.values():
        yield first
        if others:
            yield "The statements of the other methods are the same, except for what was released:"
            yield "\n".join(f"- {line}" for text in others for line in _NUMBERED.findall(text))


_TOGETHER = (
    "Whoever publishes all of these runs spends the second number, not the first. "
    "Of each run alone:"
)
_NUMBERED = re.compile(r"^\d+\. (.*)$", re.MULTILINE)


def _statement(run: ReleasedRun) -> str:
    """Returns a run's own statement, with its headings one level below the page's."""
    ledger, privacy = run.folder.read_ledger(), run.experiment.privacy
    file = run.folder.path / "statement.md"
    if file.exists():
        text = file.read_text(encoding="utf-8")
    elif ledger is not None:
        text = privacy_statement(ledger, float(privacy.delta), privacy.accountant)
    else:
        text = "There is no ledger, and no guarantee."
    lines = [f"##{line}" if line.startswith("#") else line for line in text.splitlines()]
    return "\n".join(lines).strip()


def _over_time(runs: Sequence[ReleasedRun]) -> Iterator[str]:
    yield "## Epsilon and threshold over time"
    if len({run.label for run in runs}) > 1:
        yield "The first seed of each method."
    yield picture(lambda: run_plots.run_figure(runs, spent_by(runs)), "Accuracy and epsilon")
    for run in runs:
        every = -(-len(run.released) // _MOST_ROWS)
        shown = [row for i, row in enumerate(run.released[::-1]) if i % every == 0][::-1]
        rows = [
            (
                str(row["step"]),
                f"{row['epoch']:.1f}",
                f"{row['accuracy']:.2%}",
                NO_GUARANTEE if row["epsilon"] is None else rounded_up(row["epsilon"]),
                _numbers(row.get("threshold")),
            )
            for row in shown
        ]
        yield f"### {run.label}"
        yield _table(("step", "epoch", "accuracy", "epsilon", "threshold"), rows)


def _ledgers(runs: Sequence[ReleasedRun]) -> Iterator[str]:
    yield "## Ledger"
    yield "What was released, as `ledger.json` keeps it and epsilon is computed from it."
    for run in runs:
        ledger = run.folder.read_ledger()
        yield f"### {run.label}"
        yield _code(f"nothing: {NO_GUARANTEE}" if ledger is None else ledger.to_json())


def _configurations(runs: Sequence[ReleasedRun]) -> Iterator[str]:
    yield "## Configuration"
    for run in runs:
        yield f"### {run.label}"
        yield _code(run.experiment.to_toml())


def _code(text: str) -> str:
    """Returns an indented code block; drops blank lines, which would end it."""
    return "\n".join(f"    {line}" for line in text.splitlines() if line)


def _numbers(value: Any) -> str:
    if value is None:
        return "-"
    return " ".join(f"{c:.4g}" for c in (value if isinstance(value, list) else [value]))


def _sign(text: str) -> str:
    return text.replace("+-", "±").replace("<=", "≤")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def picture(figure: Any, alt: str) -> str:
    """Returns a figure as an image embedded in the page; without matplotlib, a sentence.

    Args:
        figure: makes the figure.
        alt: the image's alternative text.
    """
    stream = io.BytesIO()
    try:
        figure().savefig(stream, format="png", dpi=110)
    except ImportError as error:
        return f"*No picture: {error}.*"
    encoded = base64.b64encode(stream.getvalue()).decode()
    return f"![{alt}](data:image/png;base64,{encoded})"


COMMAND = Command(
    _add_flags,
    _run,
    ("dpjax report runs/mnist", "dpjax report runs/one runs/two --output two.html"),
)
