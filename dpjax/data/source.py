"""Where a data set comes from: its official files, their checksums, sizes and addresses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from dpjax.data.base import Dataset

__all__ = ["Archive", "File", "Folder", "Source", "TextTokenizer"]


class TextTokenizer(Protocol):
    """Turns texts into rows of tokens: `dpjax.models.Tokenizer`, or hashed words.

    Attributes:
        vocabulary: how many tokens there are.
    """

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""

    def rows(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, length: int
    ) -> np.ndarray:
        """Returns texts, or pairs of texts, as int32 of shape (n, length)."""


@dataclass(frozen=True)
class File:
    """One official file.

    Args:
        path: where it lies in the data set's folder.
        checksum: as published, "md5:...", "sha1:..." or "sha256:..."; None if none is published.
        size: in bytes; None if not known.
        url: its own public address, if it has one.
        plain: the same file without compression, which is read instead where it is there.
    """

    path: str
    checksum: str | None = None
    size: int | None = None
    url: str | None = None
    plain: "File | None" = None

    @property
    def forms(self) -> tuple["File", ...]:
        """The file, and the forms in which it is accepted instead."""
        return (self,) if self.plain is None else (self, self.plain)

    def present(self, folder: Path) -> "File | None":
        """Returns the form that is there, or None."""
        return next((form for form in self.forms if (folder / form.path).is_file()), None)

    def within(self, folder: Path) -> Path:
        """Returns the path of the form that is there."""
        return folder / (self.present(folder) or self).path


@dataclass(frozen=True)
class Folder:
    """A folder of JPEG images, without checksums of their own.

    Args:
        path: where it lies in the data set's folder.
        count: how many images are in it.
    """

    path: str
    count: int

    def images(self, folder: Path) -> list[Path]:
        """Returns the images that are there, in the order of their names."""
        own = folder / self.path
        return sorted(path for path in own.iterdir() if is_image(path.name)) if own.is_dir() else []


@dataclass(frozen=True)
class Archive:
    """A tar or zip archive that holds all files of a data set.

    Args:
        url: its public address.
        checksum: as published.
        inside: the folder in the archive that holds the files.
        size: in bytes; None if not known.
    """

    url: str
    checksum: str
    inside: str
    size: int | None = None


@dataclass(frozen=True)
class Source:
    """One row of `dpjax.data.DATASETS`.

    Args:
        name: what `dpjax.data.load` takes.
        title: its name in print.
        folder: its folder in the data directory; None if it needs no files.
        examples: how many there are to train and to test; None where the files do not say.
        classes: how many classes there are.
        files: what is read.
        notes: licence, split, and what else is worth knowing.
        read: reads the files, which have been verified, from the folder. With `texts` it also
            takes a tokenizer and a length.
        archive: what brings all files, if there is a public one.
        texts: whether a tokenizer can be chosen.
    """

    name: str
    title: str
    folder: str | None
    examples: tuple[int | None, int]
    classes: int
    files: tuple[File | Folder, ...]
    notes: str
    read: Callable[..., Dataset]
    archive: Archive | None = None
    texts: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The public addresses from which all files can be had; empty if there is none."""
        if self.archive is not None:
            return (self.archive.url,)
        found = [entry.url for entry in self.files if isinstance(entry, File) and entry.url]
        return tuple(found) if len(found) == len(self.files) else ()


def is_image(name: str) -> bool:
    """Says whether a file name is that of a JPEG image, and no hidden file."""
    return name.lower().endswith((".jpg", ".jpeg")) and not name.startswith(".")
