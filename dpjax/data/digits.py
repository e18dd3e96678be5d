"""The digits of scikit-learn: 8 x 8 images that need no files."""

from pathlib import Path

import numpy as np

from dpjax.data.base import Dataset, Pixels, Split
from dpjax.data.source import Source

__all__ = ["DIGITS"]


def _read(source: Source, folder: Path) -> Dataset:
    del folder
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("the digits need scikit-learn: pip install dpjax[run]") from error
    images, labels = load_digits(return_X_y=True)
    x, y = images.astype(np.uint8).reshape(-1, 8, 8, 1), labels.astype(np.int32)
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
    title="Digits (scikit-learn)",
    folder=None,
    examples=(1_437, 360),
    classes=10,
    files=(),
    notes="8 x 8 grey digits, Alpaydin and Kaynak, UCI; CC BY 4.0; the first 1,437 train. Needs "
    "scikit-learn (dpjax[run]).",
    read=_read,
)
