"""A user's own data: a file of arrays or of columns, a function, or a source of any size."""

import csv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from dpjax._imports import imported
from dpjax.data.base import Dataset, Pixels, Split

__all__ = ["Rows", "from_function", "read_file"]

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_LABEL, _SPLIT = "label", "split"


class IndexedSource(Protocol):
    """A source that returns one example at a time."""

    def __len__(self) -> int:
        """Returns the number of examples."""
        ...

    def __getitem__(self, row: int, /) -> object:
        """Returns an example."""
        ...


class BatchedSource(Protocol):
    """A source that returns many examples at once."""

    def __len__(self) -> int:
        """Returns the number of examples."""
        ...

    def __getitems__(self, rows: Sequence[int], /) -> Sequence[object]:
        """Returns a list of examples."""
        ...


class Rows:
    """The examples of a source, read on demand, for data of any size.

    Batches are drawn by row, so the source must have a length and return any row at any time: a
    list, a Grain data source, a Hugging Face dataset, or a class of your own. A stream is refused:
    whether an example is in a batch would depend on how far the stream was read, which no sampling
    describes.

    Args:
        source: has ``__len__``, and either ``__getitems__(rows)``, which returns a list of
            examples, or ``__getitem__(row)``. An example is a mapping with `x` and `y`, or a pair.
        x: the name of the inputs in an example.
        y: the name of the label.

    Raises:
        TypeError: if the source is a stream.

    Example:
        >>> rows = Rows([(np.zeros(3, np.float32), 1), (np.ones(3, np.float32), 0)])
        >>> len(rows), rows.shape, rows.__getitems__([1]).y.tolist()
        (2, (3,), [0])
    """

    def __init__(self, source: IndexedSource | BatchedSource, x: str = "x", y: str = "y") -> None:
        """Reads the first example to learn its shape."""
        random = hasattr(source, "__getitems__") or hasattr(source, "__getitem__")
        if not hasattr(source, "__len__") or not random:
            raise TypeError(
                f"source = {type(source).__name__}: expected __len__ and __getitems__ or "
                "__getitem__. A stream cannot be sampled as the accounting says: every example "
                "must be drawn with the same chance at every step, whatever was read before"
            )
        self._source, self._names = source, (x, y)
        first = self.__getitems__([0])
        self.shape, self.dtype = first.x.shape[1:], first.x.dtype

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self._source)

    def __getitems__(self, rows: Sequence[int] | np.ndarray) -> Split:
        """Returns some examples, stacked."""
        numbers = [int(row) for row in rows]
        if hasattr(self._source, "__getitems__"):
            examples = self._source.__getitems__(numbers)
        else:
            examples = [self._source[row] for row in numbers]
        pairs = [self._pair(example) for example in examples]
        x, y = (np.stack([np.asarray(pair[i]) for pair in pairs]) for i in (0, 1))
        if not np.issubdtype(y.dtype, np.integer):
            raise TypeError(f"{self._names[1]}: labels of {y.dtype}: expected integers")
        if x.dtype == np.float64:
            x = x.astype(np.float32)
        return Split(x, y.astype(np.int32))

    def _pair(self, example: Any) -> Sequence[ArrayLike]:
        if isinstance(example, Mapping):
            for name in self._names:
                if name not in example:
                    raise ValueError(f"an example has {sorted(example)}: expected {name!r}")
            return example[self._names[0]], example[self._names[1]]
        x, y = example
        return x, y


def from_function(name: str) -> Dataset:
    """Returns the data set that a function without arguments, ``"module:function"``, returns.

    Args:
        name: the module and the function, which is also the data set's name.

    Raises:
        ValueError: if its module was not allowed with `dpjax.train.allow_import`.
        TypeError: if it does not return a `Dataset`.

    Example:
        >>> from_function("mine:cats")
        Traceback (most recent call last):
        ...
        ValueError: data.name = 'mine:cats': expected allow_import('mine') first, since a ...
    """
    dataset = imported("data.name", name)()
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"data.name = {name!r}: returned a {type(dataset).__name__}, expected a "
            "dpjax.data.Dataset"
        )
    return Dataset(
        name, dataset.train, dataset.test, dataset.classes, dataset.pixels, dataset.vocabulary
    )


