"""Reads JPEG files into one array of images of one size. Pillow is an optional extra."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

__all__ = ["jpeg_images"]

_ROWS = 64  # images per task; a task per image would take more memory than the image


def jpeg_images(
    paths: Sequence[Path], height: int, width: int, *, crop: bool = False
) -> np.ndarray:
    """Decodes images and resizes them (bilinear); an image of the right size is not changed.

    The array is allocated once and filled in place, so that each thread holds at most one further
    decoded image.

    Args:
        paths: the JPEG files.
        height: rows of the result, in pixels.
        width: columns of the result.
        crop: whether to crop to the largest central box of that shape first; otherwise the whole
            image is stretched.

    Returns:
        uint8 (n, height, width, 3), red, green, blue.
    """
    out = np.empty((len(paths), height, width, 3), np.uint8)

    def fill(start: int) -> None:
        for row in range(start, min(start + _ROWS, len(paths))):
            out[row] = _decoded(paths[row], height, width, crop)

    # Pillow releases the interpreter lock while it decodes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(fill, range(0, len(paths), _ROWS)):
            pass
    return out


def _decoded(path: Path, height: int, width: int, crop: bool) -> np.ndarray:
    try:
        from PIL import Image  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("JPEG images need Pillow: pip install dpjax[images]") from error
    try:
        with Image.open(path, formats=("JPEG",)) as image:
            box = _middle(*image.size, width, height) if crop else (0, 0, *image.size)
            rgb = image.convert("RGB")
            resized = rgb.resize((width, height), Image.Resampling.BILINEAR, box)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: not a readable JPEG image ({error})") from error
    return np.asarray(resized)


def _middle(columns: int, rows: int, width: int, height: int) -> tuple[int, int, int, int]:
    """Returns the largest central box with the aspect ratio of `width` x `height`."""
    wide = min(columns, rows * width // height)
    high = min(rows, columns * height // width)
    left, top = (columns - wide) // 2, (rows - high) // 2
    return left, top, left + wide, top + high
