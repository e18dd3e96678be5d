"""Loads a data set by name; verifies its files first and counts its examples afterwards."""

import os
from collections.abc import Sequence
from pathlib import Path

from dpjax.data.base import Dataset
from dpjax.data.registry import data_directory, source_of
from dpjax.data.source import File, Source, TextTokenizer
from dpjax.data.verify import Status, status

__all__ = ["load"]


def load(
    name: str,
    directory: str | os.PathLike[str] | None = None,
    tokenizer: TextTokenizer | None = None,
    length: int | None = None,
) -> Dataset:
    """Loads a data set from its official files.

    Args:
        name: a name in `DATASETS`.
        directory: the folder that holds one folder per data set; None means the environment
            variable DPJAX_DATA or, if it is not set, ``~/.cache/dpjax``.
        tokenizer: turns the texts of GLUE into tokens, such as a pre-trained network's own
            `dpjax.models.Tokenizer`; None for hashed words.
        length: the number of tokens in an example of GLUE; None for the data set's default.

    Returns:
        The data set, in memory.

    Raises:
        FileNotFoundError: if a file is missing; the message says which, where it belongs, and how
            to get it.
        ValueError: if the name is unknown, or a file is not the official one.
        ImportError: if the data set needs an optional extra.

    Example:
        >>> digits = load("digits")
        >>> digits.train.x.shape, digits.shape, digits.classes
        ((1437, 8, 8, 1), (8, 8, 1), 10)
    """
    source = source_of(name)
    folder = data_directory(directory) / (source.folder or "")
    if source.files:
        _check_files(source, folder, directory)
    if source.texts:
        dataset = source.read(source, folder, tokenizer, length)
    elif tokenizer is not None or length is not None:
        raise ValueError(f"tokenizer and length: expected None, {name} takes neither")
    else:
        dataset = source.read(source, folder)
    _check_counts(source, dataset, folder)
    return dataset


def _check_files(source: Source, folder: Path, directory: str | os.PathLike[str] | None) -> None:
    found = []
    for entry in source.files:
        one = status(entry, folder)
        if not one.good and not one.missing:
            raise ValueError(f"{one.path}: {one.state} ({one.detail})")
        found.append(one)
    missing = [one for one in found if one.missing]
    if missing:
        raise FileNotFoundError(_what_to_put_where(source, folder, missing, directory))


def _what_to_put_where(
    source: Source,
    folder: Path,
    missing: Sequence[Status],
    directory: str | os.PathLike[str] | None,
) -> str:
    first = missing[0].path.relative_to(folder).as_posix()
    entry = next(entry for entry in source.files if entry.path == first)
    plain = entry.plain if isinstance(entry, File) else None
    either = f" (or {plain.path})" if plain is not None else ""
    what = f"{first}{either} is" if len(missing) == 1 else f"{first}{either} and others are"
    sentence = f"{source.title}: {what} missing; put what is missing into {folder}"
    if not source.addresses:
        return f"{sentence} ({source.notes})"
    where = "" if directory is None else f", {os.fspath(directory)!r}"
    return f"{sentence}, or call dpjax.data.fetch({source.name!r}{where}), which downloads it"


def _check_counts(source: Source, dataset: Dataset, folder: Path) -> None:
    for part, split, expected in zip(
        ("train", "test"), (dataset.examples, dataset.test), source.examples, strict=True
    ):
        if len(split.x) != len(split.y) or not len(split.y):
            raise ValueError(f"{folder}: {len(split.x)} {part} examples, {len(split.y)} labels")
        if expected is not None and len(split.y) != expected:
            raise ValueError(f"{folder}: {len(split.y)} {part} examples, expected {expected}")
