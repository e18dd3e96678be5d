"""``dpjax audit`` as it is called."""

import json

import pytest

from dpjax.audit import subjects
from dpjax.cli import main

FEW = ["--attack", "step", "--quick", "--draws", "20000", "--seed", "0"]


def test_a_method_is_audited_with_a_picture(tmp_path, capsys):
    picture = tmp_path / "audit.png"
    assert main(["audit", "--method", "dp_sgd", *FEW, "--output", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "dp_sgd  step" in out
    assert ", found" in out
    assert "holds" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_half_the_noise_is_found_by_the_same_command(tmp_path, capsys):
    picture = str(tmp_path / "a.png")
    flags = [*FEW, "--noise", "0.5", "--json", "--output", picture]
    assert main(["audit", "--method", "dp_sgd", *flags]) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["verdict"] == "REFUTED"
    assert row["bound"] > row["claimed"]
    assert row["twin"] is None


def test_a_method_without_a_guarantee_is_held_to_its_papers_formula(tmp_path, capsys):
    flags = [*FEW, "--noise", "0.9", "--json", "--output", str(tmp_path / "a.png")]  # no twin
    assert main(["audit", "--method", "auto_dp_sgd", *flags]) == 0  # refuted, and no alarm
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["source"], row["verdict"]) == ("printed", "REFUTED")


def test_the_table_as_a_page_and_arguments_of_a_method(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = [*FEW, "--set", "z=2.0", "--report", "audit.md"]
    assert main(["audit", "--method", "global_", *flags]) == 0
    page = (tmp_path / "audit.md").read_text()
    assert "| global_ | step | 0.001 | 3.139 |" in page
    assert "dpjax audit --method global_ --quick --set z=2.0 --attack step" in page
    assert (tmp_path / "audit-global_.png").exists()


def test_all_methods_share_the_risk(capsys, monkeypatch, tmp_path):
    two = {name: subjects()[name] for name in ("dp_sgd", "auto_s")}
    monkeypatch.setattr("dpjax.cli.audit.subjects", lambda: two)
    flags = [*FEW, "--json", "--output", str(tmp_path / "all.png")]
    assert main(["audit", "--all", *flags]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["method"] for row in rows] == ["dp_sgd", "auto_s"]
    assert rows[0]["confidence"] == pytest.approx(1 - 0.01 / 2)
    assert rows[0]["bound"] != rows[1]["bound"]  # no two methods see the same noise


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "expected one of --method NAME and --all"),
        (["--all", "--method", "dp_sgd"], "expected one of --method NAME and --all"),
        (["--method", "dp_sdg"], "dp_sgd"),
        (["--all", "--set", "z=1"], "expected --method NAME with it"),
        (["--method", "dp_sgd", "--draws", "0"], "draws = 0: expected an integer"),
        (["--method", "dp_sgd", "--confidence", "nan"], "confidence = nan: expected"),
        (["--method", "dp_sgd", "--output", "a.txt"], "expected .png"),
        (["--method", "dp_sgd", "--noise", "0"], "noise = 0.0: expected"),
    ],
)
def test_refusals(argv, message, capsys):
    assert main(["audit", *argv]) == 2
    assert message in capsys.readouterr().err
