"""Writes tiny files in the official formats, byte by byte, without the loaders' help."""

import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpjax.data import DATASETS, File, Folder

IDX_NAMES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, splits, *, packed: bool = True) -> None:
    """Writes (images (n, 28, 28), labels (n,)) to train and to test."""
    folder.mkdir(parents=True, exist_ok=True)
    for names, arrays in zip(IDX_NAMES, splits, strict=True):
        for name, array in zip(names, arrays, strict=True):
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / name).write_bytes(idx(array))


def write_cifar(path: Path, images: np.ndarray, *labels: list[int]) -> None:
    """Writes images (n, 32, 32, 3), with one or two label bytes in front."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for row, image in enumerate(images):
            file.write(bytes(own[row] for own in labels))
            for channel in range(3):
                file.write(image[:, :, channel].tobytes())


def images(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def make_official(monkeypatch, name: str, folder: Path, train: int | None, test: int) -> None:
    """Makes what lies in a folder the official files of a data set, for one test."""
    files = tuple(_as_found(entry, folder) for entry in DATASETS[name].files)
    tiny = replace(DATASETS[name], files=files, examples=(train, test))
    monkeypatch.setitem(DATASETS, name, tiny)


def _as_found(entry, folder: Path):
    if isinstance(entry, Folder):
        return replace(entry, count=len(list((folder / entry.path).iterdir())))
    plain = None if entry.plain is None else _as_found(entry.plain, folder)
    path = folder / entry.path
    if not path.is_file():
        return replace(entry, plain=plain)
    data = path.read_bytes()
    return File(entry.path, sha256(data), len(data), entry.url, plain)


def same(split, x, y):
    assert (split.x.dtype, split.y.dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(split.x, x)
    np.testing.assert_array_equal(split.y, y)


def names(folder: Path) -> list[str]:
    """Returns what is in a folder."""
    return sorted(path.name for path in folder.iterdir())
