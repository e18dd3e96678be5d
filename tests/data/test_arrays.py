"""idx, CIFAR and MATLAB files come back byte by byte, and damaged ones are refused."""

import gzip
import struct
import tracemalloc

import numpy as np
import pytest
import scipy.io

from dpjax import data
from dpjax.data.idx import read_idx
from tests.data.official import (
    IDX_NAMES,
    idx,
    images,
    make_official,
    same,
    write_cifar,
    write_mnist,
)

X, Y = images(0, 5, 28, 28), np.array([9, 0, 3, 3, 1])
SPLITS = ((X[:3], Y[:3]), (X[3:], Y[3:]))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "mnist"), ("fashion_mnist", "fashion-mnist")]
)
def test_mnist(monkeypatch, tmp_path, name, folder, packed):
    write_mnist(tmp_path / folder, SPLITS, packed=packed)
    make_official(monkeypatch, name, tmp_path / folder, 3, 2)
    loaded = data.load(name, tmp_path)
    same(loaded.train, X[:3, :, :, None], Y[:3])
    same(loaded.test, X[3:, :, :, None], Y[3:])
    assert (loaded.name, loaded.shape, loaded.classes) == (name, (28, 28, 1), 10)
    assert (len(loaded.pixels.mean), loaded.vocabulary) == (1, None)


def write(tmp_path, content, name="x-idx1-ubyte"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "magic number missing, expected 00000801"),
        (b"PK\3\4" + bytes(9), "magic number 504b0304, expected 00000801"),
        (struct.pack(">I", 0x803) + bytes(12), "magic number 00000803, expected 00000801"),
        (struct.pack(">I", 0x801) + bytes(2), "ends inside its header"),
        (idx(np.zeros(4)), "holds 4, expected 3"),
        (idx(np.zeros(3))[:-1], "2 bytes of data, expected 3"),
        (idx(np.zeros(3)) + b"x", "more bytes of data, expected 3"),
    ],
)
def test_damaged_idx(tmp_path, content, said):
    for packed in (False, True):
        name = "x-idx1-ubyte.gz" if packed else "x-idx1-ubyte"
        path = write(tmp_path, gzip.compress(content) if packed else content, name)
        with pytest.raises(ValueError) as raised:
            read_idx(path, (3,))
        assert str(raised.value).startswith(f"{path}: {said}")


def test_damaged_gzip(tmp_path):
    whole = gzip.compress(idx(images(1, 1000)))
    flipped = bytearray(whole)
    flipped[-6] ^= 1  # inside the CRC
    for content in (whole[:-20], bytes(flipped), b"no gzip at all", whole[:10] + b"\xff" * 30):
        path = write(tmp_path, content, "x.gz")
        with pytest.raises(ValueError, match=r"x\.gz: damaged gzip file"):
            read_idx(path, (1000,))


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    path = write(tmp_path, gzip.compress(idx(np.zeros(2)) + bytes(200_000_000), 9), "x.gz")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more bytes of data, expected 2"):
            read_idx(path, (2,))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_header_that_promises_too_much_is_refused_before_reading(tmp_path):
    path = write(tmp_path, struct.pack(">II", 0x801, 2**32 - 1))
    with pytest.raises(ValueError, match="holds 4294967295, expected 2"):
        read_idx(path, (2,))


def test_labels_out_of_range_are_refused(monkeypatch, tmp_path):
    write_mnist(tmp_path / "mnist", ((X[:3], np.array([0, 10, 1])), SPLITS[1]))
    make_official(monkeypatch, "mnist", tmp_path / "mnist", 3, 2)
    with pytest.raises(
        ValueError, match=rf"{IDX_NAMES[0][1]}\.gz: label 10 of example 1 .* expected 0 to 9"
    ):
        data.load("mnist", tmp_path)


