"""Downloads a data set's files from their public address, or from a mirror."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from dpjax import _checks
from dpjax.data.registry import data_directory, source_of
from dpjax.data.source import Archive, File, Folder, is_image
from dpjax.data.transfer import Progress, check_address, transfer
from dpjax.data.unpack import unpack
from dpjax.data.verify import checksum_of, status

__all__ = ["fetch"]


class _Transport(NamedTuple):
    """How files are downloaded, and into which folder."""

    folder: Path
    mirror: str | None
    timeout: float
    progress: Progress | None


def fetch(
    name: str,
    directory: str | os.PathLike[str] | None = None,
    mirror: str | None = None,
    timeout: float = 30.0,
    progress: Progress | None = None,
) -> list[Path]:
    """Downloads the files of a data set that are missing.

    The next call continues an interrupted transfer. A file is moved into place only after its
    checksum was verified; an archive is unpacked next to it and then removed. Existing files are
    never overwritten, and nothing is written outside the data directory.

    Args:
        name: a name in `DATASETS`.
        directory: as in `load`.
        mirror: an address to use in place of the public one; files have their own names there.
        timeout: seconds without an answer before giving up.
        progress: called with the file's name, the bytes received and the bytes expected.

    Returns:
        The new files and folders.

    Raises:
        ValueError: if the name is unknown, the data set has no public address, a file is not the
            official one, or its folder leads out of the data directory.
        OSError: if a transfer fails; the next call continues it.

    Example:
        >>> fetch("digits")  # it comes with the package
        []
    """
    source = source_of(name)
    timeout = _checks.positive("timeout", timeout)
    if mirror is not None:
        check_address("mirror", mirror)
    if source.files and not source.addresses:
        raise ValueError(f"{source.title} has no public address to fetch from: {source.notes}")
    root = data_directory(directory)
    transport = _Transport(root / (source.folder or ""), mirror, timeout, progress)
    missing = [entry for entry in source.files if _is_missing(entry, transport.folder)]
    if missing:
        _refuse_outside(transport.folder, root)
        transport.folder.mkdir(parents=True, exist_ok=True)
        if source.archive is not None:
            _bring_archive(source.archive, missing, transport)
        else:
            for entry in missing:
                _bring_file(entry, transport)
    return [transport.folder / entry.path for entry in missing]


def _is_missing(entry: File | Folder, folder: Path) -> bool:
    found = status(entry, folder)
    if not found.good and not found.missing:
        raise ValueError(
            f"{found.path}: {found.state} ({found.detail}); move it away to fetch it again"
        )
    return found.missing


def _refuse_outside(path: Path, root: Path) -> None:
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{path} leads out of the data directory {root}: nothing is written")


def _bring_file(entry: File | Folder, transport: _Transport) -> None:
    if isinstance(entry, File) and entry.url is not None:
        os.replace(
            _verified(entry.url, entry.checksum, entry.size, transport),
            transport.folder / entry.path,
        )


def _bring_archive(
    archive: Archive, missing: Sequence[File | Folder], transport: _Transport
) -> None:
    part = _verified(archive.url, archive.checksum, archive.size, transport)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=transport.folder) as beside:
        unpack(part, archive.inside, lambda path: _belongs(path, missing), Path(beside))
        for entry in missing:
            found = status(entry, Path(beside))
            if not found.good:
                raise ValueError(
                    f"{archive.url}: {entry.path} in it is {found.state} {found.detail}".rstrip()
                )
        for entry in missing:
            target = transport.folder / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(beside) / entry.path, target)
    part.unlink()


def _belongs(path: str, missing: Sequence[File | Folder]) -> bool:
    parent, _, name = path.rpartition("/")
    return any(
        entry.path == path if isinstance(entry, File) else entry.path == parent and is_image(name)
        for entry in missing
    )


def _verified(url: str, checksum: str | None, size: int | None, transport: _Transport) -> Path:
    """Returns a complete, verified file, still under its temporary name."""
    name = urlsplit(url).path.rpartition("/")[2]
    address = url if transport.mirror is None else f"{transport.mirror.rstrip('/')}/{name}"
    part = transport.folder / f"{name}.part"
    _refuse_outside(part, transport.folder)
    transfer(address, part, size, transport.timeout, transport.progress)
    found = checksum_of(part, checksum) if checksum is not None else None
    if found != checksum:
        part.unlink()
        raise ValueError(f"{address}: checksum {found}, expected {checksum}; it was removed")
    return part
