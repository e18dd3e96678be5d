"""AG News, topics of news items from the official csv files, and a subset with its own name."""

import csv
from collections.abc import Iterator
from pathlib import Path

from dpjax.data.base import Dataset, Split
from dpjax.data.source import File, Source
from dpjax.data.tables import integer_field, tsv_rows
from dpjax.data.words import VOCABULARY, labelled_texts, word_ids

__all__ = ["AG_NEWS", "AG_NEWS_SUBSET", "LENGTH"]

LENGTH = 64
"""The number of words to which news items are cut."""

_Rows = Iterator[tuple[int, str]]  # label, text


def _read(source: Source, folder: Path) -> Dataset:
    train, test = (folder / entry.path for entry in source.files)
    return _dataset(source, train, _titled(train), test, _titled(test))


def _read_subset(source: Source, folder: Path) -> Dataset:
    # The training part has no titles, so the test part is read without them too.
    train, test = (folder / entry.path for entry in source.files)
    described = ((label, text) for label, _, text in _csv_rows(test))
    return _dataset(source, train, _described(train), test, described)


def _dataset(
    source: Source, train: Path, train_rows: _Rows, test: Path, test_rows: _Rows
) -> Dataset:
    splits = (_split(train, train_rows, source.classes), _split(test, test_rows, source.classes))
    return Dataset(source.name, *splits, source.classes, vocabulary=VOCABULARY)


def _split(path: Path, rows: _Rows, classes: int) -> Split:
    # A backslash stands for a line break.
    tokens = ((label, word_ids(text.replace("\\", " "))) for label, text in rows)
    return labelled_texts(path, tokens, LENGTH, classes, first=1)


def _titled(path: Path) -> _Rows:
    return ((label, f"{title} {text}") for label, title, text in _csv_rows(path))


def _described(path: Path) -> _Rows:
    for number, (label, text) in tsv_rows(path, ("label", "description")):
        yield integer_field(path, number, label), text


def _csv_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yields label, title and description."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            for row in reader:
                if len(row) != 3:
                    raise ValueError(
                        f"{path}: line {reader.line_num} has {len(row)} fields, expected 3"
                    )
                yield integer_field(path, reader.line_num, row[0]), row[1], row[2]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path}: not valid csv after line {reader.line_num} ({error})"
            ) from error


_ADDRESS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
_TEST = File("test.csv", "md5:d52ea96a97a2d943681189a97654912d", 1_857_427, f"{_ADDRESS}test.csv")

AG_NEWS = Source(
    name="ag_news",
    title="AG News",
    folder="ag_news",
    examples=(120_000, 7_600),
    classes=4,
    files=(
        File("train.csv", "md5:b1a00f826fdfbd249f79597b59e1dc12", url=f"{_ADDRESS}train.csv"),
        _TEST,
    ),
    notes="Title and description, Zhang, Zhao and LeCun; non-commercial use; official split; "
    "hashed words, at most 64.",
    read=_read,
)

AG_NEWS_SUBSET = Source(
    name="ag_news_subset",
    title="AG News subset",
    folder="ag_news",
    examples=(None, 7_600),
    classes=4,
    files=(File("train_desc_partial.tsv"), _TEST),
    notes="Some training descriptions, in a tab-separated file with the columns label (1 to 4) "
    "and description; descriptions alone in the test part too. Not AG News: call results by "
    "this name.",
    read=_read_subset,
)
