"""`fetch` against a server on loopback: resume, checksums, and servers that fail."""

from dataclasses import replace

import numpy as np
import pytest

from dpjax import data
from dpjax.data import DATASETS
from tests.data.official import images, make_official, names, sha256, write_mnist
from tests.data.server import nobody, serving, silent

SPLITS = (
    (images(0, 3, 28, 28), np.array([1, 2, 3])),
    (images(1, 2, 28, 28), np.array([4, 5])),
)
FIRST = "train-images-idx3-ubyte.gz"


@pytest.fixture
def mnist(monkeypatch, tmp_path):
    """Serves a tiny MNIST, which is the official one meanwhile."""
    write_mnist(tmp_path / "origin", SPLITS)
    make_official(monkeypatch, "mnist", tmp_path / "origin", 3, 2)
    files = {path.name: path.read_bytes() for path in (tmp_path / "origin").iterdir()}
    with serving(files) as server:
        yield server


def test_files_are_fetched_verified_and_loadable(mnist, home):
    told = []
    new = data.fetch("mnist", home, mnist.address, progress=lambda *args: told.append(args))
    assert [path.name for path in new] == [entry.path for entry in DATASETS["mnist"].files]
    assert names(home / "mnist") == sorted(mnist.files)
    np.testing.assert_array_equal(data.load("mnist", home).train.x[..., 0], SPLITS[0][0])
    size = len(mnist.files[FIRST])
    assert told[0] == (FIRST, size, size)
    assert data.fetch("mnist", home, mnist.address) == []
    assert len(mnist.asked) == 4


def test_only_what_is_missing_is_fetched(mnist, home):
    data.fetch("mnist", home, mnist.address)
    (home / "mnist" / FIRST).unlink()
    assert data.fetch("mnist", home, mnist.address) == [home / "mnist" / FIRST]
    assert mnist.asked[4:] == [(FIRST, None)]


def test_a_transfer_that_broke_off_goes_on_from_there(mnist, home):
    mnist.breaks_after = 1000
    size = len(mnist.files[FIRST])
    with pytest.raises(OSError, match=f"interrupted after 1000 of {size} bytes; the same command"):
        data.fetch("mnist", home, mnist.address)
    assert names(home / "mnist") == [f"{FIRST}.part"]
    with pytest.raises(OSError, match=f"interrupted after 2000 of {size} bytes"):
        data.fetch("mnist", home, mnist.address)
    mnist.breaks_after = None
    data.fetch("mnist", home, mnist.address)
    assert [wanted for _, wanted in mnist.asked[:3]] == [None, "bytes=1000-", "bytes=2000-"]
    assert names(home / "mnist") == sorted(mnist.files)
    assert data.load("mnist", home).classes == 10


def test_a_server_without_ranges_sends_everything_again(mnist, home):
    mnist.breaks_after = 1000
    with pytest.raises(OSError, match="interrupted"):
        data.fetch("mnist", home, mnist.address)
    mnist.breaks_after, mnist.ranges = None, False
    data.fetch("mnist", home, mnist.address)
    assert mnist.asked[1] == (FIRST, "bytes=1000-")
    assert (home / "mnist" / FIRST).read_bytes() == mnist.files[FIRST]


def test_a_server_that_sends_another_part_is_refused(mnist, home):
    mnist.breaks_after = 1000
    with pytest.raises(OSError, match="interrupted"):
        data.fetch("mnist", home, mnist.address)
    mnist.shifted = 3
    with pytest.raises(OSError, match="sends another part than byte 1000"):
        data.fetch("mnist", home, mnist.address)
    assert (home / "mnist" / f"{FIRST}.part").stat().st_size == 1000


def test_a_part_that_is_whole_already_is_only_verified(mnist, home):
    (home / "mnist").mkdir(parents=True)
    (home / "mnist" / f"{FIRST}.part").write_bytes(mnist.files[FIRST])
    data.fetch("mnist", home, mnist.address)
    assert (FIRST, None) not in mnist.asked
    assert (home / "mnist" / FIRST).is_file()


