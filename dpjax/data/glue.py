"""SST-2, QNLI, MNLI and QQP: the tab-separated files of GLUE."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from dpjax.data.base import Dataset
from dpjax.data.source import Archive, File, Source
from dpjax.data.tables import integer_field, tsv_rows
from dpjax.data.words import SEPARATOR, VOCABULARY, labelled_texts, word_ids

__all__ = ["MNLI", "PAIR_LENGTH", "QNLI", "QQP", "SST2", "SST2_LENGTH"]

SST2_LENGTH = 64

PAIR_LENGTH = 128
"""How many words two texts have together, the separator among them."""


def _read_sst2(source: Source, folder: Path) -> Dataset:
    return _dataset(source, folder, _sst2_rows, SST2_LENGTH)


def _read_pairs(
    columns: Sequence[str], labels: Sequence[str], source: Source, folder: Path
) -> Dataset:
    rows = partial(_pair_rows, columns=columns, labels=labels)
    return _dataset(source, folder, rows, PAIR_LENGTH)


def _dataset(
    source: Source,
    folder: Path,
    rows: Callable[[Path], Iterator[tuple[int, list[int]]]],
    length: int,
) -> Dataset:
    train, test = (
        labelled_texts(path, rows(path), length, source.classes)
        for path in (folder / entry.path for entry in source.files)
    )
    return Dataset(source.name, train, test, source.classes, vocabulary=VOCABULARY)


def _sst2_rows(path: Path) -> Iterator[tuple[int, list[int]]]:
    for number, (text, label) in tsv_rows(path, ("sentence", "label")):
        yield integer_field(path, number, label), word_ids(text)


def _pair_rows(
    path: Path, columns: Sequence[str], labels: Sequence[str]
) -> Iterator[tuple[int, list[int]]]:
    """Yields both texts of a line as one; a label is a class by its place among `labels`."""
    for number, (first, second, label) in tsv_rows(path, columns):
        if label not in labels:
            raise ValueError(
                f"{path}: line {number} has the label {label!r}, expected {' or '.join(labels)}"
            )
        yield labels.index(label), [*word_ids(first), SEPARATOR, *word_ids(second)]


SST2 = Source(
    name="sst2",
    title="SST-2",
    folder="sst2",
    examples=(67_349, 872),
    classes=2,
    files=(
        File("train.tsv", "md5:da409a0a939379ed32a470bc0f7fe99a", 3_806_081),
        File("dev.tsv", "md5:268856b487b2a31a28c0a93daaff7288", 94_931),
    ),
    notes="Sentences of film reviews, Socher et al., as in GLUE; tested on dev.tsv, since GLUE "
    "keeps the labels of its test part; hashed words, at most 64.",
    read=_read_sst2,
    archive=Archive(
        "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
        "sha256:d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
        "SST-2",
        7_439_277,
    ),
)

QNLI = Source(
    name="qnli",
    title="QNLI",
    folder="qnli",
    examples=(104_743, 5_463),
    classes=2,
    files=(
        File("train.tsv", "md5:5e6063f407b08d1f7c7074d049ace94a"),
        File("dev.tsv", "md5:1e81e211959605f144ba6c0ad7dc948b"),
    ),
    notes="Questions with sentences that answer them (0) or not (1), as in GLUE (second version); "
    "tested on dev.tsv; hashed words of both with a separator, at most 128.",
    read=partial(_read_pairs, ("question", "sentence", "label"), ("entailment", "not_entailment")),
    archive=Archive(
        "https://dl.fbaipublicfiles.com/glue/data/QNLIv2.zip",
        "sha256:e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
        "QNLI",
        10_627_589,
    ),
)

MNLI = Source(
    name="mnli",
    title="MNLI",
    folder="mnli",
    examples=(392_702, 9_815),
    classes=3,
    files=(
        File("train.tsv", "md5:220192295e23b6705f3545168272c740"),
        File("dev_matched.tsv", "md5:c3fa2817007f4cdf1a03663611a8ad23"),
    ),
    notes="Sentences that follow (0), may be true (1) or cannot be (2), Williams et al., as in "
    "GLUE; tested on dev_matched.tsv; hashed words of both with a separator, at most 128.",
    read=partial(
        _read_pairs,
        ("sentence1", "sentence2", "gold_label"),
        ("entailment", "neutral", "contradiction"),
    ),
    archive=Archive(
        "https://dl.fbaipublicfiles.com/glue/data/MNLI.zip",
        "sha256:e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
        "MNLI",
        312_783_507,
    ),
)

QQP = Source(
    name="qqp",
    title="QQP",
    folder="qqp",
    examples=(363_846, 40_430),
    classes=2,
    files=(
        File("train.tsv", "md5:e003db73d277d38bbd83a2ef15beb442"),
        File("dev.tsv", "md5:cff6a448d1580132367c22fc449ec214"),
    ),
    notes="Questions of Quora that ask the same (1) or not (0), as in GLUE (without the broken "
    "lines of its first version); tested on dev.tsv; hashed words of both with a separator, at "
    "most 128.",
    read=partial(_read_pairs, ("question1", "question2", "is_duplicate"), ("0", "1")),
    archive=Archive(
        "https://dl.fbaipublicfiles.com/glue/data/QQP-clean.zip",
        "sha256:40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
        "QQP",
        41_696_084,
    ),
)
