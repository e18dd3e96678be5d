"""Several processes on one machine, each with a device of its own: one run."""

import os
from pathlib import Path

import jax
import numpy as np
import pytest

from dpjax import data
from dpjax.cli import main
from dpjax.data import fingerprints
from dpjax.train import Run, RunFolder, build_program, mesh, training
from tests.train.small import experiment
from tests.train.test_kill import Victim, flags

STORE = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
STEPS = 8
# The exact sums of devices differ from those of one device by less than the noise's grid; what may
# fall to another point of it is about one coordinate in 1e7.
FIGURE = 1e-6


def state_of(folder):
    run, digits = RunFolder(folder), data.load("digits")
    return Run.resume(build_program(run.read_config(), digits), run, fingerprints(digits)).state


def farthest(a, b):
    pairs = zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process with one device."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert main(["train", *flags(STEPS, seed=3), "--out", str(folder)]) == 0
    return folder


def check_same(alone, folder):
    for name in ("ledger.json", "statement.md"):
        assert (folder / name).read_bytes() == (alone / name).read_bytes()
    assert farthest(state_of(folder), state_of(alone)) < FIGURE
    assert RunFolder(folder).steps()["step"] == list(range(STEPS))
    assert len(RunFolder(folder).released()) == len(RunFolder(alone).released())


# Says in files when a process is done and when it begins to leave; the last one is late, or dies.
LATE = """
import atexit, os, sys, time
from pathlib import Path
import jax  # which registers its own clean-up before ours, and so runs it after
from dpjax.cli import main, train
from dpjax.train import mesh
place, trained = Path(sys.argv[1]), train._trained_and_shown
def late(args):
    code, process = trained(args), jax.process_index()
    atexit.register((place / f"{process} leaves").touch)
    time.sleep(3 * process)
    if process and DIES:
        os._exit(9)
    (place / f"{process} is done").touch()
    return code
train._trained_and_shown = late
mesh._SECONDS_TO_LEAVE = 30
sys.exit(main(sys.argv[2:]))
"""


def test_two_processes_are_one_run(alone, tmp_path):
    """One key, one noise, one set of files; and none leaves before the other is done.

    The first process coordinates: when it goes, JAX ends whoever still needs it.
    """
    program = ("-c", LATE.replace("DIES", "False"), str(tmp_path))
    Victim(tmp_path / "two", STORE, STEPS, processes=2, program=program).finish()
    check_same(alone, tmp_path / "two")
    times = {path.name: path.stat().st_mtime for path in tmp_path.glob("? *")}
    assert sorted(times) == ["0 is done", "0 leaves", "1 is done", "1 leaves"]
    assert min(times["0 leaves"], times["1 leaves"]) >= times["1 is done"]


@pytest.mark.slow
def test_a_process_that_dies_behind_the_last_step_is_not_waited_for(alone, tmp_path):
    program = ("-c", LATE.replace("DIES", "True"), str(tmp_path))
    victim = Victim(tmp_path / "two", STORE, STEPS, processes=2, program=program)
    first, second = victim.start()
    assert second.wait(timeout=400) == 9
    assert first.wait(timeout=90) == 2
    assert "another of this run is not after 30 seconds, or has ended" in victim.said.read_text()
    check_same(alone, tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize("then", [1, 4])
def test_killed_it_is_resumed_with_another_number_of_processes(alone, tmp_path, then):
    first = Victim(tmp_path / "run", STORE, STEPS, processes=2)
    first.kill_when(first.behind(step=2, lag=0.0), victim=1)
    said = first.said.read_text()
    assert "another process of this run has ended" in said
    assert "--resume --out" in said
    Victim(tmp_path / "run", STORE, STEPS, processes=then).finish()
    check_same(alone, tmp_path / "run")


@pytest.mark.slow
def test_processes_that_were_asked_for_different_things_are_refused(tmp_path):
    victim = Victim(tmp_path / "run", STORE, STEPS, processes=2)
    first, second = victim.start(last=["--set", "optimizer.learning_rate=0.5"])
    assert second.wait(timeout=400) == 2
    assert first.wait(timeout=400) != 0
    assert "was given another experiment than process 0" in victim.said.read_text()


def test_the_key_is_that_of_the_first_process(monkeypatch):
    """Without a seed every process draws a key of its own: two noises over one sum."""
    first = np.array([7, 8], np.uint32)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(mesh, "agreed", lambda own: first if own.shape == (2,) else own)
    asked = experiment()
    roots = [jax.random.key_data(training._shared_root(asked)) for _ in range(2)]
    assert all(np.array_equal(root, first) for root in roots)
    monkeypatch.setattr(mesh, "agreed", lambda own: own + 1)
    with pytest.raises(ValueError, match="was given another experiment than process 0"):
        training._shared_root(asked)
