"""The report says what the stored runs say: means, spreads, choices, verdicts, and what is left."""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpjax.cli.html import html_page
from dpjax.cli.papers import report as command
from dpjax.papers import (
    RunRecord,
    SeededRun,
    Store,
    Thresholds,
    cell_named,
    cells,
    outcome_of,
    recipe_of,
)
from dpjax.papers.report import report as pages_of
from dpjax.papers.report.claims import CLAIMS, PaperClaim
from dpjax.papers.report.missing_cells import missing_cells
from dpjax.papers.report.verdicts import verdict_counts, verdicts
from dpjax.papers.suspected_settings import SUSPECTED_SETTINGS
from tests.papers.made import pretend_files


def report(store, cells, data_dir=None):
    """Returns all pages, one after the other."""
    return "\n".join(pages_of(store, cells, data_dir).values())


DP_SGD, DU, DC_SGD_E = (
    cell_named(f"dc-sgd/IV/mnist/cnn/2/{method}") for method in ("dp-sgd", "du", "dc-sgd-e")
)
AUTO_DP_S = cell_named("auto-dp/2/mnist/custom-cnn/0.68/sigma0.9584/auto-dp-s")
TRANSFER = cell_named("lin/2/mnist/cnn-b1/2.93/transfer")
TUNED = cell_named("dc-sgd/II/mnist/cnn/2/du")


def add(store, run, accuracy, epsilons=(1.99, 1.57), seconds=90.0, noise="dice"):
    experiment = run.experiment
    name = str(experiment.method["name"])
    record = RunRecord(
        run.key.rpartition("-")[0], run.seed, experiment.data.name, experiment.model.name, name,
        0.8, 2344, 256, 1e-5, experiment.privacy.epsilon, *epsilons, accuracy, 1.0, seconds, noise,
    )  # fmt: skip
    store.add(run, record, [])


def add_cell(store, cell, accuracies, searched=()):
    """Adds a search, then a seed for each accuracy."""
    recipe = recipe_of(cell, store.findings)
    for run, accuracy in zip(recipe.candidates(), searched, strict=True):
        add(store, run, accuracy)
    choice = store.choice(recipe)
    for run, accuracy in zip(recipe.results(choice, len(accuracies)), accuracies, strict=True):
        add(store, run, accuracy)


def rows_of(text, heading):
    """Returns the rows of the first table below a heading, as dicts by the table's header."""
    lines = text[text.index(heading) :].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return [dict(zip(table[0], row, strict=True)) for row in table[2:]]


ACCURACIES = (0.9551, 0.9573, 0.9608)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    add_cell(store, DP_SGD, ACCURACIES, (0.90, 0.95, 0.96, 0.94))
    add_cell(store, DU, (0.9701,), (0.91, 0.92, 0.95, 0.93))
    add_cell(store, DC_SGD_E, (0.9411, 0.9432, 0.9405))
    return store


def test_a_time_is_the_shortest_of_the_seeds(tmp_path):
    store, cell = Store(tmp_path), cell_named("dc-sgd/I/mnist/cnn/dc-sgd-e/seconds")
    for run, seconds in zip(recipe_of(cell).results({}, 3), (310.0, 95.5, 101.0), strict=True):
        add(store, run, 0.95, seconds=seconds)
    outcome = outcome_of(cell, store)
    assert (outcome.mean, outcome.deviation) == (95.5, None)


def test_a_row_is_the_mean_and_the_spread_of_its_seeds(store):
    row = rows_of(report(store, [DP_SGD, DU]), "### DC-SGD, table IV")[0]
    mean, deviation = 100 * np.mean(ACCURACIES), 100 * np.std(ACCURACIES, ddof=1)
    assert row["method"] == "DP-SGD"
    assert row["printed"] == "95.62 ± 0.15"
    assert row["ours"] == f"{mean:.2f} ± {deviation:.2f}"
    assert row["difference"] == f"**{mean - 95.62:+.2f}**"  # within a point
    assert row["seeds"] == "3"
    assert (row["ε of the run, RDP"], row["PLD"]) == ("1.99", "1.57")
    assert row["with"] == "threshold 1"