def test_cifar10(monkeypatch, tmp_path):
    folder = tmp_path / "cifar-10"
    x, y = images(2, 12, 32, 32, 3), [3, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    for batch in range(5):
        rows = slice(2 * batch, 2 * batch + 2)
        write_cifar(folder / f"data_batch_{batch + 1}.bin", x[rows], y[rows])
    write_cifar(folder / "test_batch.bin", x[10:], y[10:])
    make_official(monkeypatch, "cifar10", folder, 10, 2)
    loaded = data.load("cifar10", tmp_path)
    same(loaded.train, x[:10], y[:10])
    same(loaded.test, x[10:], y[10:])
    assert (loaded.shape, loaded.classes) == ((32, 32, 3), 10)


def test_cifar100_has_the_fine_labels(monkeypatch, tmp_path):
    folder = tmp_path / "cifar-100"
    x, coarse, fine = images(3, 3, 32, 32, 3), [19, 1, 0], [99, 42, 7]
    write_cifar(folder / "train.bin", x[:2], coarse[:2], fine[:2])
    write_cifar(folder / "test.bin", x[2:], coarse[2:], fine[2:])
    make_official(monkeypatch, "cifar100", folder, 2, 1)
    loaded = data.load("cifar100", tmp_path)
    same(loaded.train, x[:2], fine[:2])
    same(loaded.test, x[2:], fine[2:])
    assert loaded.classes == 100


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bytes(3074 + 1), "3075 bytes, expected a positive multiple of 3074"),
        (b"", "0 bytes, expected a positive"),
        (bytes([0, 100]) + bytes(3072), "label 100 of example 0 is out of range, expected 0 to 99"),
    ],
)
def test_damaged_cifar(monkeypatch, tmp_path, content, said):
    folder = tmp_path / "cifar-100"
    write_cifar(folder / "train.bin", images(3, 1, 32, 32, 3), [0], [0])
    write(folder, content, "test.bin")
    make_official(monkeypatch, "cifar100", folder, 1, 1)
    with pytest.raises(ValueError, match=f"test.bin: {said}"):
        data.load("cifar100", tmp_path)


def write_svhn(folder, **arrays):
    folder.mkdir(exist_ok=True)
    x = images(4, 3, 32, 32, 3)
    for name, rows in (("train", slice(0, 2)), ("test", slice(2, 3))):
        y = np.array([[10], [9], [1]], np.uint8)[rows]
        saved = {"X": x[rows].transpose(1, 2, 3, 0), "y": y}
        if name == "test":
            saved.update(arrays)
        scipy.io.savemat(folder / f"{name}_32x32.mat", saved, do_compression=True)
    return x


def test_svhn_reads_label_10_as_the_digit_0(monkeypatch, tmp_path):
    x = write_svhn(tmp_path / "svhn")
    make_official(monkeypatch, "svhn", tmp_path / "svhn", 2, 1)
    loaded = data.load("svhn", tmp_path)
    same(loaded.train, x[:2], [0, 9])
    same(loaded.test, x[2:], [1])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"X": np.zeros((32, 32, 3, 1))}, "X is float64 (32, 32, 3, 1), expected uint8"),
        ({"X": np.zeros((3, 32, 32, 1), np.uint8)}, "X is uint8 (3, 32, 32, 1), expected"),
        ({"y": np.ones((2, 1), np.uint8)}, "y is uint8 (2, 1), expected integers (1, 1)"),
        ({"y": np.array([[11]], np.uint8)}, "label 11 of example 0 is out of range, expected 1 to"),
        ({"y": np.array([[0]], np.uint8)}, "label 0 of example 0 is out of range"),
    ],
)
def test_damaged_svhn(monkeypatch, tmp_path, arrays, said):
    write_svhn(tmp_path / "svhn", **arrays)
    make_official(monkeypatch, "svhn", tmp_path / "svhn", 2, 1)
    with pytest.raises(ValueError) as raised:
        data.load("svhn", tmp_path)
    assert f"test_32x32.mat: {said}" in str(raised.value)


def test_files_that_are_no_mat_file(monkeypatch, tmp_path):
    folder = tmp_path / "svhn"
    write_svhn(folder)
    whole = (folder / "test_32x32.mat").read_bytes()
    scipy.io.savemat(tmp_path / "other.mat", {"z": np.zeros(3)})
    newer = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(600)
    contents = (b"", b"x" * 300, whole[:100], whole[:2000], newer)
    for content in (*contents, (tmp_path / "other.mat").read_bytes()):
        write(folder, content, "test_32x32.mat")
        make_official(monkeypatch, "svhn", folder, 2, 1)
        with pytest.raises(ValueError, match=r"test_32x32\.mat: (not a readable|holds no array X)"):
            data.load("svhn", tmp_path)
