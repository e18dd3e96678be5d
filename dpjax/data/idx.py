"""The idx format of MNIST: a magic number, the shape as big-endian integers, unsigned bytes."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np

__all__ = ["read_idx"]


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Reads unsigned bytes of a known shape, and never more, whatever the file unpacks to.

    Args:
        path: the file; the suffix ".gz" means that it is compressed.
        shape: the shape that the file must hold.

    Returns:
        uint8, of that shape.
    """
    try:
        with _opened(path) as file:
            _check_header(path, file.read(4 + 4 * len(shape)), shape)
            data = file.read(math.prod(shape) + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged gzip file ({error})") from error
    if len(data) != math.prod(shape):
        found = "more" if len(data) > math.prod(shape) else f"{len(data)}"
        raise ValueError(f"{path}: {found} bytes of data, expected {math.prod(shape)}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else path.open("rb"))


def _check_header(path: Path, header: bytes, shape: tuple[int, ...]) -> None:
    magic = bytes((0, 0, 0x08, len(shape)))
    if header[:4] != magic:
        raise ValueError(
            f"{path}: magic number {header[:4].hex() or 'missing'}, expected {magic.hex()} "
            f"(an idx file of unsigned bytes with {len(shape)} axes)"
        )
    if len(header) < 4 + 4 * len(shape):
        raise ValueError(f"{path}: ends inside its header")
    found = struct.unpack(f">{len(shape)}I", header[4:])
    if found != shape:
        raise ValueError(f"{path}: holds {_sizes(found)}, expected {_sizes(shape)}")


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
