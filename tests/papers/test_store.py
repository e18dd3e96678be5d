"""The store: what goes in comes out, begun runs go on, and the choice is the best of the search."""

import json
import multiprocessing
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from dpjax import data, noise
from dpjax.papers import (
    GreedySearch,
    Recipe,
    RunRecord,
    SeededRun,
    Store,
    Thresholds,
    TunedNoise,
    run_all,
)
from dpjax.papers.running import _trained
from dpjax.papers.store import CurvePoint, recorded
from dpjax.train import Experiment, train
from tests.train.small import Killed, stop_after

DIGITS = Experiment.from_plain(
    {
        "method": {"name": "dp_sgd", "threshold": 1.0, "noise_multiplier": 1.0},
        "train": {"batch_size": 256, "steps": 4},
        "run": {"evaluate_every": 2},
    }
)


def record(run, accuracy, **changes):
    made = RunRecord(
        run.key.rpartition("-")[0], run.seed, "digits", "mlp", "dp_sgd", 1.0, 4, 256, 1e-5,
        None, 2.0, 1.5, accuracy, 1.0, 3.0, "dice",
    )  # fmt: skip
    return replace(made, **changes)


def test_what_goes_in_comes_out(tmp_path):
    store, run = Store(tmp_path), SeededRun(DIGITS, 3)
    row = record(run, 0.75, target=None, epsilon_pld=None, threshold=None, batch_size=None)
    points = [CurvePoint(run.key, 0.5, 0.6, None, 1.0), CurvePoint(run.key, 1.0, 0.75, 2.5, 0.5)]
    store.add(run, row, points)
    fresh = Store(tmp_path)
    assert fresh.records == {run.key: row}
    assert fresh.curves == {run.key: points}
    assert store.records == fresh.records  # also the store that was asked before


def test_a_run_is_added_once(tmp_path):
    store, run = Store(tmp_path), SeededRun(DIGITS, 1)
    store.add(run, record(run, 0.5), [])
    store.add(run, record(run, 0.9), [])
    assert store.records[run.key].accuracy == 0.5
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 2


def test_findings_come_out(tmp_path):
    store = Store(tmp_path)
    search = GreedySearch(DIGITS)
    tuned = TunedNoise(DIGITS.set("privacy.epsilon", 2.0), "LT", 10)
    store.add_finding(search, Thresholds((0.5, 0.25), (0.8, 0.9), 12, (0.5, 0.75)))
    store.add_finding(tuned, 2.5)
    found = Store(tmp_path).findings
    assert found.thresholds[search.key] == Thresholds((0.5, 0.25), (0.8, 0.9), 12, (0.5, 0.75))
    assert found.noises[tuned.key] == 2.5
    first, second = map(json.loads, (tmp_path / "findings.jsonl").read_text().splitlines())
    assert first["noise_definition"] == noise.DEFINITION
    assert "noise_definition" not in second  # that one was computed, not drawn


def test_the_choice_is_the_best_of_a_whole_search(tmp_path):
    grid = tuple({"method.threshold": c} for c in (0.5, 1.0, 2.0))
    recipe, store = Recipe(DIGITS, grid, DIGITS), Store(tmp_path)
    runs = recipe.candidates()
    for run, accuracy in zip(runs[:2], (0.7, 0.9), strict=True):
        store.add(run, record(run, accuracy), [])
    assert store.choice(recipe) is None  # one is missing
    store.add(runs[2], record(runs[2], 0.8), [])
    assert store.choice(recipe) == {"method.threshold": 1.0}
    # A result at the same setting with another seed does not count as a candidate.
    other = SeededRun(DIGITS.set("method.threshold", 0.5), 1)
    store.add(other, record(other, 0.99), [])
    assert store.choice(recipe) == {"method.threshold": 1.0}


def test_nothing_to_choose_is_a_choice(tmp_path):
    assert Store(tmp_path).choice(Recipe(DIGITS)) == {}


def test_runs_are_trained_in_processes_of_their_own_and_kept(tmp_path):
    store, said = Store(tmp_path), []
    runs = [SeededRun(DIGITS, 1), SeededRun(DIGITS, 2), SeededRun(DIGITS, 1)]
    broken = SeededRun(DIGITS.set("train.batch_size", 5000), 1)
    with pytest.raises(ValueError, match=r"1 of 3 runs failed.*train\.batch_size = 5000"):
        run_all([broken, *runs], store, workers=1, say=said.append)
    assert set(store.records) == {runs[0].key, runs[1].key}
    first = store.records[runs[0].key]
    assert first.noise_definition == noise.DEFINITION
    assert (first.steps, first.method, first.batch_size) == (4, "dp_sgd", 256)
    assert 0 < first.epsilon_pld < first.epsilon_rdp
    assert [point.epoch for point in store.curves[runs[0].key]] == pytest.approx(
        [2 * 256 / 1437, 4 * 256 / 1437], abs=1e-3
    )
    assert first.accuracy != store.records[runs[1].key].accuracy
    assert len(said) == 3  # the one that failed too: it keeps no other from its end
    assert not list((tmp_path / "work").iterdir())  # checkpoints hold keys
    run_all(runs, store, say=said.append)  # all there: nothing is trained
    assert len(said) == 3


def test_an_interrupt_ends_what_trains_and_keeps_what_is_finished(tmp_path):
    def interrupt(text):
        raise KeyboardInterrupt

    store, endless = Store(tmp_path), SeededRun(DIGITS.set("train.steps", 10**6), 1)
    with pytest.raises(KeyboardInterrupt):
        run_all([SeededRun(DIGITS, 1), endless], store, workers=1, say=interrupt)
    assert set(store.records) == {SeededRun(DIGITS, 1).key}
    assert not multiprocessing.active_children()


class TestStoredResults:
    """docs/results, which took days: a change of code must not part it from its experiments."""

    FOLDER = Path(__file__).parents[2] / "docs" / "results"

    def test_every_experiment_still_has_its_name(self):
        lines = map(json.loads, (self.FOLDER / "experiments.jsonl").read_text().splitlines())
        stored = {line.pop("experiment"): line for line in lines}
        for name, plain in stored.items():
            assert Experiment.from_plain(plain).identity.startswith(name)
        records = Store(self.FOLDER).records.values()
        assert {record.experiment for record in records} == set(stored)

    def test_every_run_says_how_its_noise_was_drawn(self):
        found = Counter(r.noise_definition for r in Store(self.FOLDER).records.values())
        assert found["jax.random.normal"] == 198
        assert all(found)  # none is empty


def test_the_noise_is_that_of_the_run_not_of_who_reads_it(tmp_path, monkeypatch):
    store, run = Store(tmp_path), SeededRun(DIGITS, 1)
    train(run.seeded, data.load("digits"), store.work(run).path)
    drawn = noise.DEFINITION
    monkeypatch.setattr(noise, "DEFINITION", "dice")
    assert recorded(run, store.work(run), 1.0)[0].noise_definition == drawn


def test_a_run_that_was_begun_under_other_versions_is_begun_again(tmp_path, monkeypatch):
    store, run = Store(tmp_path), SeededRun(DIGITS.set("run.checkpoint_every", 2), 1)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", "0.0.1")
        stop_after(patch, 3)
        with pytest.raises(Killed):
            train(run.seeded, data.load("digits"), store.work(run).path)
    assert store.work(run).identity().environment["jax"] == "0.0.1"
    record, _ = _trained(run, tmp_path, None)
    assert record.steps == 4
    assert store.work(run).identity().environment["jax"] == jax.__version__
    assert len(store.work(run).read_ledger().entries) == 1
