"""Checkpoints under SIGKILL, a full disk, limits and closed folders, in real processes."""

import errno
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from dpjax._files import MANIFEST
from tests.train.test_checkpoint import Checkpoints

LEAVES, SIZE = 6, 200_000
LIKE = {f"w{i}": np.zeros(SIZE, np.float32) for i in range(LEAVES)}

# Imports once, then forks a saver for each line of its input, and kills it after a while. It never
# starts JAX itself, so that forking is safe.
KILLER = """
import os, signal, sys, time
import numpy as np
from tests.train.test_checkpoint import Checkpoints

def save_on(folder, step, done):
    checkpoints = Checkpoints(folder, "run")
    while True:
        os.write(done, b"begin %d\\n" % step)
        state = {f"w{i}": np.full(SIZE, step, np.float32) for i in range(LEAVES)}
        checkpoints.save(step, state, {"step": step})
        os.write(done, b"done %d\\n" % step)
        step += 1

for line in sys.stdin:
    folder, start, delay = line.split()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_on(folder, int(start), writing)
        finally:
            os._exit(3)
    os.close(writing)
    said = os.read(reading, 100)  # it has begun
    time.sleep(float(delay))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    while more := os.read(reading, 4096):
        said += more
    os.close(reading)
    done = [int(word.split()[1]) for word in said.decode().splitlines() if word[0] == "d"]
    print(os.WTERMSIG(status), max(done, default=-1), flush=True)
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def kill_and_restore(folder: Path, kills: int, seconds: float) -> dict[str, int]:
    """Returns how many kills there were, how many of them inside a write, and steps saved."""
    code = KILLER.replace("LEAVES", str(LEAVES)).replace("SIZE", str(SIZE))
    rng, kills_done, cut_short = random.Random(0), 0, set()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killer:
        assert killer.stdin is not None
        assert killer.stdout is not None
        step, begun = 0, time.monotonic()
        # On a busy machine it takes longer until there was something to see.
        while kills_done < kills and (
            time.monotonic() - begun < seconds or not (cut_short and step > 0)
        ):
            print(folder, step, rng.uniform(0, 0.5), file=killer.stdin, flush=True)
            signal, done = map(int, killer.stdout.readline().split())
            assert signal == 9
            kills_done += 1
            cut_short |= unfinished(folder)
            step = check_restored(folder, max(step - 1, done)) + 1
        killer.stdin.close()
    return {"kills": kills_done, "in a write": len(cut_short), "saved": step}


def unfinished(folder: Path) -> set[tuple[str, int]]:
    """Returns the checkpoint that was being written: the last one, if it is not complete."""
    last = max(folder.glob("step_*"), default=None)
    if last is None or (last / MANIFEST).exists():
        return set()
    return {(last.name, last.stat().st_ino)}  # one that two kills left behind counts once


def check_restored(folder: Path, at_least: int) -> int:
    """Checks that the newest state is whole and not older than what was reported complete."""
    restored = Checkpoints(folder, "run").restore(LIKE)
    if restored is None:
        assert at_least == -1
        return -1
    assert restored.refused == ()
    assert restored.step >= at_least
    assert restored.meta == {"step": restored.step}
    assert all(np.all(leaf == restored.step) for leaf in restored.state.values())
    return restored.step


def test_a_kill_at_any_moment_loses_nothing_that_was_complete(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    counts = kill_and_restore(folder, kills=40, seconds=10)
    assert counts["in a write"] > 0, counts
    assert counts["saved"] > 0, counts


@pytest.mark.slow
def test_many_kills(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    counts = kill_and_restore(folder, kills=500, seconds=float("inf"))
    assert counts["kills"] == 500
    assert counts["in a write"] > 50, counts


def test_a_checkpoint_that_is_overwritten_in_place_would_be_caught(tmp_path):
    """The rejecting arm: the same check on a state that is half of one step, half of the next."""
    mixed = {**LIKE, "w0": np.ones(SIZE, np.float32)}
    Checkpoints(tmp_path, "run").save(0, mixed, {"step": 0})
    with pytest.raises(AssertionError):
        check_restored(tmp_path, 0)


def state_of(step: int, size: int = 50_000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {f"w{i}": rng.normal(size=size) for i in range(4)}


def check_all(folder: Path, steps: list[int]) -> None:
    checkpoints = Checkpoints(folder, "run")
    assert checkpoints.steps() == steps
    assert len(list(folder.iterdir())) == len(steps)
    for step in steps:
        restored = checkpoints.restore(state_of(0), step)
        assert restored is not None
        for name, saved in state_of(step).items():
            assert restored.state[name].tobytes() == saved.tobytes()


@pytest.fixture
def tiny_disk(tmp_path):
    place = tmp_path / "tiny"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_sentence_and_the_others_stay(tiny_disk):
    folder = tiny_disk / "run"
    checkpoints = Checkpoints(folder, "run", keep=100)
    for step in range(3):  # 1.6 MB of random numbers each, on 6 MiB
        checkpoints.save(step, state_of(step), {})
    for step in (3, 4):
        with pytest.raises(OSError, match="No space left on device") as caught:
            checkpoints.save(step, state_of(step), {})
        assert str(caught.value) == (
            f"checkpoint of step {step} was not written to {folder}: "
            "No space left on device; what was saved is intact"
        )
        assert caught.value.errno == errno.ENOSPC
        check_all(folder, [0, 1, 2])
    Checkpoints(folder, "run").save(60, state_of(60, size=1000), {})
    assert Checkpoints(folder, "run").steps() == [2, 60]


LIMITED = """
import logging, resource, sys
from tests.train.test_checkpoint_kill import Checkpoints, state_of
from dpjax.train import checkpoint

