"""``dpjax bench``: the table's ratios follow from its times, and the engines do what they say."""

import json

import pytest

from dpjax.cli import bench, main
from tests.cli.calls import refused

TINY = ["bench", "--set", "train.batch_size=8", "--set", "privacy.epsilon=8", "--turns", "1"]


def test_every_engine_beside_the_step_that_is_not_private(capsys):
    assert main([*TINY, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["steps"]
    assert [row["step"] for row in found] == ["not private", "ghost", "ghost_two_pass", "vmap"]
    plain = found[0]["milliseconds"]
    for row in found:
        assert row["ratio"] == pytest.approx(row["milliseconds"] / plain)
        assert row["compile_seconds"] > 0
        assert row["temporary_bytes"] >= 0


def test_ratios_are_taken_turn_by_turn():
    # The machine was ten times slower in the second turn: the ratio does not show it.
    assert bench.ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == 2.0


@pytest.mark.parametrize(
    ("flags", "named"),
    [(["--turns", "0"], "--turns = 0"), (["--engine", "gost"], "'gost'")],
)
def test_what_is_wrong_is_named(capsys, flags, named):
    assert named in refused(capsys, ["bench", *flags])
