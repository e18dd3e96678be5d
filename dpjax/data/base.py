"""The records of a loaded data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from dpjax import _checks

__all__ = ["Dataset", "Pixels", "RandomAccess", "Split"]


_CHECKED = 1024


class Split(NamedTuple):
    """Examples and their labels, both with a leading axis of examples.

    Attributes:
        x: images, uint8 (n, H, W, C); or tokens, int32 (n, T), where 0 is padding; or features,
            float32 or float16, (n, d) or (n, H, W, K).
        y: class labels, int32 (n,), from 0; or, for several labels at once, int32 (n, labels) of
            0 and 1.

    Example:
        >>> split = Split(np.zeros((2, 28, 28, 1), np.uint8), np.array([3, 7], np.int32))
        >>> len(split.y), split.x.shape[1:]
        (2, (28, 28, 1))
    """

    x: np.ndarray
    y: np.ndarray


class RandomAccess(Protocol):
    """Examples that are read on demand, such as `dpjax.data.Rows`.

    Attributes:
        shape: the shape of one example's inputs.
        dtype: the dtype of the inputs.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    def __len__(self) -> int:
        """Returns the number of examples."""

    def __getitems__(self, rows: Sequence[int] | np.ndarray) -> Split:
        """Returns the examples with these row numbers, stacked."""


class Pixels(NamedTuple):
    """How a stored image becomes float32: ``(x / full - mean) / std``, per channel.

    The constants are the usual published ones of each data set, and are treated as public.

    Attributes:
        full: the largest pixel value, for instance 255.
        mean: one number for each channel.
        std: one number for each channel.

    Example:
        >>> grey = Pixels(255, mean=(0.5,), std=(0.25,))
        >>> (255 / grey.full - grey.mean[0]) / grey.std[0]
        2.0
    """

    full: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with its official (or documented) split.

    Attributes:
        name: its name in `dpjax.data.DATASETS`.
        train: the private training examples, in memory or read on demand.
        test: the examples for evaluation.
        classes: the number of classes, or the number of labels that an example has at once.
        pixels: how stored images become float32; None if the examples are not images.
        vocabulary: the number of tokens, padding included; None if the examples are not tokens.

    Raises:
        ValueError: if an example has no label, or a label is not one of the classes.
        TypeError: if the examples are not numbers, or the labels are not integers.

    Example:
        >>> split = Split(np.zeros((4, 8), np.float32), np.array([0, 1, 0, 1], np.int32))
        >>> dataset = Dataset("toy", train=split, test=split, classes=2)
        >>> dataset.size, dataset.shape
        (4, (8,))
    """

    name: str
    train: Split | RandomAccess
    test: Split
    classes: int
    pixels: Pixels | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        """Checks that every example has a label, and every label is a class."""
        classes = _checks.integer("classes", self.classes, at_least=1)
        for part, split in (("train", self.train), ("test", self.test)):
            x, y = split if isinstance(split, Split) else _some(split)
            if len(x) != len(y):
                raise ValueError(f"{self.name}: {len(x)} {part} examples, {len(y)} labels")
            if x.dtype.kind not in "uif":
                raise TypeError(f"{self.name}: {part} examples of {x.dtype}: expected numbers")
            if not np.issubdtype(y.dtype, np.integer):
                raise TypeError(f"{self.name}: {part} labels of {y.dtype}: expected integers")
            if y.ndim == 2 and y.shape[1] != classes:
                raise ValueError(f"{self.name}: {y.shape[1]} {part} labels: expected {classes}")
            largest = classes - 1 if y.ndim == 1 else 1
            if len(y) and not (y.min() >= 0 and y.max() <= largest):
                raise ValueError(
                    f"{self.name}: {part} labels from {y.min()} to {y.max()}: expected 0 to "
                    f"{largest}"
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.train.x.shape[1:] if isinstance(self.train, Split) else self.train.shape

    @property
    def size(self) -> int:
        """N, the number of private examples."""
        return len(self.train.y) if isinstance(self.train, Split) else len(self.train)

    @property
    def examples(self) -> Split:
        """The private examples in memory; reads them if they are on demand."""
        if isinstance(self.train, Split):
            return self.train
        return self.train.__getitems__(np.arange(self.size))


def _some(rows: RandomAccess) -> Split:
    """Returns examples from all over the data, because reading all of them may take hours."""
    return rows.__getitems__(np.unique(np.linspace(0, len(rows) - 1, _CHECKED).astype(int)))
