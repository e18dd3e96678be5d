"""Arrays on a disk through Orbax, and what the disk may say to it in one sentence."""

import errno
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

from dpjax.train.manifest import Refused

__all__ = ["one_sentence", "read_arrays", "reserve", "size", "write_arrays"]

# What a disk or a user's limits may say; Orbax passes it on in words only.
_DISK = ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "ENOTDIR", "EMFILE")


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes `arrays` into the new folder `path`; none at all, which Orbax refuses, make none."""
    if arrays:
        with _orbax() as orbax:
            orbax.save(path, args=ocp.args.StandardSave(dict(arrays)))


def read_arrays(path: Path, like: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Returns the arrays that `write_arrays` wrote, by names and types as in `like`."""
    if not like:
        return {}
    try:
        with _orbax() as orbax:
            return orbax.restore(path, args=ocp.args.StandardRestore(dict(like)))
    except Exception as error:  # Orbax has no family of errors for what it cannot read
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refused(f"Orbax cannot read folder {path.name}: {line}") from error


def size(arrays: Mapping[str, np.ndarray]) -> int:
    """Returns the bytes that `arrays` take at most, with a margin for Orbax's own files."""
    return sum(array.nbytes for array in arrays.values()) + 2**10 * len(arrays) + 2**17


def reserve(path: Path, size: int) -> None:
    """Meets a full disk here: in the midst of Orbax each of its threads would complain.

    Args:
        path: a file to take up the room, and give it back.
        size: the bytes needed.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
    path.unlink()


@contextmanager
def one_sentence(what: str) -> Iterator[None]:
    """Turns what a disk may say, to Python or to Orbax, into an OSError of one sentence."""
    try:
        yield
    except Exception as error:
        code = error.errno if isinstance(error, OSError) else _errno(str(error))
        if code is None:
            raise
        failure = OSError(f"{what}: {os.strerror(code)}; the complete ones are intact")
        failure.errno = code
        raise failure from error


def _errno(text: str) -> int | None:
    codes = (int(getattr(errno, name)) for name in _DISK)
    return next((code for code in codes if os.strerror(code) in text), None)


@contextmanager
def _orbax() -> Iterator[ocp.Checkpointer]:
    """Gives a checkpointer that works in the foreground and keeps its log to itself."""
    log = logging.getLogger("absl")
    log.addFilter(_mute)
    try:
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as orbax:
            yield orbax
    finally:
        log.removeFilter(_mute)


def _mute(record: logging.LogRecord) -> bool:
    del record
    return False
