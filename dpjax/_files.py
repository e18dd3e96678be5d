"""Files that survive a crash: written whole or not at all, and folders sealed by a manifest.

A folder is sealed when it has a manifest: the size and sha256 of every file in it, written last.
The manifest's last line is the sha256 of the line before it, so every byte in the folder is
covered. The manifest is plain JSON, so reading it executes nothing.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = [
    "MANIFEST",
    "Refused",
    "append",
    "check_files",
    "is_sealed",
    "one_disk_error",
    "read_manifest",
    "refuse_links",
    "remove_sealed",
    "seal",
    "sync",
    "write_atomically",
]

MANIFEST = "MANIFEST"

# Errors of a disk or of a user's limits; some libraries pass on only their text.
_DISK = ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "ENOTDIR", "EMFILE")


class Refused(ValueError):
    """A folder differs from what was sealed; the message is one clause that says how."""


@contextmanager
def one_disk_error(what: str) -> Iterator[None]:
    """Re-raises disk errors as an OSError whose message begins with `what`."""
    try:
        yield
    except Exception as error:
        code = error.errno if isinstance(error, OSError) else _code_in(str(error))
        if code is None:
            raise
        failure = OSError(f"{what}: {os.strerror(code)}; what was saved is intact")
        failure.errno = code
        raise failure from error


def _code_in(text: str) -> int | None:
    codes = (int(getattr(errno, name)) for name in _DISK)
    return next((code for code in codes if os.strerror(code) in text), None)


def write_atomically(file: Path, text: str) -> None:
    """Writes a file so that readers see either the old or the new content, even after a crash."""
    new = file.with_name(file.name + ".new")
    with one_disk_error(f"{file} was not written"):
        _write(new, "w", text)
        new.replace(file)
        sync(file.parent)  # a checkpoint must not reach the disk before the ledger it follows


def append(file: Path, text: str) -> None:
    """Appends to a file and flushes it to disk."""
    with one_disk_error(f"{file} was not written"):
        _write(file, "a", text)


def _write(file: Path, mode: str, text: str) -> None:
    with file.open(mode, encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def sync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_links(folder: Path) -> None:
    """Raises ValueError if a folder contains links: writing to it could write elsewhere."""
    for path in _below(folder):
        if path.is_symlink():
            raise ValueError(f"{path} is a link: expected plain files and folders in a run")


def seal(folder: Path, content: Mapping[str, object]) -> None:
    """Flushes the files of `folder` to disk, then writes its manifest atomically.

    Args:
        folder: a folder of plain files and folders.
        content: further entries of the manifest; plain data, without the key ``"files"``.
    """
    names = _files(folder)
    for name in names:
        sync(folder / name)
    for place, _, _ in os.walk(folder):
        sync(Path(place))
    sync(folder.parent)  # the folder's own name is stored there
    body = json.dumps({**content, "files": {name: _seen(folder / name) for name in names}}).encode()
    temporary = folder / f"{MANIFEST}.tmp"
    temporary.write_bytes(_signed(body))
    sync(temporary)
    temporary.rename(folder / MANIFEST)
    sync(folder)


def is_sealed(folder: Path) -> bool:
    """Returns whether `folder` is complete, that is, has a manifest; reads no file."""
    return os.path.lexists(folder / MANIFEST)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the content of the manifest, or raises `Refused`; does not check the files."""
    path = folder / MANIFEST
    if not stat.S_ISREG(path.lstat().st_mode):
        raise Refused(f"file {MANIFEST} is not a plain file")
    text = path.read_bytes()
    body = text.partition(b"\n")[0]
    if text != _signed(body):
        raise Refused(f"file {MANIFEST} is damaged: its checksum does not match")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        raise Refused(f"file {MANIFEST} is not in the format of dpjax")
    return content


def check_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Raises `Refused` unless `folder` holds exactly `files`, byte for byte.

    Args:
        folder: a folder with a manifest.
        files: each file's size and checksum, from the manifest.
    """
    present = [name for name in _files(folder) if name != MANIFEST]
    for name in sorted({*files, *present}):
        if name not in files:
            raise Refused(f"file {name} is not in the manifest")
        if name not in present:
            raise Refused(f"file {name} is missing")
        size = (folder / name).stat().st_size
        sealed = files[name].get("size") if isinstance(files[name], dict) else None
        if size != sealed:
            raise Refused(f"file {name} is damaged: {size} bytes, expected {sealed}")
        if _seen(folder / name) != files[name]:
            raise Refused(f"file {name} is damaged: its checksum does not match")


def remove_sealed(folder: Path) -> None:
    """Removes `folder`, manifest first, so that an interrupted removal leaves it incomplete."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder)


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))


def _files(folder: Path) -> list[str]:
    """Returns the sorted files below `folder`; raises `Refused` for links and devices."""
    found = []
    for path in _below(folder):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            found.append(path.relative_to(folder).as_posix())
        elif not stat.S_ISDIR(mode):
            raise Refused(f"{path.relative_to(folder)} is neither a plain file nor a folder")
    return sorted(found)


def _seen(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": file.tell(), "sha256": sha256}


def _signed(body: bytes) -> bytes:
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"
