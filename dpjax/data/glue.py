"""SST-2 and QNLI: the tab-separated files of GLUE."""

from collections.abc import Callable, Iterator
from pathlib import Path

from dpjax.data.base import Dataset
from dpjax.data.source import Archive, File, Source
from dpjax.data.tables import integer_field, tsv_rows
from dpjax.data.words import SEPARATOR, VOCABULARY, labelled_texts, word_ids

__all__ = ["QNLI", "QNLI_LENGTH", "SST2", "SST2_LENGTH"]

SST2_LENGTH = 64
QNLI_LENGTH = 128
_ANSWERS = ("entailment", "not_entailment")


def _read_sst2(source: Source, folder: Path) -> Dataset:
    return _dataset(source, folder, _sst2_rows, SST2_LENGTH)


def _read_qnli(source: Source, folder: Path) -> Dataset:
    return _dataset(source, folder, _qnli_rows, QNLI_LENGTH)


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


def _qnli_rows(path: Path) -> Iterator[tuple[int, list[int]]]:
    for number, (question, text, label) in tsv_rows(path, ("question", "sentence", "label")):
        if label not in _ANSWERS:
            raise ValueError(
                f"{path}: line {number} has the label {label!r}, expected {' or '.join(_ANSWERS)}"
            )
        yield _ANSWERS.index(label), [*word_ids(question), SEPARATOR, *word_ids(text)]


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
    read=_read_qnli,
    archive=Archive(
        "https://dl.fbaipublicfiles.com/glue/data/QNLIv2.zip",
        "sha256:e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
        "QNLI",
        10_627_589,
    ),
)