def test_one_seed_has_no_spread_and_a_large_difference_is_not_bold(store):
    row = rows_of(report(store, [DP_SGD, DU]), "### DC-SGD, table IV")[1]
    assert (row["ours"], row["difference"]) == ("97.01", f"{97.01 - 95.63:+.2f}")


def test_the_head_counts(store):
    text = report(store, cells(), data_dir="nowhere")
    every = rows_of(text, "# The papers' tables")[-1]
    assert every["printed numbers"] == "1,270"
    # DP-SGD and DC-SGD-E at epsilon 2 stand in table VIII too, DC-SGD-E in II and III besides; the
    # seconds of all three in table I.
    assert every["run"] == "10"
    assert every["with 3 seeds"] == "8"
    assert every["within 1.0 point"] == "6 of 7"
    assert every["largest difference"] == "+1.38"
    counts = [int(every[name].replace(",", "")) for name in ("experiment", "formula", "neither")]
    assert sum(counts) == 1_270
    assert (
        f"15 runs were made, {15 * 90 / 3600:.1f} hours by the clock with a core each: 7 behind"
        in text
    )
    assert "(seeds 1, 2, 3), 8 that chose among candidates (seed 0), 0 others" in text
    assert "3 distinct experiments, of which **2 are within 1.0 point of print**" in text
    assert "Their noise: `dice` (15 runs)." in text
    rows = rows_of(text[text.index("# What was not run, and other runs") :], "## What was not run")
    left = 1_270 - 10 - counts[1]
    assert sum(int(row["cells"]) for row in rows[:-1]) == int(rows[-1]["cells"]) == left
    assert f"{left} printed numbers have neither a run nor a formula" in text


def test_distinct_claims_count_once_and_ties_are_ties(store):
    """Tables IV and VIII both compare DP-SGD with DC-SGD-E at epsilon 2, in the same two runs."""
    outcomes = [outcome_of(cell, store) for cell in cells() if cell.paper == "DC-SGD"]
    found = verdicts(outcomes, [CLAIM, replace(CLAIM, table="dc-sgd/VIII")])
    assert [one.text for one in found] == ["confirmed", "confirmed"]
    assert found[0].pair == found[1].pair
    rows = rows_of(verdict_counts(outcomes), "## Who beats whom")
    every = verdicts(outcomes, CLAIMS)
    assert sum(int(count) for count in list(rows[0].values())[1:]) == len({o.pair for o in every})
    assert len({one.pair for one in every}) < len(every)


def test_pages_as_html():
    text = "# T\n\n[one](lin.md) `a|b <` *x* **y**\n\n"
    text += "| a | b |\n|---|---|\n| 1 < 2 | c<br>d |\n\n- p\n  q\n- r"
    page = html_page(text, [("Lin", "lin.html")])
    assert '<nav><a href="lin.html">Lin</a></nav>' in page
    words = '<p><a href="lin.html">one</a> <code>a|b &lt;</code> <em>x</em> <strong>y</strong></p>'
    assert words in page
    assert "<tr><td>1 &lt; 2</td><td>c<br>d</td></tr>" in page
    assert "<ul><li>p q</li><li>r</li></ul>" in page


def test_each_search_is_listed_once_with_its_choice(store):
    text = report(store, [DP_SGD, DU, cell_named("dc-sgd/VIII/mnist/cnn/4/dp-sgd")])
    rows = rows_of(text, "## What was chosen")
    assert [row["searched with"] for row in rows] == ["dp_sgd", "du"]
    assert [row["G"] for row in rows] == ["10", "90"]
    assert rows[0]["for"] == "DP-SGD of dc-sgd/IV, dc-sgd/VIII"
    candidates = rows[0]["candidates"].split("<br>")
    assert candidates[2] == "**threshold 1: 96.00**"
    assert candidates[3] == "threshold 4: 94.00"


