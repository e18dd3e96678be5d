"""Suspicions: runs that change one setting of a cell, and what the report says of them."""

from pathlib import Path

import pytest

from dpjax.papers import RunRecord, Store, cell_named, outcome_of, recipe_of
from dpjax.papers.report.suspicions import far_from_print, suspicions
from dpjax.papers.suspected_settings import SUSPECTED_SETTINGS, SuspectedSetting

AUTO_CLIP = "dc-sgd/VIII/mnist/cnn/2/autoclip"


def record(run, accuracy):
    name, method = run.key.rpartition("-")[0], run.experiment.method["name"]
    numbers = (0.84, 2344, 256, 1 / 60_000, 2.0, 2.0, 1.6, accuracy, 1.0, 90.0, "dice")
    return RunRecord(name, run.seed, "mnist", "small_cnn", method, *numbers)


def test_every_suspicion_changes_something_of_a_cell_that_is_printed():
    for explanation in SUSPECTED_SETTINGS:
        experiment = recipe_of(cell_named(explanation.cell)).experiment
        assert experiment.with_values(explanation.values).identity != experiment.identity
        assert explanation.suspicion


def test_a_run_waits_for_the_cells_own_choice(tmp_path):
    searched = SuspectedSetting("dc-sgd/IV/mnist/cnn/2/dp-sgd", {"model.start": "lecun"}, "-")
    assert searched.run(Store(tmp_path)) is None  # its grid has not been searched
    without_search = SuspectedSetting(AUTO_CLIP, {"model.start": "lecun"}, "-")
    run = without_search.run(Store(tmp_path))
    assert run.experiment.model.options["start"] == "lecun"
    assert run.seed == 1


def test_the_report_says_how_much_went_away(tmp_path):
    store, explanation = Store(tmp_path), next(e for e in SUSPECTED_SETTINGS if e.cell == AUTO_CLIP)
    cell = cell_named(AUTO_CLIP)
    assert suspicions([outcome_of(cell, store)], store) == ""
    own = recipe_of(cell_named(AUTO_CLIP)).results({}, 1)[0]
    changed = explanation.run(store)
    store.add(own, record(own, 0.9483), [])
    store.add(changed, record(changed, 0.9603), [])
    assert explanation.accuracy(store) == pytest.approx(96.03)
    # Printed 96.83: 2.00 points below before, 0.80 after.
    assert "| +1.20 of 2.00 |" in suspicions([outcome_of(cell, store)], store)


def test_a_suspicion_that_fixes_the_choice_waits_for_none(tmp_path):
    """DP-PSASC's stored runs are of another network, with learning rates of their own."""
    own = [each for each in SUSPECTED_SETTINGS if each.cell.startswith("psasc/")]
    runs = [each.run(Store(tmp_path)) for each in own]
    assert {run.experiment.model.name for run in runs} == {"small_cnn"}
    stored = Store(Path(__file__).parents[2] / "docs" / "results").records
    assert all(run.key in stored for run in runs)


def test_far_from_print_counts_distinct_experiments_and_what_explains_them(tmp_path):
    store, cell = Store(tmp_path), cell_named(AUTO_CLIP)  # printed 96.83
    near = cell_named("dc-sgd/VIII/mnist/cnn/1/autoclip")
    runs = [recipe_of(each).results({}, 1)[0] for each in (cell, near)]
    store.add(runs[0], record(runs[0], 0.9483), [])
    store.add(runs[1], record(runs[1], near.value / 100), [])

    def page():
        return far_from_print([outcome_of(each, store) for each in (cell, near)], store)

    row = f"| [{AUTO_CLIP}](dc-sgd.md) | 96.83 | 94.83 | -2.00 | 1 |"
    assert f"{row} nothing yet |  | no |" in page()
    lecun, channels, *_ = (each for each in SUSPECTED_SETTINGS if each.cell == AUTO_CLIP)
    for each, accuracy in ((lecun, 0.9503), (channels, 0.9571)):
        run = each.run(store)
        store.add(run, record(run, accuracy), [])
    assert f"{row} {channels.changed} | 95.71 | no |" in page()  # the nearer one, 1.12 away
    assert "1 distinct experiment more than a point from print; a run explains 0 of" in page()
    third = [each for each in SUSPECTED_SETTINGS if each.cell == AUTO_CLIP][2]
    run = third.run(store)
    store.add(run, record(run, 0.9590), [])
    assert f"{row} {third.changed} | 95.90 | yes |" in page()
    assert near.name not in page()


def test_a_fit_explains_nothing(tmp_path):
    store = Store(tmp_path)
    fit = next(each for each in SUSPECTED_SETTINGS if each.fitted and "abadi" in each.cell)
    cell = cell_named(fit.cell)
    own, changed = recipe_of(cell).results({}, 1)[0], fit.run(store)
    store.add(own, record(own, 0.9), [])
    store.add(changed, record(changed, cell.value / 100), [])
    assert "| nothing yet |  | no |" in far_from_print([outcome_of(cell, store)], store)


def test_what_explains_one_method_must_explain_the_others_of_its_table(tmp_path):
    store = Store(tmp_path)
    own = [e for e in SUSPECTED_SETTINGS if "model.hidden" in e.values and e.cell[-6:] != "-sgd-p"]
    names = [each.cell for each in own if recipe_of(cell_named(each.cell)).candidates() == []]
    assert len(names) == 2  # DC-SGD-E and AutoClip: nothing is chosen for them
    for name, moved in zip(names, (0.0, 0.05), strict=True):
        cell, suspected = cell_named(name), next(each for each in own if each.cell == name)
        run, changed = recipe_of(cell).results({}, 1)[0], suspected.run(store)
        store.add(run, record(run, cell.value / 100 + 0.08), [])
        store.add(changed, record(changed, cell.value / 100 + moved), [])
    page = far_from_print([outcome_of(cell_named(name), store) for name in names], store)
    assert "| no: other methods keep theirs |" in page
    assert "| yes |" not in page
