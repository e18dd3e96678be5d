"""MNIST and Fashion-MNIST: four idx files each."""

from pathlib import Path

from dpjax.data.base import Dataset, Pixels, Split
from dpjax.data.idx import read_idx
from dpjax.data.labels import class_labels
from dpjax.data.source import File, Source

__all__ = ["FASHION_MNIST", "MNIST"]

_MEAN_AND_STD = {"mnist": (0.1307, 0.3081), "fashion_mnist": (0.2860, 0.3530)}


def _read(source: Source, folder: Path) -> Dataset:
    train_images, train_labels, test_images, test_labels = (
        file.within(folder) for file in source.files if isinstance(file, File)
    )
    train_size, test_size = source.examples
    mean, std = _MEAN_AND_STD[source.name]
    return Dataset(
        source.name,
        _split(train_images, train_labels, train_size or 0, source.classes),
        _split(test_images, test_labels, test_size, source.classes),
        source.classes,
        Pixels(255.0, (mean,), (std,)),
    )


def _split(images: Path, labels: Path, count: int, classes: int) -> Split:
    x = read_idx(images, (count, 28, 28))[..., None]
    return Split(x, class_labels(labels, read_idx(labels, (count,)), classes))


def _files(address: str, *rows: tuple[str, str, int, str, int]) -> tuple[File, ...]:
    return tuple(
        File(
            f"{name}.gz",
            f"md5:{packed}",
            packed_size,
            f"{address}{name}.gz",
            File(name, f"md5:{unpacked}", size),
        )
        for name, packed, packed_size, unpacked, size in rows
    )


_TRAIN_IMAGES, _TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST_IMAGES, _TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"

MNIST = Source(
    name="mnist",
    title="MNIST",
    folder="mnist",
    examples=(60_000, 10_000),
    classes=10,
    files=_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        *(
            (
                _TRAIN_IMAGES,
                *("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
                *("6bbc9ace898e44ae57da46a324031adb", 47_040_016),
            ),
            (
                _TRAIN_LABELS,
                *("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
                *("a25bea736e30d166cdddb491f175f624", 60_008),
            ),
            (
                _TEST_IMAGES,
                *("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
                *("2646ac647ad5339dbf082846283269ea", 7_840_016),
            ),
            (
                _TEST_LABELS,
                *("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
                *("27ae3e4e09519cfbb04c329615203637", 10_008),
            ),
        ),
    ),
    notes="28 x 28 grey digits, LeCun, Cortes and Burges; official split.",
    read=_read,
)

FASHION_MNIST = Source(
    name="fashion_mnist",
    title="Fashion-MNIST",
    folder="fashion-mnist",
    examples=(60_000, 10_000),
    classes=10,
    files=_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        *(
            (
                _TRAIN_IMAGES,
                *("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
                *("f4a8712d7a061bf5bd6d2ca38dc4d50a", 47_040_016),
            ),
            (
                _TRAIN_LABELS,
                *("25c81989df183df01b3e8a0aad5dffbe", 29_515),
                *("9018921c3c673c538a1fc5bad174d6f9", 60_008),
            ),
            (
                _TEST_IMAGES,
                *("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
                *("8181f5470baa50b63fa0f6fddb340f0a", 7_840_016),
            ),
            (
                _TEST_LABELS,
                *("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
                *("15d484375f8d13e6eb1aabb0c3f46965", 10_008),
            ),
        ),
    ),
    notes="28 x 28 grey articles of clothing, Zalando; MIT licence; official split.",
    read=_read,
)
