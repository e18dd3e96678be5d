"""Fingerprints by which a run recognises its data."""

import hashlib

import numpy as np

from dpjax.data.base import Dataset, RandomAccess, Split

__all__ = ["HASHED_ROWS", "fingerprints"]

HASHED_BYTES = 2**30
HASHED_ROWS = 4096


def fingerprints(dataset: Dataset) -> dict[str, str]:
    """Returns a hash of each split, by which a run recognises its data.

    For data larger than `HASHED_BYTES`, or read on demand, only some evenly spaced rows are hashed,
    and the fingerprint begins with "some". Fingerprints are private: anyone who knows all training
    examples but one could use them to guess the last one.

    Args:
        dataset: the data set.

    Example:
        >>> from dpjax.data import load
        >>> marks = fingerprints(load("digits"))
        >>> list(marks), len(marks["training"])
        (['training', 'test'], 64)
    """
    return {"training": _mark(dataset.train), "test": _mark(dataset.test)}


def _mark(split: Split | RandomAccess) -> str:
    size = len(split.y) if isinstance(split, Split) else len(split)
    some = np.unique(np.linspace(0, size - 1, HASHED_ROWS).astype(np.int64))
    if not isinstance(split, Split):
        return f"some {_hash(split.__getitems__(some), size)}"
    if sum(array.nbytes for array in split) > HASHED_BYTES:
        return f"some {_hash(Split(*(array[some] for array in split)), size)}"
    return _hash(split, size)


def _hash(split: Split, size: int) -> str:
    digest = hashlib.sha256()
    for array in split:
        digest.update(f"{(size, *array.shape[1:])} {array.dtype}".encode())
        for start in range(0, len(array), HASHED_ROWS):
            digest.update(array[start : start + HASHED_ROWS].tobytes())
    return digest.hexdigest()
