"""What a data set is, once it is in memory."""

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
    """

    x: np.ndarray
    y: np.ndarray


class RandomAccess(Protocol):
    """Examples that are read when they are asked for, as `dpjax.data.Rows` does.

    Attributes:
        shape: of one example's inputs.
        dtype: of the inputs.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    def __len__(self) -> int:
        """Returns the number of examples."""

    def __getitems__(self, rows: Sequence[int] | np.ndarray) -> Split:
        """Returns some examples by their numbers, stacked."""


class Pixels(NamedTuple):
    """How a stored image becomes float32: ``(x / full - mean) / std``, per channel.

    The constants are the customary, published ones of each data set; they are taken as public.

    Attributes:
        full: the value of a full pixel, for instance 255.
        mean: one number for each channel.
        std: one number for each channel.
    """

    full: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with its official (or documented) split.

    Attributes:
        name: its name in `dpjax.data.DATASETS`.
        train: what is trained on, in memory or read on demand; private.
        test: what is evaluated on.
        classes: how many classes there are, or how many labels an example has at once.
        pixels: how stored images become float32; None for what is no image.
        vocabulary: how many tokens there are, with the padding; None for what has no tokens.
    """

    name: str
    train: Split | RandomAccess
    test: Split
    classes: int
    pixels: Pixels | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        """Checks that there is a label for every example, and a class for every label."""
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
        """The private examples in memory, read if they are not."""
        if isinstance(self.train, Split):
            return self.train
        return self.train.__getitems__(np.arange(self.size))


def _some(rows: RandomAccess) -> Split:
    """Returns examples from all over the data: reading all may take hours."""
    return rows.__getitems__(np.unique(np.linspace(0, len(rows) - 1, _CHECKED).astype(int)))
