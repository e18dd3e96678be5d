"""Handwritten digits that come with the package: 8 x 8 images, the same as scikit-learn's."""

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from dpjax.data.base import Dataset, Pixels, Split
from dpjax.data.source import Source

__all__ = ["DIGITS"]


def _read(source: Source, folder: Path) -> Dataset:
    del folder
    with as_file(files("dpjax.data") / "digits.npz") as path, np.load(path) as stored:
        x, y = stored["x"], stored["y"].astype(np.int32)
    count = source.examples[0]
    return Dataset(
        source.name,
        Split(x[:count], y[:count]),
        Split(x[count:], y[count:]),
        source.classes,
        Pixels(16.0, (0.0,), (1.0,)),
    )


DIGITS = Source(
    name="digits",
    title="Digits (embedded)",
    folder=None,
    examples=(1_437, 360),
    classes=10,
    files=(),
    notes="8 x 8 grey digits, Alpaydin and Kaynak, UCI; CC BY 4.0; the first 1,437 train.",
    read=_read,
)
