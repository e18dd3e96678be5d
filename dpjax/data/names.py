"""NAMES: surnames by language, in 18 text files with one name per line."""

import string
import unicodedata
import zlib
from pathlib import Path

import numpy as np

from dpjax.data.base import Dataset, Split
from dpjax.data.source import Archive, File, Source
from dpjax.data.tables import text_lines
from dpjax.data.words import padded

__all__ = ["ALPHABET", "LENGTH", "NAMES", "in_test", "to_ascii"]

ALPHABET = string.ascii_letters + " .,;'"
"""The tutorial's characters; the first is token 1, and 0 is padding."""

LENGTH = 20
"""The number of characters to which names are cut."""


def to_ascii(name: str) -> str:
    """Returns a name without accents and without characters that are not in the alphabet.

    As in the PyTorch tutorial "Classifying Names with a Character-Level RNN".

    >>> to_ascii("Ślusàrski")
    'Slusarski'
    """
    return "".join(c for c in unicodedata.normalize("NFD", name) if c in ALPHABET)


def in_test(name: str) -> bool:
    """Returns whether a name is in the test split: one in five is, by its CRC-32.

    There is no official split. This one depends on the name alone, so removing one example moves no
    other, and a name that occurs twice is never in both splits.
    """
    return zlib.crc32(name.encode()) % 5 == 0


def _read(source: Source, folder: Path) -> Dataset:
    tokens: tuple[list[list[int]], ...] = ([], [])
    labels: tuple[list[int], ...] = ([], [])
    for label, entry in enumerate(source.files):
        for _, line in text_lines(folder / entry.path):
            name = to_ascii(line.strip())
            part = int(in_test(name))
            tokens[part].append([1 + ALPHABET.index(c) for c in name])
            labels[part].append(label)
    train, test = (
        Split(padded(rows, LENGTH), np.asarray(own, np.int32))
        for rows, own in zip(tokens, labels, strict=True)
    )
    return Dataset(source.name, train, test, source.classes, vocabulary=1 + len(ALPHABET))


NAMES = Source(
    name="names",
    title="NAMES",
    folder="names",
    examples=(16_041, 4_033),
    classes=18,
    files=(
        File("Arabic.txt", "md5:82fae9e94c57f0ce3971ff005db0429e", 13_190),
        File("Chinese.txt", "md5:885f5a22943c99bdb2295cfeeca48df2", 1_247),
        File("Czech.txt", "md5:a35a6c5b756b50dd188d6d52f3251d88", 3_919),
        File("Dutch.txt", "md5:6ab7bbaf044b499721053f90e0773c5e", 2_351),
        File("English.txt", "md5:950fc1c5c1406e12f1d3c67bbb33ed66", 27_125),
        File("French.txt", "md5:20ca80761015630dbb80c0f1d43cb659", 2_178),
        File("German.txt", "md5:d10473b75cbb39f75de4ba71dccd852a", 5_610),
        File("Greek.txt", "md5:2edefe72c04ef0dafcc08080a06e71fc", 1_981),
        File("Irish.txt", "md5:e7eb4e53253058c0744bbb76cb3110f1", 1_858),
        File("Italian.txt", "md5:80327fae66e0ac14495bc0f62fc0c63f", 5_657),
        File("Japanese.txt", "md5:f5b11bdb2e0435c0a22c1a731aa287d8", 7_622),
        File("Korean.txt", "md5:a9b83a6c85dd59ed024a09c61de0c0e9", 423),
        File("Polish.txt", "md5:71aca5ee180890e83daeae1b01429dc0", 1_165),
        File("Portuguese.txt", "md5:9e678db31d44422908885fd3ddea89d6", 554),
        File("Russian.txt", "md5:2745382eaaafa224ed1029111ae24e47", 85_605),
        File("Scottish.txt", "md5:7cb6daa864d1beac09420ea666c10f3d", 752),
        File("Spanish.txt", "md5:61f0b4e4deb4acaad0086996124e9b32", 2_284),
        File("Vietnamese.txt", "md5:1c081f30420eb147fb747a90e3d2a7af", 339),
    ),
    notes="Surnames of 18 languages, of the PyTorch tutorial on character-level networks; no "
    "official split: one name in five, by its CRC-32, is for testing; characters, at most 20.",
    read=_read,
    archive=Archive(
        "https://download.pytorch.org/tutorial/data.zip",
        "sha256:fb317e80248faeb62dc25ef3390ae24ca34b94e276bbc5141fd8862c2200bff5",
        "data/names",
    ),
)
