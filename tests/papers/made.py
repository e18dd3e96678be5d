"""Made data in the shapes of the papers' sets, for runs that take two steps."""

from pathlib import Path

import numpy as np

from dpjax.data import Dataset, Pixels, Split, source_of

# Shape of one example, classes, vocabulary.
SHAPES = {
    "mnist": ((28, 28, 1), 10, None),
    "fashion_mnist": ((28, 28, 1), 10, None),
    "cifar10": ((32, 32, 3), 10, None),
    "cifar100": ((32, 32, 3), 100, None),
    "svhn": ((32, 32, 3), 10, None),
    "imagenette": ((64, 64, 3), 10, None),
    "celeba_male_full": ((64, 52, 3), 2, None),
    "celeba_smiling_full": ((64, 52, 3), 2, None),
    "names": ((19,), 18, 58),
    "ag_news_subset": ((32,), 4, 1000),
    "qnli": ((16,), 2, 1000),
    "sst2": ((16,), 2, 1000),
    "mnli": ((16,), 3, 1000),
    "mnli_mm": ((16,), 3, 1000),
    "qqp": ((16,), 2, 1000),
    "cifar10_simclr": ((64,), 10, None),
    "celeba_attributes_full": ((64, 52, 3), 40, None),
}


def pretend_files(folder: Path, name: str) -> None:
    """Makes empty files where the official ones of a data set belong."""
    source = source_of(name)
    for entry in source.files:
        path = folder / (source.folder or "") / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def made(name: str, size: int = 12) -> Dataset:
    """Returns random examples in the shape of a data set."""
    shape, classes, vocabulary = SHAPES[name]
    rng = np.random.default_rng(0)

    def split(count: int) -> Split:
        several = name == "celeba_attributes_full"
        top, size = (2, (count, classes)) if several else (classes, (count,))
        y = rng.integers(0, top, size).astype(np.int32)
        if vocabulary is not None:
            return Split(rng.integers(1, vocabulary, (count, *shape)).astype(np.int32), y)
        if len(shape) == 1:
            return Split(rng.normal(size=(count, *shape)).astype(np.float32), y)
        return Split(rng.integers(0, 256, (count, *shape)).astype(np.uint8), y)

    channels = shape[-1] if len(shape) == 3 else 0
    pixels = Pixels(255.0, (0.5,) * channels, (0.25,) * channels) if channels else None
    return Dataset(name, split(size), split(6), classes, pixels, vocabulary)
