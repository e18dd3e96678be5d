"""CIFAR-10 and CIFAR-100, in their binary version.

The Python version is not supported: it is a pickle, and reading a pickle runs the code in it.
"""

from pathlib import Path

import numpy as np

from dpjax.data.base import Dataset, Pixels, Split
from dpjax.data.labels import class_labels
from dpjax.data.source import Archive, File, Source

__all__ = ["CIFAR10", "CIFAR100"]

_IMAGE = 3 * 32 * 32
_PIXELS = {
    "cifar10": Pixels(255.0, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Pixels(255.0, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}


def _read(source: Source, folder: Path) -> Dataset:
    *train, test = (file.within(folder) for file in source.files if isinstance(file, File))
    # CIFAR-100 stores the coarse label before the fine one, which is the class.
    labels = 1 if source.name == "cifar10" else 2
    splits = [_batch(path, labels, source.classes) for path in train]
    return Dataset(
        source.name,
        Split(*(np.concatenate(parts) for parts in zip(*splits, strict=True))),
        _batch(test, labels, source.classes),
        source.classes,
        _PIXELS[source.name],
    )


def _batch(path: Path, labels: int, classes: int) -> Split:
    """Reads records of label bytes and a red, a green and a blue plane."""
    data = np.fromfile(path, np.uint8)
    if data.size == 0 or data.size % (labels + _IMAGE):
        raise ValueError(
            f"{path}: {data.size} bytes, expected a positive multiple of {labels + _IMAGE}"
        )
    records = data.reshape(-1, labels + _IMAGE)
    planes = records[:, labels:].reshape(-1, 3, 32, 32)
    y = class_labels(path, records[:, labels - 1], classes)
    return Split(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), y)


CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    folder="cifar-10",
    examples=(50_000, 10_000),
    classes=10,
    files=(
        File("data_batch_1.bin", "md5:5dd7e06a14cb22eb9f671a540d1b7c25", 30_730_000),
        File("data_batch_2.bin", "md5:5ea93a67294ea407fff1d09f752e9692", 30_730_000),
        File("data_batch_3.bin", "md5:942cd6a4bcdd0dd3c604fbe906cb4421", 30_730_000),
        File("data_batch_4.bin", "md5:ae636b3ba5c66a11e91e8cb52e771fcb", 30_730_000),
        File("data_batch_5.bin", "md5:53f37980c15c3d472c316c40844f3f0d", 30_730_000),
        File("test_batch.bin", "md5:803d5f7f4d78ea53de84dbe85f74fb6d", 30_730_000),
    ),
    notes="32 x 32 colour images, Krizhevsky; official split; binary version only.",
    read=_read,
    archive=Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        "cifar-10-batches-bin",
        170_052_171,
    ),
)

CIFAR100 = Source(
    name="cifar100",
    title="CIFAR-100",
    folder="cifar-100",
    examples=(50_000, 10_000),
    classes=100,
    files=(
        File("train.bin", "sha1:e207cd2e05b73b1393c74c7f5e7bea451d63e08e", 153_700_000),
        File("test.bin", "sha1:8fb6623e830365ff53cf14adec797474f5478006", 30_740_000),
    ),
    notes="32 x 32 colour images, Krizhevsky; fine labels; official split; binary version only.",
    read=_read,
    archive=Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        "cifar-100-binary",
        168_513_733,
    ),
)
