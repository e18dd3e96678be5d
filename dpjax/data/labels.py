"""Class labels from files, checked to be in range."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["class_labels"]


def class_labels(path: Path, values: ArrayLike, classes: int, first: int = 0) -> np.ndarray:
    """Returns labels as int32, counted from 0.

    Args:
        path: the file they come from, for the error message.
        values: integers, one for each example.
        classes: the number of classes.
        first: the file's smallest label.

    Returns:
        ``values - first``, int32 (n,).

    >>> class_labels(Path("train.csv"), [1, 4], classes=4, first=1).tolist()
    [0, 3]
    >>> class_labels(Path("train.csv"), [1, 5], classes=4, first=1)
    Traceback (most recent call last):
    ...
    ValueError: train.csv: label 5 of example 1 is out of range, expected 1 to 4
    """
    labels = np.asarray(values).astype(np.int64).reshape(-1)
    wrong = np.flatnonzero((labels < first) | (labels >= first + classes))
    if wrong.size:
        raise ValueError(
            f"{path}: label {labels[wrong[0]]} of example {wrong[0]} is out of range, "
            f"expected {first} to {first + classes - 1}"
        )
    return (labels - first).astype(np.int32)