def test_a_part_that_is_too_long_begins_again(mnist, home):
    (home / "mnist").mkdir(parents=True)
    (home / "mnist" / f"{FIRST}.part").write_bytes(mnist.files[FIRST] + b"x")
    data.fetch("mnist", home, mnist.address)
    assert (FIRST, None) in mnist.asked
    assert (home / "mnist" / FIRST).read_bytes() == mnist.files[FIRST]


@pytest.mark.parametrize("there", [0, 7])
def test_a_part_of_unknown_size_ends_where_the_server_says(monkeypatch, mnist, home, there):
    files = tuple(replace(entry, size=None) for entry in DATASETS["mnist"].files)
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], files=files))
    (home / "mnist").mkdir(parents=True)
    # Whole, or whole and more: the server has nothing after it (416).
    (home / "mnist" / f"{FIRST}.part").write_bytes(mnist.files[FIRST] + bytes(there))
    data.fetch("mnist", home, mnist.address)
    assert (home / "mnist" / FIRST).read_bytes() == mnist.files[FIRST]
    assert mnist.asked.count((FIRST, None)) == (1 if there else 0)


def test_a_wrong_checksum_never_gets_a_place(mnist, home):
    right = mnist.files[FIRST]
    mnist.files[FIRST] = bytes(len(right))
    with pytest.raises(ValueError) as raised:
        data.fetch("mnist", home, mnist.address)
    found, expected = sha256(bytes(len(right))), sha256(right)
    assert f"{FIRST}: checksum {found}, expected {expected}" in str(raised.value)
    assert names(home / "mnist") == []


def test_a_server_that_sends_too_much_is_cut_off(mnist, home):
    mnist.longer = 10_000_000
    size = len(mnist.files[FIRST])
    with pytest.raises(OSError, match=f"sends more than the {size} bytes"):
        data.fetch("mnist", home, mnist.address)
    assert (home / "mnist" / f"{FIRST}.part").stat().st_size <= size


def test_what_is_not_there_says_so(mnist, home):
    del mnist.files[FIRST]
    with pytest.raises(OSError, match=f"{FIRST}: the server answers 404"):
        data.fetch("mnist", home, mnist.address)


def test_who_does_not_answer_is_given_up(mnist, home):
    with silent() as address, pytest.raises(OSError, match=r"no answer within 0\.2 s"):
        data.fetch("mnist", home, address, timeout=0.2)
    with pytest.raises(OSError, match="cannot be reached"):
        data.fetch("mnist", home, nobody())


@pytest.mark.parametrize("mirror", ["file:///etc", "ftp://host/x", "/srv/mirror", "http://", ""])
def test_only_http_addresses(mnist, home, mirror):
    with pytest.raises(ValueError, match=r"mirror = .*: expected an address with http"):
        data.fetch("mnist", home, mirror)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_is_a_positive_number(mnist, home, timeout):
    with pytest.raises(ValueError, match="timeout = "):
        data.fetch("mnist", home, mnist.address, timeout=timeout)


def test_what_is_there_is_never_overwritten(mnist, home):
    (home / "mnist").mkdir(parents=True)
    own = home / "mnist" / FIRST
    own.write_bytes(bytes(len(mnist.files[FIRST])))
    with pytest.raises(ValueError, match=f"{FIRST}: wrong checksum .* move it away"):
        data.fetch("mnist", home, mnist.address)
    assert own.read_bytes() == bytes(len(mnist.files[FIRST]))
    assert mnist.asked == []


def test_nothing_is_written_outside_of_the_data_directory(mnist, home, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    home.mkdir()
    (home / "mnist").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="leads out of the data directory"):
        data.fetch("mnist", home, mnist.address)
    (home / "mnist").unlink()
    (home / "mnist").mkdir()
    (home / "mnist" / f"{FIRST}.part").symlink_to(elsewhere / "x")
    with pytest.raises(ValueError, match="leads out of the data directory"):
        data.fetch("mnist", home, mnist.address)
    assert names(elsewhere) == []


def test_without_a_public_address_the_notes_say_what_to_do(home):
    with pytest.raises(ValueError, match=r"CelebA \[Male\] has no public address .*mmlab"):
        data.fetch("celeba_male", home)
    assert not home.exists()
    assert data.fetch("digits", home) == []
