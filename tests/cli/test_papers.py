"""``dpjax papers`` from the command line, without training."""

import json
import tomllib

import pytest

from dpjax.cli import main
from dpjax.papers import RunRecord, Store, cell_named, outcome_of, recipe_of
from dpjax.train import Experiment
from tests.papers.made import pretend_files

CELL = "psasc/III/mnist/4-layer-cnn/3/dp-psac"


def record(run, accuracy):
    name = run.key.rpartition("-")[0]
    method = run.experiment.method["name"]
    numbers = (1.0, 10, 512, 1e-5, 3.0, 3.0, 2.7, accuracy, 0.3, 60.0, "dice")
    return RunRecord(name, run.seed, "mnist", "small_cnn", method, *numbers)


@pytest.fixture
def store(tmp_path):
    """A store in which one cell is run: five candidates, then two seeds of the better one."""
    store, recipe = Store(tmp_path / "store"), recipe_of(cell_named(CELL))
    scores = (0.95, 0.96, 0.95, 0.94, 0.9)
    for run, accuracy in zip(recipe.candidates(), scores, strict=True):
        store.add(run, record(run, accuracy), [])
    for run, accuracy in zip(recipe.results(recipe.grid[1], 2), (0.97, 0.98), strict=True):
        store.add(run, record(run, accuracy), [])
    return store


def test_list_counts_what_is_run(store, capsys):
    assert main(["papers", "list", "--store", str(store.path), "--json"]) == 0
    rows = {row["table"]: row for row in json.loads(capsys.readouterr().out)["tables"]}
    assert sum(row["cells"] for row in rows.values()) == 1_270
    assert rows["psasc/III"]["run"] == 1
    assert rows["psasc/III"]["within_1_point"] == 1  # 97.5 beside 98.11
    assert rows["dc-sgd/IV"]["run"] == 0


def test_a_report_without_a_checkout_says_where_the_runs_come_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["papers", "report"]) == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert line.startswith("dpjax: error: docs/results holds no finished runs: ")
    assert "`dpjax papers run`" in line
    assert "--store DIR" in line
    assert shown.out == ""
    assert not list(tmp_path.iterdir())


def test_config_is_an_experiment_with_the_choice_in_it(store, capsys):
    assert main(["papers", "config", CELL, "--store", str(store.path)]) == 0
    text = capsys.readouterr().out
    assert "printed 98.11" in text
    experiment = Experiment.from_plain(tomllib.loads(text))
    assert experiment.method == {"name": "psac", "r": 1e-4, "threshold": 0.3}
    choice = recipe_of(cell_named(CELL)).grid[1]
    assert experiment.optimizer.learning_rate == choice["optimizer.learning_rate"]


def test_config_of_an_unsearched_grid_says_so(store, capsys):
    name = "dc-sgd/IV/mnist/cnn/2/dp-sgd"
    assert main(["papers", "config", name, "--store", str(store.path)]) == 0
    assert "# NOT SEARCHED: the first of 4 candidates" in capsys.readouterr().out
    assert main(["papers", "config", CELL, "--store", str(store.path)]) == 0
    assert "NOT SEARCHED" not in capsys.readouterr().out


def test_a_cell_without_runs_says_why(store, capsys):
    name = "auto-clip/4/e2e/gpt2/3/auto-s/bleu"
    assert main(["papers", "config", name, "--store", str(store.path)]) == 2
    assert "BLEU" in capsys.readouterr().err


def test_plan_lists_what_is_left(store, tmp_path, capsys):
    pretend_files(tmp_path / "data", "mnist")
    asked = ["papers", "plan", "psasc/III", "--rows", "dp-psac", "--json"]
    asked += ["--store", str(store.path), "--data-dir", str(tmp_path / "data")]
    assert main(asked) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [run["seed"] for run in plan["runs"]] == [3]  # two of three seeds are there
    assert plan["core_hours"] > 0
    refused = {row["cell"]: row["why"] for row in plan["refused"]}
    assert "no files at hand" in refused["psasc/III/fashion-mnist/4-layer-cnn/9/dp-psac"]
    simclr = refused["psasc/III/cifar10/simclrv2-features/2/dp-psac"]
    assert simclr == "cifar10_simclr: no files at hand"


def test_run_of_what_is_done_only_shows_it(store, tmp_path, capsys):
    pretend_files(tmp_path / "data", "mnist")
    asked = ["papers", "run", "psasc/III", "--rows", "mnist", "--rows", "dp-psac"]
    asked += ["--seeds", "2", "--store", str(store.path), "--data-dir", str(tmp_path / "data")]
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert "97.50" in shown
    assert "-0.61" in shown
    assert outcome_of(cell_named(CELL), store).deviation == pytest.approx(0.5**0.5, rel=1e-6)


def test_a_single_cell_is_run_by_its_name(store, tmp_path, capsys):
    pretend_files(tmp_path / "data", "mnist")
    asked = ["papers", "run", CELL, "--seeds", "2", "--store", str(store.path)]
    assert main([*asked, "--data-dir", str(tmp_path / "data")]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["cell", "printed", "ours", "sd", "difference", "seeds"]
    assert row.split() == [CELL, "98.11", "97.50", "0.71", "-0.61", "2"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["run", "psasc/IV"], "did you mean 'psasc/III'"),
        (["plan", "all", "--rows", "nowhere"], "expected parts that some cell has"),
        (["plan", "psasc/III", "--seeds", "0"], "--seeds 0: expected at least 1"),
        (["run", "psasc/III", "--workers", "0"], "--workers 0: expected at least 1"),
        (["config", "psasc"], "cell = 'psasc'"),
        (["run", f"{CELL}k"], f"did you mean '{CELL}'"),
        (["explain", "lin/2/mnist/cnn-b1/2.93/yuu"], "did you mean 'lin/2/mnist/cnn-b1/2.93/yu'"),
    ],
)
def test_what_is_wrong_is_refused_in_a_sentence(asked, message, capsys):
    assert main(["papers", *asked]) == 2
    assert message in capsys.readouterr().err
