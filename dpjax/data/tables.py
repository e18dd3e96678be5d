"""Lines and tab-separated tables of text; every error names the line."""

from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["integer_field", "text_lines", "tsv_rows"]


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the non-empty lines of a UTF-8 file, each with its number, from 1.

    Only a line feed ends a line: texts hold other characters that Python treats as line ends.
    """
    with path.open(encoding="utf-8", newline="\n") as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 text ({error.reason})") from error


def tsv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields the named columns of a table with a header; quotes are ordinary characters.

    Args:
        path: the file.
        columns: the wanted columns, by their names in the header.

    Returns:
        The number of each line, and its fields in the order of `columns`.
    """
    lines = text_lines(path)
    _, first = next(lines, (1, ""))
    header = first.split("\t")
    missing = [name for name in columns if name not in header]
    if missing:
        raise ValueError(f"{path}: its first line names no column {missing[0]!r}")
    places = [header.index(name) for name in columns]
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != len(header):
            raise ValueError(
                f"{path}: line {number} has {len(fields)} fields, expected {len(header)}"
            )
        yield number, [fields[place] for place in places]


def integer_field(path: Path, number: int, text: str) -> int:
    """Returns a field as an integer."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{path}: line {number} has the label {text!r}, expected an integer")
    return int(text)
