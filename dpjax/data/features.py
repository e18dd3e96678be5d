"""A data set of features from a pre-trained network, read from an .npz file."""

import zipfile
from pathlib import Path

import numpy as np

from dpjax.data.base import Dataset, Split
from dpjax.data.source import File, Source

__all__ = ["CIFAR10_SIMCLR", "read_features"]

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def read_features(name: str, path: Path, classes: int) -> Dataset:
    """Reads features and labels from an .npz file of ``x_train, y_train, x_test, y_test``.

    Privacy:
        If the network was trained only on other, public data, it transforms each example
        independently, and the features cost nothing. If it was trained on the private data, they
        have a privacy cost.

    Args:
        name: the data set's name.
        path: the file; pickled objects in it are refused.
        classes: the number of classes.

    Returns:
        The data set, with float32 or float16 features of shape (n, d) and int32 labels.

    Raises:
        ValueError: if an array is missing, is not numeric, or does not match the others.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [key for key in _ARRAYS if key not in file.files]
            if missing:
                raise ValueError(f"expected the arrays {', '.join(_ARRAYS)}, {missing[0]} is not")
            x_train, y_train, x_test, y_test = (file[key] for key in _ARRAYS)
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise ValueError(f"{path}: expected an .npz file of features: {error}") from error
    for key, x in (("x_train", x_train), ("x_test", x_test)):
        if x.ndim != 2 or x.dtype not in (np.float16, np.float32, np.float64):
            raise ValueError(
                f"{path}: {key} has shape {x.shape} of {x.dtype}: expected (n, d) reals"
            )
        if not np.isfinite(x).all():
            raise ValueError(f"{path}: {key} holds numbers that are not finite")
    if x_train.shape[1] != x_test.shape[1]:
        raise ValueError(f"{path}: {x_train.shape[1]} features to train, {x_test.shape[1]} to test")
    return Dataset(name, _split(x_train, y_train), _split(x_test, y_test), classes)


def _split(x: np.ndarray, y: np.ndarray) -> Split:
    half = x.dtype == np.float16
    return Split(x if half else x.astype(np.float32), y.astype(np.int32, casting="same_kind"))


def _read(source: Source, folder: Path) -> Dataset:
    return read_features(source.name, folder / source.files[0].path, source.classes)


CIFAR10_SIMCLR = Source(
    name="cifar10_simclr",
    title="CIFAR-10 (SimCLRv2 features)",
    folder="cifar10-simclr",
    examples=(50_000, 10_000),
    classes=10,
    files=(File("features.npz"),),
    notes="CIFAR-10 as the 4,096 features of a SimCLRv2 network that was pre-trained on unlabelled "
    "ImageNet, as Tramer and Boneh 2021 extract them: x_train, y_train, x_test, y_test in "
    "features.npz. No public file of them is known.",
    read=_read,
)