checkpoints = Checkpoints(sys.argv[1], "run")
checkpoints.save(1, state_of(1), {})
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
if sys.argv[2] == "inside":  # the limit is met by Orbax itself, as if the disk filled up just then
    checkpoint._reserve = lambda path, size: None
    # Orbax has several tasks and reads the error of one; the others' are said by asyncio, or not.
    sys.unraisablehook = lambda unraisable: None
    logging.getLogger("asyncio").disabled = True
try:
    checkpoints.save(2, state_of(2), {})
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("met", ["before", "inside"])
def test_a_limit_on_file_sizes(tmp_path, met):
    folder = tmp_path / "run"
    result = python(LIMITED, str(folder), met)
    assert result.stdout == (
        f"checkpoint of step 2 was not written to {folder}: File too large; "
        "what was saved is intact\n"
    ), result.stderr
    assert (result.stderr, result.returncode) == ("", 0)
    assert Checkpoints(folder, "run").steps() == [1]
    restored = Checkpoints(folder, "run").restore(state_of(0))
    assert restored is not None
    assert restored.refused == ()


CLOSED = """
import os, sys
from tests.train.test_checkpoint_kill import Checkpoints, check_all, state_of

folder = sys.argv[1]
checkpoints = Checkpoints(folder, "run")
for step in (1, 2):
    checkpoints.save(step, state_of(step), {})
check_all(checkpoints.folder, [1, 2])
os.chmod(folder, 0o555)
os.chmod(os.path.dirname(folder), 0o755)
if os.getuid() == 0:  # permissions do not bind root
    os.setuid(65534)
try:
    checkpoints.save(3, state_of(3), {})
except OSError as error:
    print(error)
check_all(checkpoints.folder, [1, 2])
"""


def test_a_folder_that_cannot_be_written():
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer, "run")
        result = python(CLOSED, str(folder))
        assert result.stdout == (
            f"checkpoint of step 3 was not written to {folder}: Permission denied; "
            "what was saved is intact\n"
        ), result.stderr
        assert (result.stderr, result.returncode) == ("", 0)
        check_all(folder, [1, 2])
        folder.chmod(0o755)


@pytest.mark.parametrize("inside", ["", "run"])
def test_a_file_in_the_place_of_the_folder(tmp_path, inside):
    (tmp_path / "file").write_text("mine")
    folder = tmp_path / "file" / inside
    with pytest.raises(OSError, match=r"checkpoint of step 1 was not written to .*: Not a dir"):
        Checkpoints(folder, "run").save(1, state_of(1), {})
    assert (tmp_path / "file").read_text() == "mine"
    if not inside:
        with pytest.raises(OSError, match=r"checkpoints in .* were not listed: Not a directory"):
            Checkpoints(folder, "run").restore(state_of(1))


QUIET = """
import sys, time
import dpjax
assert not any(name.startswith("orbax") for name in sys.modules)
import asyncio, threading
from tests.train.test_checkpoint_kill import Checkpoints, check_all, state_of

def refuse_pickle(event, arguments):
    if event.startswith("pickle."):
        raise RuntimeError(f"{event} {arguments}")

async def in_a_running_loop(checkpoints):
    checkpoints.save(2, state_of(2), {})
    check_all(checkpoints.folder, [1, 2])

sys.addaudithook(refuse_pickle)
checkpoints = Checkpoints(sys.argv[1], "run")
checkpoints.save(1, state_of(1), {})
check_all(checkpoints.folder, [1])
asyncio.run(in_a_running_loop(checkpoints))
print(time.time())
"""


def test_silent_without_pickle_and_a_prompt_end(tmp_path):
    result = python(QUIET, str(tmp_path / "run"))
    assert (result.stderr, result.returncode) == ("", 0)
    assert time.time() - float(result.stdout) < 3
