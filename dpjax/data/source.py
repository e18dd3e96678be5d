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
        vocabulary: the number of tokens.
    """

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""

    def rows(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, length: int
    ) -> np.ndarray:
        """Returns texts, or pairs of texts, as int32 of shape (n, length)."""


@dataclass(frozen=True)
class File:
    """One official file.

    Args:
        path: its path in the data set's folder.
        checksum: the published one, "md5:...", "sha1:..." or "sha256:..."; None if there is none.
        size: the size in bytes; None if not known.
        url: its own public address, if it has one.
        plain: the same file uncompressed, which is read instead if it is present.
    """

    path: str
    checksum: str | None = None
    size: int | None = None
    url: str | None = None
    plain: "File | None" = None

    @property
    def forms(self) -> tuple["File", ...]:
        """The file, and the forms that are accepted in its place."""
        return (self,) if self.plain is None else (self, self.plain)

    def present(self, folder: Path) -> "File | None":
        """Returns the form that is present, or None.

        Args:
            folder: the data set's folder.
        """
        return next((form for form in self.forms if (folder / form.path).is_file()), None)

    def within(self, folder: Path) -> Path:
        """Returns the path of the form that is present.

        Args:
            folder: the data set's folder.
        """
        return folder / (self.present(folder) or self).path


@dataclass(frozen=True)
class Folder:
    """A folder of JPEG images that have no checksums.

    Args:
        path: its path in the data set's folder.
        count: the number of images in it.
    """

    path: str
    count: int

    def images(self, folder: Path) -> list[Path]:
        """Returns the images that are present, sorted by name.

        Args:
            folder: the data set's folder.
        """
        own = folder / self.path
        return sorted(path for path in own.iterdir() if is_image(path.name)) if own.is_dir() else []


@dataclass(frozen=True)
class Archive:
    """A tar or zip archive that holds all files of a data set.

    Args:
        url: its public address.
        checksum: the published one.
        inside: the folder in the archive that holds the files.
        size: the size in bytes; None if not known.
    """

    url: str
    checksum: str
    inside: str
    size: int | None = None


@dataclass(frozen=True)
class Source:
    """One row of `dpjax.data.DATASETS`.

    Args:
        name: the name that `dpjax.data.load` takes.
        title: its name in print.
        folder: its folder in the data directory; None if it needs no files.
        examples: the numbers of training and test examples; None if not known in advance.
        classes: the number of classes.
        files: the files that are read.
        notes: licence, split, and anything else worth knowing.
        read: reads the verified files from the folder. With `texts` it also takes a tokenizer and
            a length.
        archive: a public archive of all files, if there is one.
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
        """The public addresses of all files; empty if there is none."""
        if self.archive is not None:
            return (self.archive.url,)
        found = [entry.url for entry in self.files if isinstance(entry, File) and entry.url]
        return tuple(found) if len(found) == len(self.files) else ()


def is_image(name: str) -> bool:
    """Returns whether a file name is that of a JPEG image, and not of a hidden file."""
    return name.lower().endswith((".jpg", ".jpeg")) and not name.startswith(".")
