"""A hostile file cannot make the program run code, nor read or write outside its folders.

All cases (`tests.endurance.hostile`) run as command lines in one process of their own, under an
audit hook (`tests.endurance.watched`): it sees every file that is opened, renamed or removed, every
process that is started, every module that is imported and all code that is compiled.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpjax import _files
from tests.endurance import hostile
from tests.endurance.counting import count
from tests.endurance.watched import MARK

ROOT = Path(__file__).parents[2]
CASES = {case.name: case for case in hostile.cases()}

# Nothing is wrong with these, or nothing that matters to the picture that is asked for.
HARMLESS = ("diagnostics.jsonl is a list", "steps.csv is empty")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Runs all cases in one watched process; returns what was done, by name."""
    home = tmp_path_factory.mktemp("hostile").resolve()
    secret, modules = home / "secret", home / "modules"
    for folder in (secret, modules, home / "cases", home / "arms", home / "matplotlib"):
        folder.mkdir()
    (secret / "config.toml").write_text("secret = true\n")
    (modules / f"{MARK}.py").write_text("class Thing: pass\n")
    asked = []
    for number, case in enumerate(CASES.values()):
        place = home / "cases" / str(number)
        place.mkdir()
        asked.append({"argv": case.write(place, secret), "inside": str(place)})
    for number, code in enumerate(hostile.ARMS.values()):
        place = home / "arms" / str(number)
        place.mkdir()
        asked.append({"python": code, "inside": str(place)})
    file = home / "cases.json"
    file.write_text(json.dumps([{**one, "secret": str(secret)} for one in asked]))
    done = subprocess.run(
        [sys.executable, "-m", "tests.endurance.watched", str(file)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{modules}",
            "MPLCONFIGDIR": str(home / "matplotlib"),
            "JAX_ENABLE_COMPILATION_CACHE": "false",  # it would write elsewhere
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(asked), done.stderr[-3000:]
    assert (secret / "config.toml").read_text() == "secret = true\n"
    assert [path.name for path in secret.iterdir()] == ["config.toml"]
    assert not list((home / "cases").rglob(MARK)), "hostile code ran"
    return dict(zip([*CASES, *hostile.ARMS], map(json.loads, lines), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_refused_in_one_sentence_and_nothing_done(name, results):
    count("input", "hostile files")
    result = results[name]
    assert result["seen"] == []
    assert result["failure"] is None
    if name in HARMLESS:
        assert result["code"] in (0, 2)
        return
    assert result["code"] == 2, result
    assert result["said"].startswith("dpjax: error: ")
    assert result["said"].count("\n") == 1
    assert result["said"][:-1].isprintable()
    assert CASES[name].word in result["said"]


@pytest.mark.parametrize("name", hostile.ARMS)
def test_the_watch_sees_what_it_is_for(name, results):
    assert results[name]["seen"], results[name]


def test_a_forged_manifest_cannot_name_files_outside(tmp_path):
    """The seal is no secret, so that anyone can write one: names in it are never opened."""
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    seen = {"size": 6, "sha256": "0" * 64}
    for name in ("../secret", str(tmp_path / "secret"), "a\0b", ""):
        with pytest.raises(_files.Refused, match="is missing"):
            _files.check_files(folder, {name: seen})
