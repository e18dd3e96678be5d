"""Extracts the wanted files from an archive, and nothing that points outside it."""

import gzip
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

__all__ = ["unpack"]

_LARGEST_RATIO = 20
"""Texts compress to about a quarter; an archive that grows twentyfold is made to fill a disk."""


_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError)


class _Member(NamedTuple):
    name: str
    size: int
    regular: bool
    open: Callable[[], IO[bytes] | None]


def unpack(archive: Path, inside: str, wanted: Callable[[str], bool], into: Path) -> None:
    """Extracts the wanted files of a tar or zip archive into a folder.

    Args:
        archive: the file.
        inside: the folder in the archive to which paths are relative.
        wanted: returns whether to write the file with a relative path.
        into: the folder to write to.

    Raises:
        ValueError: if the archive is damaged, holds a path that leads out of it, has a link or a
            device among the wanted files, or unpacks to more than 20 times its size.
    """
    limit = _LARGEST_RATIO * archive.stat().st_size
    try:
        members = _zip_members if zipfile.is_zipfile(archive) else _tar_members
        for member in members(archive):
            limit -= member.size
            if limit < 0:
                raise ValueError(
                    f"{archive}: unpacks to more than {_LARGEST_RATIO} times its size, refused"
                )
            path = _safe(archive, member.name)
            if path.is_relative_to(inside) and wanted(path.relative_to(inside).as_posix()):
                _write(archive, member, into / path.relative_to(inside))
    except (*_DAMAGED, RuntimeError) as error:  # RuntimeError: encrypted or unknown compression
        raise ValueError(f"{archive}: damaged archive ({error})") from error


def _write(archive: Path, member: _Member, target: Path) -> None:
    source = member.open() if member.regular else None
    if source is None:
        raise ValueError(f"{archive}: {member.name!r} is not a plain file, refused")
    target.parent.mkdir(parents=True, exist_ok=True)
    with source, target.open("wb") as file:
        shutil.copyfileobj(source, file)


def _safe(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise ValueError(f"{archive}: {name!r} leads out of the archive, refused")
    return path


def _tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as file:
        for member in file:
            if not member.isdir():
                yield _Member(
                    member.name,
                    member.size,
                    member.isreg(),
                    lambda member=member: file.extractfile(member),  # type: ignore[misc]
                )


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            if not member.is_dir():
                # Zip stores links as files with their target as content; they stay plain files.
                yield _Member(
                    member.filename,
                    member.file_size,
                    True,
                    lambda member=member: file.open(member),  # type: ignore[misc]
                )