def test_an_unfinished_search_chooses_nothing(tmp_path):
    store = Store(tmp_path)
    add(store, recipe_of(DP_SGD).candidates()[0], 0.9)
    candidates = rows_of(report(store, [DP_SGD]), "## What was chosen")[0]["candidates"]
    assert candidates.startswith("threshold 0.1: 90.00<br>threshold 0.5: not run")
    assert "**" not in candidates


def test_what_experiments_waited_for_is_listed(tmp_path):
    store = Store(tmp_path)
    greedy, noise = recipe_of(TRANSFER).waits_for, recipe_of(TUNED).waits_for
    store.add_finding(greedy, Thresholds((1.25, 0.75), (0.7, 0.8), 9, (1.25, 0.25)))
    store.add_finding(noise, 2.9295)
    add_cell(store, TRANSFER, (0.98,))
    text = report(store, [TRANSFER, TUNED])
    assert "so C₀ = 0.75." in text
    assert [row["1"] for row in rows_of(text, "### Greedy searches")] == ["1.25", "70.0"]
    row = rows_of(text, "### The noise of a whole search")[0]
    assert (row["paid by"], row["G"], row["noise multiplier of a run"]) == ("LT", "90", "2.929")


def test_a_method_without_a_guarantee_has_its_formula_and_its_sound_version(tmp_path):
    store, recipe = Store(tmp_path), recipe_of(AUTO_DP_S)
    add(store, recipe.results({}, 1)[0], 0.985, epsilons=(None, None))
    for run, accuracy in zip(recipe.sound_results(2), (0.90, 0.91), strict=True):
        add(store, run, accuracy, epsilons=(297420.6, 2426.33))
    text = report(store, [AUTO_DP_S])
    row = rows_of(text, "### Auto DP-SGD, table 2")[0]
    # Table 8 of the paper, step decay: R = .5 every D = 10 of E = 100 epochs.
    a = 13 * (64 / 60_000) ** 2 / (2 * 0.9584**2)
    rho = a / 10 * (1 - 0.5**10) / (0.5**9 - 0.5**10)
    assert row["ε by its formula"] == f"{rho + 2 * np.sqrt(rho * np.log(1e5)):.3g}"
    assert row["ε of the run, RDP"] == row["PLD"] == "none"
    assert row["sound version"] == f"90.50 ± {np.std((90, 91), ddof=1):.2f}"
    assert (row["its ε, RDP"], row["its ε, PLD"]) == ("297,500", "2,427")
    assert "no guarantee" in text


CLAIM = PaperClaim("dc-sgd/IV", "DP-SGD", "DC-SGD-E", "a test")


@pytest.mark.parametrize(
    ("winner", "expected"),
    [
        ((0.95, 0.952, 0.951), "confirmed"),
        ((0.93, 0.932, 0.931), "refuted"),
        ((0.93, 0.945, 0.951), "undecided"),
        ((0.95,), "one seed"),
    ],
)
def test_the_seeds_decide_a_claim(tmp_path, winner, expected):
    store, loser = Store(tmp_path), (0.9411, 0.9432, 0.9405)
    add_cell(store, DP_SGD, winner, (0.90, 0.95, 0.96, 0.94))
    add_cell(store, DC_SGD_E, loser)
    (found,) = verdicts([outcome_of(cell, store) for cell in (DP_SGD, DC_SGD_E)], [CLAIM])
    ours = 100 * (np.mean(winner) - np.mean(loser))
    assert found.ours == pytest.approx(ours)
    assert found.printed == pytest.approx(95.62 - 94.19)
    if len(winner) > 1:
        error = 100 * np.sqrt(np.var(winner, ddof=1) / 3 + np.var(loser, ddof=1) / 3)
        assert found.error == pytest.approx(error)
        assert (abs(ours) <= 2 * error) == (expected == "undecided")
    assert found.text == expected


