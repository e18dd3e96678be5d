"""What is seen of a run while it goes, and how little that costs."""

import json
import math
import re
from itertools import pairwise

import numpy as np
import pytest

from dpjax.train import Run, RunFolder, loop, train
from dpjax.train import run as run_module
from dpjax.train.progress import Bar, Lines, progress_for
from tests.train.small import experiment, images

DATA = images()
RUN = {"run__seed": 5, "run__evaluate_every": 2, "train__steps": 6}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run with a callback, TensorBoard and a trace of two steps."""
    pytest.importorskip("tensorboardX")
    seen = []
    asked = experiment(**RUN, run__tensorboard=True, run__trace=[2, 4])
    folder = tmp_path_factory.mktemp("watched") / "run"
    [result] = train(asked, DATA, folder, callback=seen.extend)
    return result, seen


def test_a_callback_gets_what_is_released_and_nothing_else(watched):
    result, seen = watched
    lines = (result.folder.path / "released.jsonl").read_text().splitlines()
    assert seen == [json.loads(line) for line in lines]
    assert {name for row in seen for name in row} == {
        *("step", "epoch", "accuracy", "loss", "threshold"),
        *("sigma", "sigma_gradient", "epsilon", "delta"),
    }


def test_tensorboard_and_a_frame_have_the_same_numbers(watched):
    pandas = pytest.importorskip("pandas")
    result, seen = watched
    frame = result.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["accuracy"].tolist() == [row["accuracy"] for row in seen]
    [file] = (result.folder.path / "tensorboard").iterdir()
    stored = file.read_bytes()
    for name in ("accuracy", "epsilon", "threshold"):
        assert stored.count(name.encode()) == len(seen)
    assert b"norm" not in stored


def test_the_profiler_writes_its_steps_and_says_what_they_are(watched):
    trace = watched[0].folder.path / "trace"
    assert (trace / "README").read_text().startswith("NOT PRIVATE")
    assert list(trace.rglob("*.xplane.pb"))


def test_lines_come_by_time(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("dpjax.train.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Lines, "_printed", -math.inf)
    row = {"accuracy": 0.5, "threshold": 1.0, "epsilon": 1.0}
    times = []
    for label in ("first", "second"):  # runs one after another, as those of `dpjax compare`
        lines = Lines(label)
        lines.begin(type("Plan", (), {"steps": 1000})(), 0)
        for step in range(1000):
            now[0] += 0.05
            lines.stepped(step + 1, 20.0)
            lines.evaluated([{**row, "step": step + 1}])
            times += [now[0]] * len(capsys.readouterr().err.splitlines())
        lines.end()
    assert 9 <= len(times) <= 11  # a hundred seconds
    assert min(b - a for a, b in pairwise(times)) > 9.99
    now[0] += 10
    lines.evaluated([{**row, "step": 1000}])
    assert re.match(r"second: step 1000/1000  accuracy 50.00%", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("stdout", "stderr", "expected"),
    [(True, True, Bar), (False, True, Bar), (True, False, Bar), (False, False, Lines)],
)
def test_a_bar_where_there_is_a_terminal(monkeypatch, stdout, stderr, expected):
    monkeypatch.setattr("sys.stdout.isatty", lambda: stdout)
    monkeypatch.setattr("sys.stderr.isatty", lambda: stderr)
    shown = progress_for()
    assert type(shown) is expected
    if expected is Bar:
        assert shown._bar.console.stderr is stderr  # not into a file that stdout goes to


def test_of_many_evaluations_few_epsilons_are_computed_and_all_hold(tmp_path, monkeypatch):
    """The next computed one's, which is larger."""
    monkeypatch.setattr(loop, "_EXACT", 3)
    monkeypatch.setattr(loop, "_LONG", 3)
    computed, original = [], Run.epsilon
    monkeypatch.setattr(Run, "epsilon", lambda run, t: computed.append(t) or original(run, t))
    asked = experiment(**{**RUN, "run__evaluate_every": 1})
    [result] = train(asked, DATA, tmp_path / "run")
    assert computed == [1, 2, 4, 6]
    rows = RunFolder(tmp_path / "run").released()
    entry = result.ledger.entries[0]
    for row in rows:
        ledger = result.ledger.replace(entries=(entry.replace(steps=row["step"]),))
        assert row["epsilon"] >= ledger.epsilon(1e-3, "rdp") * (1 - 1e-9)
    assert rows[-1]["epsilon"] == pytest.approx(result.ledger.epsilon(1e-3, "rdp"))
    assert np.all(np.diff([row["epsilon"] for row in rows]) >= 0)


def test_of_many_steps_some_are_written_however_they_were_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "_STEPS_KEPT", 3)  # every second one of six
    for every in (1, 4):
        folder = tmp_path / f"every-{every}"
        train(experiment(**{**RUN, "run__evaluate_every": every}), DATA, folder)
        assert RunFolder(folder).steps()["step"] == [0, 2, 4]