def read_file(path: str | Path, name: str) -> Dataset:
    """Reads a data set from one file.

    ``.npz``: the arrays x_train, y_train, x_test and y_test; inputs float32, integers of tokens, or
    uint8 images (height, width, channels), which are scaled to 0..1. ``.csv`` and ``.parquet``: a
    column "label" of integers from 0, a column "split" with the words train and test, and numbers
    in all other columns.

    Args:
        path: the file.
        name: the data set's name in privacy statements.

    Returns:
        The data set; it has as many classes as the largest label says.

    Raises:
        ValueError: if the file is incomplete; names the file and what is missing.
        TypeError: if the labels are not integers.
        ImportError: if a ``.parquet`` file is read without pyarrow.

    Example:
        >>> import tempfile
        >>> x, y = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/own.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
        ...     dataset = read_file(f"{folder}/own.npz", "own")
        >>> dataset.size, dataset.shape, dataset.classes
        (4, (3,), 2)
    """
    path = Path(path)
    readers = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ValueError(f"data.path = {str(path)!r}: expected .npz, .csv or .parquet")
    x_train, y_train, x_test, y_test = readers[path.suffix](path)
    for part, labels in (("train", y_train), ("test", y_test)):
        if not len(labels):
            raise ValueError(f"{path}: no {part} examples; expected at least one")
        if not np.issubdtype(labels.dtype, np.integer):
            raise TypeError(f"{path}: {part} labels of {labels.dtype}: expected integers")
    classes = int(max(y_train.max(), y_test.max())) + 1
    splits = (Split(x_train, y_train.astype(np.int32)), Split(x_test, y_test.astype(np.int32)))
    return Dataset(name, *splits, classes, _pixels(x_train), _vocabulary(x_train, x_test))


def _npz(path: Path) -> list[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in _ARRAYS:
                if name not in file.files:
                    raise ValueError(f"no array {name}; expected {', '.join(_ARRAYS)}")
            arrays = [file[name] for name in _ARRAYS]
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path}: {error}") from error
    return [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]


def _csv(path: Path) -> list[np.ndarray]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        columns: Mapping[str, Sequence[str]] = dict(zip(header, zip(*rows, strict=True)))  # noqa: B905
    return _columns(path, columns)


def _parquet(path: Path) -> list[np.ndarray]:
    import pyarrow.parquet  # noqa: PLC0415 (an optional extra)

    table = pyarrow.parquet.read_table(path)
    return _columns(path, {name: table[name].to_pylist() for name in table.column_names})


def _columns(path: Path, columns: Mapping[str, Sequence[Any]]) -> list[np.ndarray]:
    for name in (_LABEL, _SPLIT):
        if name not in columns:
            raise ValueError(f"{path}: no column {name!r}; expected one beside the numbers")
    try:
        labels = np.asarray([int(text) for text in columns[_LABEL]], np.int32)
        inputs = [
            np.asarray(values, np.float32)
            for name, values in columns.items()
            if name not in (_LABEL, _SPLIT)
        ]
    except ValueError as error:
        raise ValueError(f"{path}: {error}; expected numbers") from error
    if not inputs:
        raise ValueError(f"{path}: no column beside {_LABEL!r} and {_SPLIT!r}; expected numbers")
    x, split = np.stack(inputs, axis=1), np.asarray(columns[_SPLIT])
    other = set(split.tolist()) - {"train", "test"}
    if other:
        raise ValueError(f"{path}: split {min(other)!r}: expected train or test")
    return [a[split == part] for part in ("train", "test") for a in (x, labels)]


def _pixels(x: np.ndarray) -> Pixels | None:
    if x.dtype != np.uint8:
        return None
    if x.ndim != 4:
        raise ValueError(f"x_train has shape {x.shape}: expected (n, height, width, channels)")
    return Pixels(255.0, (0.0,) * x.shape[3], (1.0,) * x.shape[3])


def _vocabulary(*inputs: np.ndarray) -> int | None:
    if not np.issubdtype(inputs[0].dtype, np.integer) or inputs[0].dtype == np.uint8:
        return None
    return int(max(x.max() for x in inputs)) + 1