def test_a_tie_is_no_confirmation(tmp_path):
    store = Store(tmp_path)
    add_cell(store, DP_SGD, (0.93, 0.945, 0.951), (0.90, 0.95, 0.96, 0.94))
    add_cell(store, DC_SGD_E, (0.9411, 0.9432, 0.9405))
    outcomes = [outcome_of(cell, store) for cell in (DP_SGD, DC_SGD_E)]
    tie = PaperClaim("dc-sgd/IV", "DP-SGD", "DC-SGD-E", "a test", or_equal=True)
    assert verdicts(outcomes, [tie])[0].text == "tie"
    elsewhere = PaperClaim("dc-sgd/IV", "DP-SGD", "DC-SGD-E", "a test", data=("names",))
    other_budget = PaperClaim("dc-sgd/IV", "DP-SGD", "DC-SGD-E", "a test", epsilons=(4.0,))
    assert verdicts(outcomes, [elsewhere, other_budget]) == []


def test_every_claim_is_about_methods_of_its_table():
    for claim in CLAIMS:
        about = [cell for cell in cells() if claim.is_about(cell)]
        assert {claim.winner, claim.loser} <= {cell.method for cell in about}, claim


def test_orders_count_pairs_as_printed(store):
    row = rows_of(report(store, [DP_SGD, DU, DC_SGD_E]), "### Orders")[0]
    assert row["printed, best first"] == "Du 95.6, DP-SGD 95.6, DC-SGD-E 94.2"
    assert row["ours, best first"] == "Du 97.0, DP-SGD 95.8, DC-SGD-E 94.2"
    assert row["pairs"] == "3 of 3"


def test_runs_of_no_cell_are_beside_the_nearest(store):
    changed = outcome_of(DU, store).recipe.results(store.choice(recipe_of(DU)), 1)[0]
    probe = SeededRun(changed.experiment.with_values({"train.epochs": 20}), 5)
    add(store, probe, 0.9654)
    (row,) = rows_of(report(store, [DP_SGD, DU, DC_SGD_E]), "## Other runs")
    assert row["nearest cell"] == DU.name
    assert row["changed (from)"] == "train.epochs 20.0 (10.0)"
    assert (row["seed"], row["accuracy"], row["cell's own"]) == ("5", "96.54", "97.01")


def test_what_was_not_run_says_why(tmp_path):
    here = tmp_path / "data"
    pretend_files(here, "mnist")
    chosen = [
        DP_SGD,
        cell_named("dc-sgd/IV/svhn/resnet18/2/du"),
        cell_named("auto-clip/2/sst2/roberta-base/3/auto-s"),
        cell_named("auto-clip/2/sst2/roberta-base/8/rgp"),
    ]
    store = Store(tmp_path / "store")
    rows = rows_of(
        missing_cells([outcome_of(c, store) for c in chosen], store, str(here)), "## What"
    )
    why = [row["why"] for row in rows]
    assert why[0] == "not run yet"
    assert why[1] == "svhn: no files at hand"
    assert why[2] == "needs pre-trained RoBERTa weights; sst2: no files at hand"
    assert why[3].startswith("not a method of these papers")
    assert float(rows[0]["core-hours"]) > 0
    assert rows[3]["core-hours"] == ""


def test_hand_written_notes_open_a_papers_page(store):
    words = "Five sentences.\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    assert "What was learned" not in report(store, [DP_SGD])
    (store.path / "notes-dc-sgd.md").write_text(words + "\n")
    pages = pages_of(store, [DP_SGD])
    assert words in pages["dc-sgd.md"]
    assert "**[DC-SGD](dc-sgd.md).** Five sentences." in pages["REPORT.md"]
    assert "| 1 | 2 |" not in pages["REPORT.md"]


def test_fits_stand_apart_from_causes(tmp_path):
    store = Store(tmp_path)
    fit = next(each for each in SUSPECTED_SETTINGS if each.fitted)
    cause = next(e for e in SUSPECTED_SETTINGS if e.cell == fit.cell and not e.fitted)
    add_cell(store, cell_named(fit.cell), (0.96,))
    for suspected in (fit, cause):
        add(store, suspected.run(store), 0.975)
    text = pages_of(store, [cell_named(fit.cell)])["lin.md"]
    before, after = text.split("**Fitted row by row.**")
    assert fit.changed in after
    assert fit.changed not in before
    assert cause.changed in before


