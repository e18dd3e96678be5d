"""JPEG files into one array of square images. Pillow is an optional extra."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

__all__ = ["square_images"]

_ROWS = 64  # What a thread does at a time: a task for each image would cost more memory than it.


def square_images(paths: Sequence[Path], size: int) -> np.ndarray:
    """Decodes images, takes the largest square in their middle and resizes it (bilinear).

    An image whose shorter side is `size` already is only cropped. The array is made once and
    filled in place, so that no more than one decoded image for each thread lies beside it.

    Args:
        paths: the JPEG files.
        size: the side of the result, in pixels.

    Returns:
        uint8 (n, size, size, 3), red, green, blue.
    """
    out = np.empty((len(paths), size, size, 3), np.uint8)

    def fill(start: int) -> None:
        for row in range(start, min(start + _ROWS, len(paths))):
            out[row] = _square(paths[row], size)

    # Pillow decodes outside of the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(fill, range(0, len(paths), _ROWS)):
            pass
    return out


def _square(path: Path, size: int) -> np.ndarray:
    try:
        from PIL import Image  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("JPEG images need Pillow: pip install dpjax[images]") from error
    try:
        with Image.open(path, formats=("JPEG",)) as image:
            side = min(image.size)
            left, top = ((length - side) // 2 for length in image.size)
            resized = image.convert("RGB").resize(
                (size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side)
            )
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: no readable JPEG image ({error})") from error
    return np.asarray(resized)
