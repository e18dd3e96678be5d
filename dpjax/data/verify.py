"""Compares files with what is published about them."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from dpjax.data.source import File, Folder

__all__ = ["Status", "checksum_of", "status"]

_OK = "ok"
_UNPUBLISHED = "no published checksum"
_MISSING = "missing"


class Status(NamedTuple):
    """The state of a file.

    Attributes:
        path: its actual or expected location.
        state: "ok", "no published checksum", "missing", "wrong size", "wrong checksum" or
            "wrong count".
        detail: what was found and what was expected; empty if the file is fine.
    """

    path: Path
    state: str
    detail: str = ""

    @property
    def good(self) -> bool:
        """Whether the file is present and passes every available check."""
        return self.state in (_OK, _UNPUBLISHED)

    @property
    def missing(self) -> bool:
        """Whether the file is missing."""
        return self.state == _MISSING


def status(entry: File | Folder, folder: Path) -> Status:
    """Checks one file, or one folder of images.

    Args:
        entry: the expected file or folder.
        folder: the data set's folder.

    Returns:
        The state found.

    Example:
        >>> status(File("train.gz", size=9912422), Path("absent")).state
        'missing'
    """
    if isinstance(entry, Folder):
        return _folder_status(entry, folder)
    form = entry.present(folder)
    if form is None:
        return Status(folder / entry.path, _MISSING)
    path = folder / form.path
    size = path.stat().st_size
    if form.size is not None and size != form.size:
        return Status(path, "wrong size", f"{size} bytes, expected {form.size}")
    if form.checksum is None:
        return Status(path, _UNPUBLISHED)
    found = checksum_of(path, form.checksum)
    if found != form.checksum:
        return Status(path, "wrong checksum", f"{found}, expected {form.checksum}")
    return Status(path, _OK)


def checksum_of(path: Path, like: str) -> str:
    """Returns a file's checksum with the algorithm of another checksum, such as "md5:...".

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     checksum_of(Path(file.name), "md5:...")
    'md5:d41d8cd98f00b204e9800998ecf8427e'
    """
    algorithm = like.partition(":")[0]
    with path.open("rb") as file:
        # The published checksums are old; they guard against damage, not against forgery.
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def _folder_status(entry: Folder, folder: Path) -> Status:
    path = folder / entry.path
    found = len(entry.images(folder))
    if not found:
        return Status(path, _MISSING)
    if found != entry.count:
        return Status(path, "wrong count", f"{found} JPEG images, expected {entry.count}")
    return Status(path, _UNPUBLISHED)
