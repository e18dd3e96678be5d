"""A run in real processes, killed at any moment, ends with the same bytes."""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest

from dpjax import data
from dpjax._files import MANIFEST
from dpjax.cli import main
from dpjax.data import fingerprints
from dpjax.train import Run, RunFolder, build_program, train
from tests.marks import some
from tests.train.small import experiment, images

FILES = ("config.toml", "ledger.json", "released.jsonl", "steps.csv", "statement.md")
STEPS, EVERY = 24, 2  # how many, and between checkpoints
LEFT = 0o711  # the mode that marks what a kill left behind


def flags(steps: int, seed: int) -> list[str]:
    """An adaptive threshold, an optimizer with moments, an average: all that a checkpoint holds."""
    settings = (
        *("method.noise_multiplier=1.0", "privacy.epsilon=none", "privacy.accountant=rdp"),
        *(f"train.steps={steps}", "train.batch_size=64", "train.ema=0.9", "optimizer.name=adam"),
        *("model.hidden=512", f"run.checkpoint_every={EVERY}", "run.evaluate_every=7"),
    )
    pairs = [word for setting in settings for word in ("--set", setting)]
    return ["--method", "dc_sgd_e", *pairs, "--seed", str(seed), "--quiet"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@dataclass(frozen=True)
class Victim:
    """A run that is killed: the same command again and again, with --resume once it was begun.

    Attributes:
        folder: where it is.
        cache: of compiled programs, so that a start takes less long.
        steps: how many it takes.
        processes: how many processes it has.
        program: what Python runs; the command line, unless a test changes something in it.
    """

    folder: Path
    cache: Path
    steps: int
    processes: int = 1
    program: Sequence[str] = ("-m", "dpjax")

    def start(self, last: Sequence[str] = ()) -> list[subprocess.Popen[bytes]]:
        """Starts the processes; `last` are more flags for the last of them."""
        resume = ["--resume"] if RunFolder(self.folder).exists else []
        argv = ["train", *flags(self.steps, seed=3), *resume, "--out", str(self.folder)]
        environment = {
            **os.environ,
            "JAX_COMPILATION_CACHE_DIR": str(self.cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        several = [[]]
        if self.processes > 1:
            group = ["--distributed", "--coordinator", f"127.0.0.1:{free_port()}"]
            group += ["--processes", str(self.processes)]
            several = [[*group, "--process-id", str(i)] for i in range(self.processes)]
            several[-1] += last
        with self.said.open("ab") as said:
            return [
                subprocess.Popen(
                    [sys.executable, *self.program, *argv, *own],
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    env=environment,
                )
                for own in several
            ]

    @property
    def said(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.err")

    def finish(self) -> None:
        processes = self.start()
        try:
            codes = [process.wait(timeout=1200) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert not any(codes), self.said.read_text()[-1000:]

    def terminate_when(self, moment: Callable[[float], bool]) -> None:
        """Sends SIGTERM at a moment to the last of the processes; all save and say so."""
        processes, begun = self.start(), time.monotonic()
        while processes[0].poll() is None and not moment(time.monotonic() - begun):
            time.sleep(0.0005)
        processes[-1].terminate()
        for process in processes:
            # Before it trains, or behind its last step, nothing listens.
            assert process.wait(timeout=1200) in (0, 143, -15), self.said.read_text()[-1000:]

    def kill_when(self, moment: Callable[[float], bool], victim: int = 0) -> str | None:
        """Kills the run at a moment, a function of the seconds since its start.

        Args:
            moment: says when.
            victim: which of several processes; the others end by themselves.

        Returns:
            The checkpoint whose writing was cut short; None if none was being written.
        """
        processes, begun = self.start(), time.monotonic()
        process = processes[victim]
        try:
            while process.poll() is None and not moment(time.monotonic() - begun):
                time.sleep(0.0005)
        finally:
            process.kill()
        assert process.wait() == -9, f"it ended by itself: {self.said.read_text()[-1000:]}"
        for other in processes:
            assert other.wait(timeout=1200) != 0
        cut = self.written()
        inside = "no write" if cut is None else f"inside the write of {cut.name}"
        after = time.monotonic() - begun
        print(f"killed {after:5.2f} s after its start, saved up to {self.saved():3d}, {inside}")
        if cut is not None:
            cut.chmod(LEFT)
        return None if cut is None else cut.name

    def written(self) -> Path | None:
        """Returns the checkpoint that is being written.

        That is the newest folder if it has no manifest: one that is removed loses it too, but is
        older. What an earlier kill left behind is marked.
        """
        try:
            newest = max(self.folder.glob("checkpoints/*/step_*"), default=None)
            if newest is None or (newest / MANIFEST).exists():
                return None
            return None if newest.stat().st_mode & 0o777 == LEFT else newest
        except FileNotFoundError:  # just removed
            return None

    def saved(self) -> int:
        """Returns the step of the newest complete checkpoint; -1 without one."""
        names = [path.parent.name for path in self.folder.glob(f"checkpoints/*/*/{MANIFEST}")]
        return max((int(name.removeprefix("step_")) for name in names), default=-1)

    def inside_a_write(self, step: int, lag: float) -> Callable[[float], bool]:
        """A moment `lag` seconds into the writing of a checkpoint, with that of `step` complete."""
        since, wanted = None, lag

        def moment(now: float) -> bool:
            nonlocal since, wanted
            if self.written() is None or self.saved() < step:
                since, wanted = None, wanted if since is None else wanted / 2  # it was quicker
                return False
            since = now if since is None else since
            return now - since >= wanted

        return moment

    def at(self, seconds: float, at_most: int) -> Callable[[float], bool]:
        """A moment so many seconds after the start, if the checkpoint of `at_most` is not there."""
        return lambda now: now >= seconds or self.saved() >= at_most

    def behind(self, step: int, lag: float) -> Callable[[float], bool]:
        """A moment `lag` seconds behind the checkpoint of `step`."""
        since = None

        def moment(now: float) -> bool:
            nonlocal since
            if since is None and self.saved() >= step:
                since = now
            return since is not None and now - since >= lag

        return moment


def differences(a: Path, b: Path) -> set[str]:
    """Returns what differs between two runs: files, and parts of the last state, to the bit."""
    files = {name for name in FILES if (a / name).read_bytes() != (b / name).read_bytes()}
    one, other = (last_state(folder) for folder in (a, b))
    assert one.keys() == other.keys()
    return files | {name for name, part in one.items() if part != other[name]}


def last_state(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of every array of the last state by its path, keys among them."""
    run = RunFolder(folder)
    digits = data.load("digits")
    member = Run.resume(build_program(run.read_config(), digits), run, fingerprints(digits))
    assert member.notes == ()
    assert int(member.state.step) == member.program.plan.steps
    leaves = jax.tree_util.tree_leaves_with_path(member.state)
    return {jax.tree_util.keystr(path): _bits(leaf) for path, leaf in leaves}


def _bits(leaf) -> bytes:
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    Victim(folder, cache, STEPS).finish()
    return folder


def test_killed_before_its_beginning_inside_a_write_and_between(whole, tmp_path, cache):
    victim = Victim(tmp_path / "run", cache, STEPS)
    # Killed before there is a run to go on with: the folder is there, run.json is not.
    victim.kill_when(lambda now: (victim.folder / "config.toml").exists())
    assert not RunFolder(victim.folder).exists
    assert victim.kill_when(victim.inside_a_write(step=6, lag=0.005)) is not None
    assert 6 <= victim.saved() < 20
    victim.kill_when(victim.behind(step=12, lag=0.05))
    assert not (victim.folder / "statement.md").exists()
    victim.finish()
    assert differences(whole, victim.folder) == set()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_twenty_kills_and_five_terminations(tmp_path, cache, processes):
    steps, kills = (200 if processes == 1 else 120), 20
    whole = Victim(tmp_path / "whole", cache, steps, processes)
    victim = Victim(tmp_path / "run", cache, steps, processes)
    begun = time.monotonic()
    whole.finish()
    seconds, rng, cut_short = time.monotonic() - begun, random.Random(4), []
    for kill in range(kills):
        share = steps * (kill + 1) // (kills + 2)  # some steps are left for the next kills
        step = rng.choice(range(max(victim.saved(), 0), share) or [victim.saved()])
        if processes > 1:  # before they have met, the others wait for minutes
            step = victim.saved() + 1
        moment = (
            victim.inside_a_write(step, lag=rng.uniform(0, 0.05)),
            victim.behind(step, lag=rng.uniform(0, 0.2)),
            victim.at(rng.uniform(0, seconds / 2), at_most=share)
            if processes == 1
            else victim.behind(step, lag=rng.uniform(0, 1)),
        )[kill % 3]
        cut_short.append(victim.kill_when(moment, kill % processes))
        if kill % 4 == 3:
            victim.terminate_when(victim.behind(victim.saved() + 1, lag=rng.uniform(0, 0.2)))
    print(f"{kills} kills, {kills - cut_short.count(None)} inside a write")
    assert kills - cut_short.count(None) >= 5
    assert len(list(victim.folder.glob("checkpoints/*"))) == 1  # the seed's one and only lineage
    victim.finish()
    assert differences(whole.folder, victim.folder) == set()


@pytest.mark.slow
def test_another_seed_would_be_noticed(whole, tmp_path, capsys):
    """The rejecting arm: the same comparison with a run that differs."""
    other = tmp_path / "other"
    assert main(["train", *flags(STEPS, seed=4), "--out", str(other)]) == 0
    capsys.readouterr()
    found = differences(whole, other)
    assert {"config.toml", "released.jsonl", "steps.csv", ".key", ".opt_state[0].key"} <= found
    assert {name for name in found if name.startswith((".params", ".ema"))}
    # The same experiment costs the same.
    assert not {"ledger.json", "statement.md", ".step"} & found


class Killed(Exception):
    pass


@pytest.mark.parametrize("moment", some(["commit", "settle"], ["settle"]))
def test_a_change_of_experiment_takes_place_or_not(tmp_path, monkeypatch, moment):
    """Killed before run.json names the new experiment, or after it and before config.toml does."""

    def changed(place, **rekey):
        return train(experiment(run__seed=5, train__steps=9), images(), place, resume=True, **rekey)

    for place in (tmp_path / "whole", tmp_path / "cut"):
        train(experiment(run__seed=5), images(), place)
    changed(tmp_path / "whole", rekey=True)

    original = getattr(RunFolder, moment)

    def killed(self, *arguments):
        if moment == "commit" or self._new_config(self.identity()).exists():
            raise Killed
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, moment, killed)
        with pytest.raises(Killed):
            changed(tmp_path / "cut", rekey=True)
    took_place = moment == "settle"
    assert RunFolder(tmp_path / "cut").read_config().train.steps == (9 if took_place else 6)
    changed(tmp_path / "cut", rekey=not took_place)
    for name in FILES:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
