"""The seal of a folder: the size and sha256 of every file in it, written as the last act.

A folder without its manifest is incomplete. The manifest's last line is the sha256 of the line
before it, so that every byte in the folder is covered. It holds plain JSON: reading it, or refusing
it, executes nothing.
"""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["MANIFEST", "Refused", "check_files", "is_sealed", "read", "remove", "seal", "sync"]

MANIFEST = "MANIFEST"


class Refused(ValueError):
    """A folder is not what was sealed; the message is one clause on what is wrong."""


def seal(folder: Path, content: Mapping[str, Any]) -> None:
    """Brings the files of `folder` to the disk, then writes its manifest, all or nothing.

    Args:
        folder: a folder of plain files and folders.
        content: what else the manifest holds; plain data, without the key ``"files"``.
    """
    names = _files(folder)
    for name in names:
        sync(folder / name)
    for place, _, _ in os.walk(folder):
        sync(Path(place))
    sync(folder.parent)  # which holds the folder's own name
    body = json.dumps({**content, "files": {name: _seen(folder / name) for name in names}}).encode()
    temporary = folder / f"{MANIFEST}.tmp"
    temporary.write_bytes(_signed(body))
    sync(temporary)
    temporary.rename(folder / MANIFEST)
    sync(folder)


def is_sealed(folder: Path) -> bool:
    """Says whether `folder` is complete: it has a manifest. Nothing is read."""
    return os.path.lexists(folder / MANIFEST)


def read(folder: Path) -> dict[str, Any]:
    """Returns the content of the manifest, or raises `Refused`; the files are not looked at."""
    path = folder / MANIFEST
    if not stat.S_ISREG(path.lstat().st_mode):
        raise Refused(f"file {MANIFEST} is no plain file")
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
    """Raises `Refused` unless the files in `folder` are `files`, all of them, byte for byte.

    Args:
        folder: a folder with a manifest.
        files: what the manifest says of each file.
    """
    present = [name for name in _files(folder) if name != MANIFEST]
    for name in sorted({*files, *present}):
        if name not in files:
            raise Refused(f"file {name} is a stranger's: the manifest does not know it")
        if name not in present:
            raise Refused(f"file {name} is missing")
        size = (folder / name).stat().st_size
        sealed = files[name].get("size") if isinstance(files[name], dict) else None
        if size != sealed:
            raise Refused(f"file {name} is damaged: {size} bytes, expected {sealed}")
        if _seen(folder / name) != files[name]:
            raise Refused(f"file {name} is damaged: its checksum does not match")


def remove(folder: Path) -> None:
    """Removes `folder`, its manifest first: when cut short, what is left counts as incomplete."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder)


def sync(path: Path) -> None:
    """Brings a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path) -> list[str]:
    """Returns the files below `folder`, sorted; refuses links and devices."""
    found = []
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
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
