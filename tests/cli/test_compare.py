"""`dpjax compare`: several methods at one budget."""

import json

import pytest

from dpjax.cli import main
from dpjax.train import RunFolder, loop
from tests.cli.calls import printed, refused
from tests.cli.run_folders import png_size

TINY = (
    *("compare", "--quiet", "--set", "train.steps=3", "--set", "model.name=linear"),
    *("--set", "privacy.accountant=rdp", "--seeds", "1"),
)
TWO = (*TINY, "--epsilon", "3", "--methods", "dp_sgd,auto_s")
FILE = """
[methods.dp_sgd]
noise_multiplier = 1.0
[methods.tight]
name = "auto_s"
gamma = 0.1
noise_multiplier = 1.0
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.setattr(loop.Loop, "_advance", lambda *_: pytest.fail("it trained"))


@pytest.fixture
def no_picture(monkeypatch):
    monkeypatch.setattr("dpjax.cli.compare_plots.draw_comparison", lambda rows, output: None)
    monkeypatch.setattr("dpjax.cli.report.picture", lambda figure, alt: "")


def test_a_table_a_picture_and_json(capsys, place):
    text = printed(capsys, [*TWO, "--out", "both"])
    table = (place / "both" / "table.txt").read_text()
    assert text.startswith(table.rstrip("\n"))
    rows = {name: RunFolder(place / "both" / name).released()[-1] for name in ("dp_sgd", "auto_s")}
    lines = {line.split()[1]: line for line in table.splitlines() if line}
    for name, row in rows.items():
        assert f"{row['accuracy']:.2%}" in lines[name]
        assert row["epsilon"] <= 3
    assert "epsilon each <= 3, all published <= " in table
    assert 3 < float(table.split("all published <= ")[1]) < 6
    page = (place / "both" / "report.html").read_text()
    assert all(f"<td>{name}</td>" in page for name in rows)
    assert min(png_size(place / "both" / "compare.png")) > 100
    # Going on with what is finished changes nothing.
    found = json.loads(printed(capsys, [*TWO, "--out", "both", "--resume", "--json"]))
    assert found["picture"] == "both/compare.png"
    assert {run["method"]: run["accuracy"] for run in found["runs"]} == {
        name: row["accuracy"] for name, row in rows.items()
    }
    assert set(found["seconds"]) == {"dp_sgd", "auto_s"}
    assert "expected one of them" in refused(capsys, ["train", "--resume", "--out", "both"])


def test_the_tables_of_a_file(capsys, place, no_picture):
    (place / "own.toml").write_text(FILE)
    argv = [*TINY, "--config", "own.toml", "--seed", "3", "--out", "both"]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert err.count("do not publish this run") == 1  # and not for each method
    assert err.count("\n") == 1
    assert {line.split()[1] for line in out.splitlines()[3:5]} == {"dp_sgd", "tight"}
    stored = RunFolder(place / "both" / "tight").read_config()
    assert stored.method["rule"] == {"kind": "auto_s", "gamma": 0.1}


def test_ctrl_c_and_going_on(capsys, place, monkeypatch, no_picture):
    (place / "own.toml").write_text(FILE)
    argv = [*TINY, "--config", "own.toml", "--out", "both"]
    with monkeypatch.context() as patch:
        train = loop.Loop.to_the_end

        def to_the_end(self):
            if self._plan.method.name == "auto_s":
                raise KeyboardInterrupt
            return train(self)

        patch.setattr(loop.Loop, "to_the_end", to_the_end)
        assert main(argv) == 130
    err = capsys.readouterr().err
    assert err == (
        "dpjax: stopped; the same command with --resume --out both resumes from the last "
        "checkpoint\n"
    )
    done = (place / "both" / "dp_sgd" / "released.jsonl").read_bytes()
    printed(capsys, [*argv, "--resume"])
    assert (place / "both" / "dp_sgd" / "released.jsonl").read_bytes() == done
    assert RunFolder(place / "both" / "tight").steps()["step"] == [0, 1, 2]


REFUSALS = {
    "method": (["--methods", "dp_sgd,auto_x"], ["'auto_x'", "did you mean 'auto_"]),
    "no method": (["--methods", "dp_sgd,"], ["methods: ''"]),
    "argument": (["--set", "method.threshold=2"], ["method.threshold=2", "[methods.NAME]"]),
    "resume": (["--resume"], ["--resume: expected --out"]),
    "resume what": (["--resume", "--out", "new"], ["new holds no run of these methods"]),
    "config": (["--config", "missing.toml"], ["missing.toml: No such file"]),
    "table": (["--config", "number.toml"], ["methods.dp_sgd = 3", "expected a table"]),
    "file": (["--out", "number.toml"], ["number.toml"]),
    "run": (["--methods", "psasc,dp_sgd", "--out", "old"], ["old/dp_sgd holds a run"]),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_refused_before_the_first_method_is_trained(capsys, place, no_training, what):
    (place / "number.toml").write_text("[methods]\ndp_sgd = 3\n")
    (place / "old" / "dp_sgd").mkdir(parents=True)
    (place / "old" / "dp_sgd" / "run.json").write_text("{}")
    argv, expected = REFUSALS[what]
    sentence = refused(capsys, [*TINY, *argv])
    for part in expected:
        assert part in sentence
    assert not (place / "runs").exists()
    assert sorted(path.name for path in (place / "old").iterdir()) == ["dp_sgd"]


def test_a_method_cannot_leave_the_folder_of_the_comparison(tmp_path, capsys):
    config = tmp_path / "hostile.toml"
    config.write_text('[methods."../outside"]\nname = "dp_sgd"\n')
    assert main(["compare", "--config", str(config), "--out", str(tmp_path / "in")]) == 2
    assert "methods.../outside: expected letters" in capsys.readouterr().err
    assert not (tmp_path / "outside").exists()