def arguments(store, out=None):
    return argparse.Namespace(store=str(store.path), out=out, data_dir="nowhere")


def test_the_command_writes_the_report_and_a_picture(store, capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(command, "cells", lambda: (DP_SGD, DU, DC_SGD_E))
    out = tmp_path / "elsewhere"
    assert command.COMMAND.run(arguments(store, str(out))) == 0
    names = [
        f"{page}.{form}" for page in ("REPORT", "dc-sgd", "not-run") for form in ("md", "html")
    ]
    assert capsys.readouterr().out.split() == [str(out / name) for name in [*names, "report.png"]]
    assert "**3 printed numbers; 3 have a run" in (out / "REPORT.md").read_text()
    assert '<a href="dc-sgd.html">DC-SGD</a>' in (out / "REPORT.html").read_text()
    assert (out / "report.png").read_bytes()[:4] == b"\x89PNG"


def test_a_store_without_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="none holds no finished runs"):
        command.COMMAND.run(arguments(Store(tmp_path / "none")))


def test_the_picture_has_a_dot_for_each_number(store):
    pytest.importorskip("matplotlib")
    outcomes = [outcome_of(cell, store) for cell in (DP_SGD, DU, DC_SGD_E)]
    scatter, differences = command.report_figure(outcomes).get_axes()
    ours = [100 * np.mean(accuracies) for accuracies in (ACCURACIES, (0.9701,))]
    dots = scatter.containers[0].lines[0].get_xydata()
    assert dots[:2] == pytest.approx(np.array([[95.62, ours[0]], [95.63, ours[1]]]))
    heights = differences.containers[0].lines[0].get_ydata()
    assert list(heights) == sorted(heights)
    assert heights[-1] == pytest.approx(97.01 - 95.63)


class TestDocumentedCounts:
    """What README and docs/papers.md say of the numbers is what is there."""

    ROOT = Path(__file__).parents[2]

    def text(self, name):
        return " ".join((self.ROOT / name).read_text().split())

    def test_how_many_numbers_there_are(self):
        recipes = [recipe_of(cell) for cell in cells()]
        experiments = sum(recipe.experiment is not None for recipe in recipes)
        formulas = sum(recipe.computed is not None for recipe in recipes)
        neither = sum(bool(recipe.obstacle) for recipe in recipes)
        metrics = Counter(cell.metric for cell in cells())
        five = len(cells()) - sum(cell.paper == "De" for cell in cells())
        changes = metrics["epsilon change"] + metrics["accuracy gain"]
        measured = five - metrics["epsilon"] - changes - metrics["runs"]
        page, readme = self.text("docs/papers.md"), self.text("README.md")
        assert f"holds the {five:,} numbers that the five papers print" in page
        assert f"{measured:,} are scores, times and sensitivities" in page
        assert f"{metrics['epsilon']} are epsilons, {changes} changes in percent" in page
        assert f"and {metrics['runs']} sizes of grids" in page
        assert f"{experiments:,} have an experiment, {formulas} follow" in page
        assert f"for the other {neither} the reason is recorded" in page
        assert f"{len(cells()):,} printed numbers" in readme
        assert (
            f"For {experiments:,} of them it has the experiment, for {formulas} a formula" in readme
        )
        assert f"for {neither} the reason why there is neither" in readme

    def test_how_many_were_run(self):
        store = Store(self.ROOT / "docs" / "results")
        run = [outcome_of(cell, store) for cell in cells() if cell.is_score]
        run = [outcome for outcome in run if outcome.records]
        different = {outcome.records[0].experiment for outcome in run}
        outside = {outcome.records[0].experiment for outcome in run if not outcome.within}
        said = f"{len(different)} distinct experiments have been run so far; "
        said += f"{len(different - outside)} of them are within 1.0 point of every number printed"
        assert said in self.text("README.md")
        front = self.text("docs/results/REPORT.md")
        assert f"The runs are {len(different)} distinct experiments" in front
        assert f"{len(store.records)} runs were made" in front
