"""Imagenette: folders of JPEG images, one for each of ten classes of ImageNet."""

from pathlib import Path

import numpy as np

from dpjax.data.base import Dataset, Pixels, Split
from dpjax.data.images import jpeg_images
from dpjax.data.source import Archive, Folder, Source

__all__ = ["IMAGENETTE", "SIDE"]

SIDE = 160
"""The side of an image; whole images are stretched to it, as in Klause et al.'s program."""

# WordNet id, training images, validation images.
_CLASSES = (
    ("n01440764", 963, 387),  # tench
    ("n02102040", 955, 395),  # English springer
    ("n02979186", 993, 357),  # cassette player
    ("n03000684", 858, 386),  # chain saw
    ("n03028079", 941, 409),  # church
    ("n03394916", 956, 394),  # French horn
    ("n03417042", 961, 389),  # garbage truck
    ("n03425413", 931, 419),  # gas pump
    ("n03445777", 951, 399),  # golf ball
    ("n03888257", 960, 390),  # parachute
)


def _read(source: Source, folder: Path) -> Dataset:
    return Dataset(
        source.name,
        _split(source, folder, "train"),
        _split(source, folder, "val"),
        source.classes,
        Pixels(255.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    )


def _split(source: Source, folder: Path, part: str) -> Split:
    paths, labels = [], []
    own = [f for f in source.files if isinstance(f, Folder) and f.path.startswith(f"{part}/")]
    for label, entry in enumerate(own):
        found = entry.images(folder)
        paths += found
        labels += [label] * len(found)
    return Split(jpeg_images(paths, SIDE, SIDE), np.asarray(labels, np.int32))


IMAGENETTE = Source(
    name="imagenette",
    title="Imagenette (160 px)",
    folder="imagenette",
    examples=(9_469, 3_925),
    classes=10,
    files=(
        *(Folder(f"train/{name}", train) for name, train, _ in _CLASSES),
        *(Folder(f"val/{name}", val) for name, _, val in _CLASSES),
    ),
    notes="Ten classes of ImageNet, fast.ai, second version; the official validation images are "
    "the test images; stretched to 160 x 160. Needs Pillow (dpjax[images]).",
    read=_read,
    archive=Archive(
        "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz",
        "sha256:88daccb09b6fce93f45e6c09ddeb269cce705549e6bff322092a2a5a11489863",
        "imagenette2-160",
        98_948_031,
    ),
)
