"""A full disk, a read-only one, no locks, no memory: one sentence each, and nothing is lost."""

import errno
import fcntl
import os
import subprocess
from contextlib import suppress

import jax
import pytest

from dpjax import _files
from dpjax.train import RunFolder, train
from dpjax.train.feed import DeviceRunner
from tests.marks import some
from tests.train.small import experiment, images

DATA = images()
RUN = {"run__seed": 5, "run__evaluate_every": 2, "run__checkpoint_every": 2}
FILES = ("config.toml", "released.jsonl", "steps.csv", "ledger.json", "statement.md")


def run(folder, **options):
    return train(experiment(**RUN), DATA, folder, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder)
    return folder


def check_resumed(whole, folder):
    """Resumes, or begins anew what was not begun; the end is that of the undisturbed run."""
    run(folder, resume=RunFolder(folder).exists)
    for name in FILES:
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("code", some([errno.ENOSPC, errno.EROFS, errno.EIO], [errno.ENOSPC]))
@pytest.mark.parametrize("name", some([*FILES, "run.json"], ["released.jsonl"]))
def test_a_file_that_cannot_be_written(whole, tmp_path, monkeypatch, name, code):
    """The second time, if there is one: half a line is left behind, as on a disk that fills up."""
    left = [1 if name in ("released.jsonl", "steps.csv", "ledger.json") else 0]
    original = _files._write

    def full(file, mode, text):
        if file.name.removesuffix(".new") == name:
            left[0] -= 1
            if left[0] < 0:
                original(file, mode, text[: len(text) // 2])
                raise OSError(code, os.strerror(code))
        original(file, mode, text)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(_files, "_write", full)
        with pytest.raises(OSError, match=f"run/{name} was not written: ") as caught:
            run(folder)
    assert caught.value.errno == code
    said = f"{folder / name} was not written: {os.strerror(code)}; what was saved is intact"
    assert str(caught.value) == said
    check_resumed(whole, folder)


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up_while_the_run_goes(whole, small_disk):
    """A real one; what fills it is then taken away."""
    folder, ballast = small_disk / "run", small_disk / "ballast"

    def fill(rows):
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"0" * 4096)

    with pytest.raises(OSError, match=r"not written.*No space left on device") as caught:
        run(folder, callback=fill)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    ballast.unlink()
    check_resumed(whole, folder)


def test_a_disk_that_can_only_be_read(whole, small_disk):
    folder = small_disk / "run"
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match="Read-only file system") as caught:
        run(folder)
    assert caught.value.filename == str(folder)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    check_resumed(whole, folder)


@pytest.mark.parametrize("code", some([errno.ENOLCK, errno.EOPNOTSUPP], [errno.ENOLCK]))
def test_a_file_system_without_locks(whole, tmp_path, monkeypatch, code):
    def refused(file, operation):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        with pytest.raises(OSError, match=r"run/lock: .*: expected a file system that can lock"):
            run(tmp_path / "run")
    check_resumed(whole, tmp_path / "run")


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("device", jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GB\nallocation details")),
        ("host", MemoryError()),
    ],
)
def test_out_of_memory(whole, tmp_path, monkeypatch, where, error):
    original = DeviceRunner.advance

    def advance(self, state, steps):
        if int(state.step) >= 4:
            raise error
        return original(self, state, steps)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(DeviceRunner, "advance", advance)
        with pytest.raises(MemoryError) as caught:
            run(folder)
    assert str(caught.value) == (
        f"{folder}: the {where} ran out of memory at step 4, with train.chunk = 5: expected a "
        "smaller one; what was saved can be resumed"
    )
    check_resumed(whole, folder)
