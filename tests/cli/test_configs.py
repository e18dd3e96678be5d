"""Every file in configs/accounting answers to the commands; budgets over a few steps."""

from pathlib import Path

import pytest

from tests.cli.calls import data, printed, refused

FOLDER = Path(__file__).parent.parent.parent / "configs" / "accounting"
FILES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_epsilon_of_the_whole_run(capsys, path):
    rows = data(capsys, ["epsilon", "--config", str(path)])["results"]
    assert all(row["epsilon"] > 0 for row in rows)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_calibrate(capsys, path):
    argv = ["calibrate", "--config", str(path), "--steps", "30", "--accountant", "rdp"]
    found = data(capsys, argv)
    assert 0.999 * found["target"] <= found["results"][0]["epsilon"] <= found["target"]


def test_tune_cost_where_one_way_has_no_bound(capsys):
    argv = ["tune-cost", "--config", str(FOLDER / "fixed_size_batches.toml")]
    argv += ["--steps", "30", "--candidates", "4"]
    *others, split = data(capsys, argv)["results"]
    for row in others:
        assert row["whole"]["relation"] == "replace_one"
        assert 0.999 * 3 <= row["whole"]["epsilon"] <= 3
    assert "no bound is known" in split["note"]
    assert "whole" not in split


def test_dc_sgd_e_on_mnist_spends_the_papers_budget(capsys):
    path = str(FOLDER / "mnist_dc_sgd_e.toml")
    found = data(capsys, ["epsilon", "--config", path, "--accountant", "rdp"])
    assert found["steps"] == 2344
    assert found["results"][0]["epsilon"] == pytest.approx(2.0, rel=1e-4)


class TestByName:
    def test_a_shipped_file_goes_by_its_name(self, capsys):
        whole = ["epsilon", "--noise-multiplier", "1", "--accountant", "rdp"]
        named = printed(capsys, [*whole, "--config", "mnist_dp_sgd"])
        assert named == printed(capsys, [*whole, "--config", "configs/train/mnist_dp_sgd.toml"])
        assert "of 60000 expected" in named

    def test_an_unknown_name_is_refused_with_those_that_are_shipped(self, capsys):
        sentence = refused(capsys, ["train", "--config", "mnist"])
        assert "'mnist': expected a TOML file, or the name of a shipped one" in sentence
        assert "mnist_dp_sgd" in sentence
        assert "no_such.toml" in refused(capsys, ["train", "--config", "no_such.toml"])
