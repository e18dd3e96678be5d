"""SVHN, cropped digits: two MATLAB 5 files."""

from pathlib import Path

import numpy as np

from dpjax.data.base import Dataset, Pixels, Split
from dpjax.data.labels import class_labels
from dpjax.data.source import File, Source

__all__ = ["SVHN"]


def _read(source: Source, folder: Path) -> Dataset:
    train, test = (file.within(folder) for file in source.files if isinstance(file, File))
    return Dataset(
        source.name,
        _split(train, source.classes),
        _split(test, source.classes),
        source.classes,
        Pixels(255.0, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    )


def _split(path: Path, classes: int) -> Split:
    images, labels = _arrays(path)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise ValueError(
            f"{path}: X is {images.dtype} {images.shape}, expected uint8 (32, 32, 3, n)"
        )
    if labels.shape != (images.shape[3], 1) or labels.dtype.kind not in "ui":
        raise ValueError(
            f"{path}: y is {labels.dtype} {labels.shape}, expected integers ({images.shape[3]}, 1)"
        )
    y = class_labels(path, labels, classes, first=1)
    # The files label the digit 0 as 10: label l, read as l - 1, is the digit l mod 10.
    return Split(np.ascontiguousarray(images.transpose(3, 0, 1, 2)), (y + 1) % np.int32(classes))


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat  # noqa: PLC0415  (slow to import, and few need it)

    try:
        found = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # for a damaged file, scipy raises errors of a dozen types
        raise ValueError(
            f"{path}: not a readable MATLAB 5 file ({' '.join(str(error).split())})"
        ) from error
    missing = [name for name in ("X", "y") if not isinstance(found.get(name), np.ndarray)]
    if missing:
        raise ValueError(f"{path}: holds no array {missing[0]}, expected X and y")
    return found["X"], found["y"]


_ADDRESS = "http://ufldl.stanford.edu/housenumbers/"

SVHN = Source(
    name="svhn",
    title="SVHN (cropped digits)",
    folder="svhn",
    examples=(73_257, 26_032),
    classes=10,
    files=(
        File(
            "train_32x32.mat",
            "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            182_040_794,
            f"{_ADDRESS}train_32x32.mat",
        ),
        File(
            "test_32x32.mat",
            "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            64_275_384,
            f"{_ADDRESS}test_32x32.mat",
        ),
    ),
    notes="32 x 32 colour house numbers, Netzer et al.; non-commercial use; official split "
    "without the extra images.",
    read=_read,
)
