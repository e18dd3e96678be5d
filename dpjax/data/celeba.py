"""CelebA: aligned faces, labelled with one of their forty attributes or with all of them."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpjax.data.base import Dataset, Pixels, Split
from dpjax.data.images import jpeg_images
from dpjax.data.source import File, Folder, Source
from dpjax.data.tables import text_lines

__all__ = ["CELEBA", "CELEBA_FULL", "SHAPE", "SIDE"]

SIDE = 64
"""The side of a small image: the central 178 x 178 pixels of 178 x 218, resized to 64 x 64."""

SHAPE = (218, 178)
"""Height and width of a full image."""

_FULL = "_full"  # the suffix of data sets at full size
_TRAIN, _TEST = "0", "2"  # 1 is the validation part, which the papers do not use.
# None for all of them at once.
_ATTRIBUTES = {"celeba_male": "Male", "celeba_smiling": "Smiling", "celeba_attributes": None}
_COUNT = 40


def _read(source: Source, folder: Path) -> Dataset:
    images, attributes, parts = (folder / entry.path for entry in source.files)
    part_of = dict(_parts(parts))
    labels = dict(_labels(attributes, _ATTRIBUTES[source.name.removesuffix(_FULL)]))
    small = not source.name.endswith(_FULL)
    height, width = (SIDE, SIDE) if small else SHAPE
    if part_of.keys() != labels.keys():
        raise ValueError(f"{parts}: expected the same images as in {attributes}")

    def split(wanted: str) -> Split:
        names = [name for name, part in part_of.items() if part == wanted]
        x = jpeg_images([images / name for name in names], height, width, crop=small)
        return Split(x, np.asarray([labels[name] for name in names], np.int32))

    half = (0.5, 0.5, 0.5)
    return Dataset(
        source.name, split(_TRAIN), split(_TEST), source.classes, Pixels(255.0, half, half)
    )


def _parts(path: Path) -> Iterator[tuple[str, str]]:
    """Yields each image's name and part, from lines like "000001.jpg 0"."""
    for number, line in text_lines(path):
        fields = line.split()
        if len(fields) != 2 or fields[1] not in ("0", "1", "2"):
            raise ValueError(f"{path}: line {number} is not an image and its part, 0, 1 or 2")
        yield _image_name(path, number, fields[0]), fields[1]


def _labels(path: Path, attribute: str | None) -> Iterator[tuple[str, int | list[int]]]:
    """Yields each image's name and the attribute, 1 or 0; without an attribute, a list of all.

    The first line of the file is the number of images, the second the names of the attributes.
    """
    lines = text_lines(path)
    next(lines, None)
    _, header = next(lines, (2, ""))
    names = header.split()
    if attribute is not None and attribute not in names:
        raise ValueError(f"{path}: line 2 does not name the attribute {attribute}")
    if attribute is None and len(names) != _COUNT:
        raise ValueError(f"{path}: line 2 names {len(names)} attributes, expected {_COUNT}")
    wanted = names if attribute is None else [attribute]
    columns = [names.index(name) + 1 for name in wanted]
    for number, line in lines:
        fields = line.split()
        own = [fields[column] for column in columns if column < len(fields)]
        if len(fields) != len(names) + 1 or not set(own) <= {"-1", "1"}:
            raise ValueError(
                f"{path}: line {number} is not an image and {len(names)} attributes, -1 or 1"
            )
        values = [int(value == "1") for value in own]
        yield _image_name(path, number, fields[0]), values if attribute is None else values[0]


def _image_name(path: Path, number: int, name: str) -> str:
    # A name in the list must not point elsewhere on the disk.
    if not re.fullmatch(r"\d{6}\.jpg", name):
        raise ValueError(f"{path}: line {number} names {name!r}, expected six digits and .jpg")
    return name


def _source(name: str, full: bool) -> Source:
    size = "178 x 218, as they are: 21 GB in memory" if full else "the middle square, at 64 x 64"
    return Source(
        name=name + (_FULL if full else ""),
        title=f"CelebA [{_ATTRIBUTES[name] or 'all attributes'}]" + (", full size" if full else ""),
        folder="celeba",
        examples=(162_770, 19_962),
        classes=_COUNT if _ATTRIBUTES[name] is None else 2,
        files=(
            Folder("img_align_celeba", 202_599),
            File("list_attr_celeba.txt", "md5:75e246fa4810816ffd6ee81facbd244c", 26_721_026),
            File("list_eval_partition.txt", "md5:d32c9cbf5e040fd4025c592c306e6668", 2_836_386),
        ),
        notes="Faces, Liu et al.; non-commercial research, on conditions that you accept at "
        "mmlab.ie.cuhk.edu.hk/projects/CelebA.html; official split without its validation part; "
        f"{size}. Needs Pillow (dpjax[images]).",
        read=_read,
    )


CELEBA, CELEBA_FULL = (tuple(_source(name, full) for name in _ATTRIBUTES) for full in (False, True))
