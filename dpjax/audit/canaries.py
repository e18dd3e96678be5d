"""A data set with canaries: examples whose gradients point where nobody else's do."""

from typing import NamedTuple

import numpy as np

from dpjax.data import Dataset, Split

__all__ = ["Planted", "plant"]

_LOUD = 300.0  # a canary's own feature: its gradient is beyond any threshold until it is learned


class Planted(NamedTuple):
    """A data set with some of the canaries in it.

    Attributes:
        dataset: features and, behind them, a feature for each canary.
        x: the inputs of all canaries, those that were left out too.
        y: their labels.
        included: which of them are in the training examples.
    """

    dataset: Dataset
    x: np.ndarray
    y: np.ndarray
    included: np.ndarray


def plant(dataset: Dataset, count: int, rng: np.random.Generator) -> Planted:
    """Returns a data set with canaries, each of them in by its own fair coin.

    A canary has one feature that is its own and no other, and a random label. The gradients of a
    linear model for two canaries share their bias alone.

    Args:
        dataset: the examples among which they hide.
        count: how many canaries there are.
        rng: the coins and labels; they belong to the attack and not to the training.

    Example:
        >>> x, y = np.ones((5, 2, 2, 1), np.uint8), np.zeros(5, np.int32)
        >>> small = Dataset("small", Split(x, y), Split(x, y), classes=3)
        >>> planted = plant(small, 4, np.random.default_rng(0))
        >>> planted.dataset.train.x.shape == (5 + planted.included.sum(), 4 + 4)
        True
    """
    included = rng.random(count) < 0.5
    labels = rng.integers(dataset.classes, size=count).astype(np.int32)
    width = int(np.prod(dataset.shape))
    canaries = np.zeros((count, width + count), np.float32)
    canaries[:, width:] = _LOUD * np.eye(count, dtype=np.float32)
    train, test = (_widened(split, count) for split in (dataset.examples, dataset.test))
    order = rng.permutation(len(train.y) + included.sum())
    whole = Split(
        np.concatenate([train.x, canaries[included]])[order],
        np.concatenate([train.y, labels[included]])[order],
    )
    found = Dataset(f"{dataset.name} with canaries", whole, test, dataset.classes)
    return Planted(found, canaries, labels, included)


def _widened(split: Split, count: int) -> Split:
    """Returns a split as flat features of at most 1, with an empty feature for each canary."""
    flat = split.x.reshape(len(split.x), -1).astype(np.float32)
    largest = np.max(np.abs(flat), initial=1.0)
    empty = np.zeros((len(flat), count), np.float32)
    return Split(np.concatenate([flat / largest, empty], axis=1), split.y)
