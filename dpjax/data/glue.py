"""SST-2, QNLI, MNLI and QQP: the tab-separated files of GLUE."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dpjax.data.base import Dataset, Split
from dpjax.data.labels import class_labels
from dpjax.data.source import Archive, File, Source, TextTokenizer
from dpjax.data.tables import integer_field, tsv_rows
from dpjax.data.words import HASHED_WORDS

__all__ = ["MNLI", "MNLI_MISMATCHED", "PAIR_LENGTH", "QNLI", "QQP", "SST2", "SST2_LENGTH"]

SST2_LENGTH = 64

PAIR_LENGTH = 128
"""The number of tokens of two texts together, including the separator."""


class _Texts(NamedTuple):
    labels: list[int]
    first: list[str]
    second: list[str] | None


def _read(
    columns: Sequence[str],
    labels: Sequence[str] | None,
    default_length: int,
    source: Source,
    folder: Path,
    tokenizer: TextTokenizer | None = None,
    length: int | None = None,
) -> Dataset:
    """Reads one or two texts and a label from each line.

    Args:
        columns: the header's names for the texts and, last, for the label.
        labels: the classes' names in the file; None for numbers.
        default_length: the number of tokens in a row.
        source: the data set.
        folder: the folder of its files.
        tokenizer: turns texts into tokens; None for hashed words.
        length: replaces `default_length`, unless None.
    """
    chosen = HASHED_WORDS if tokenizer is None else tokenizer
    rows = default_length if length is None else length
    splits = []
    for entry in source.files:
        path = folder / entry.path
        texts = _texts(path, columns, labels)
        tokens = chosen.rows(texts.first, texts.second, length=rows)
        splits.append(Split(tokens, class_labels(path, texts.labels, source.classes)))
    train, test = splits
    return Dataset(source.name, train, test, source.classes, vocabulary=chosen.vocabulary)


def _texts(path: Path, columns: Sequence[str], labels: Sequence[str] | None) -> _Texts:
    numbers, texts = [], []
    for number, (*fields, label) in tsv_rows(path, columns):
        if labels is None:
            numbers.append(integer_field(path, number, label))
        elif label in labels:
            numbers.append(labels.index(label))
        else:
            raise ValueError(
                f"{path}: line {number} has the label {label!r}, expected {' or '.join(labels)}"
            )
        texts.append(fields)
    second = [fields[1] for fields in texts] if len(columns) > 2 else None
    return _Texts(numbers, [fields[0] for fields in texts], second)


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
    "keeps the labels of its test part; at most 64 tokens.",
    read=partial(_read, ("sentence", "label"), None, SST2_LENGTH),
    texts=True,
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
    "tested on dev.tsv; at most 128 tokens of both.",
    read=partial(
        _read,
        ("question", "sentence", "label"),
        ("entailment", "not_entailment"),
        PAIR_LENGTH,
    ),
    texts=True,
    archive=Archive(
        "https://dl.fbaipublicfiles.com/glue/data/QNLIv2.zip",
        "sha256:e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
        "QNLI",
        10_627_589,
    ),
)

_MNLI_READ = partial(
    _read,
    ("sentence1", "sentence2", "gold_label"),
    ("entailment", "neutral", "contradiction"),
    PAIR_LENGTH,
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
    "GLUE; tested on dev_matched.tsv; at most 128 tokens of both.",
    read=_MNLI_READ,
    texts=True,
    archive=Archive(
        "https://dl.fbaipublicfiles.com/glue/data/MNLI.zip",
        "sha256:e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
        "MNLI",
        312_783_507,
    ),
)

MNLI_MISMATCHED = replace(
    MNLI,
    name="mnli_mm",
    title="MNLI mismatched",
    examples=(392_702, 9_832),
    files=(MNLI.files[0], File("dev_mismatched.tsv")),
    notes="MNLI, tested on dev_mismatched.tsv: texts of other kinds than those trained on.",
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
    "lines of its first version); tested on dev.tsv; at most 128 tokens of both.",
    read=partial(_read, ("question1", "question2", "is_duplicate"), ("0", "1"), PAIR_LENGTH),
    texts=True,
    archive=Archive(
        "https://dl.fbaipublicfiles.com/glue/data/QQP-clean.zip",
        "sha256:40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
        "QQP",
        41_696_084,
    ),
)
