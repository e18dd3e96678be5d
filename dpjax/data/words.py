"""Words as numbers, by a public rule that depends on no data.

A vocabulary counted on the private texts depends on them, and no noise covers that. Here a word's
number is a hash, which is the same for every collection of texts.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from dpjax.data.base import Split
from dpjax.data.labels import class_labels

__all__ = ["HASHED_WORDS", "SEPARATOR", "VOCABULARY", "labelled_texts", "padded", "word_ids"]

VOCABULARY = 16_384
"""The number of ids: 0 is padding, 1 separates two texts, words have the others."""

SEPARATOR = 1

_WORD = re.compile(r"\w+|[^\w\s]")


def word_ids(text: str) -> list[int]:
    """Returns the numbers of a text's words.

    A word is a run of letters, digits and underscores, or one other character. In lower case, its
    number is ``2 + crc32(word in UTF-8) mod (VOCABULARY - 2)``. Some words share a number.

    >>> word_ids("Don't") == word_ids("don ' t")
    True
    """
    return [
        2 + zlib.crc32(word.encode()) % (VOCABULARY - 2) for word in _WORD.findall(text.lower())
    ]


def padded(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Returns rows as one int32 array, cut or padded with 0 to a length.

    >>> padded([[5, 6, 7], [8]], length=2).tolist()
    [[5, 6], [8, 0]]
    """
    out = np.zeros((len(rows), length), np.int32)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids[:length]
    return out


class HashedWords:
    """Texts as hashed words, for networks that are trained from scratch.

    Attributes:
        vocabulary: the number of ids.
        padding: the id that fills up shorter texts.
    """

    vocabulary = VOCABULARY
    padding = 0

    def rows(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, length: int
    ) -> np.ndarray:
        """Returns texts, or pairs with a separator between them, as int32 of (n, length)."""
        ids = [word_ids(text) for text in texts]
        if pairs is not None:
            ids = [
                [*one, SEPARATOR, *word_ids(other)] for one, other in zip(ids, pairs, strict=True)
            ]
        return padded(ids, length)


HASHED_WORDS = HashedWords()
"""The tokenizer that is used if none is given."""


def labelled_texts(
    path: Path, rows: Iterable[tuple[int, Sequence[int]]], length: int, classes: int, first: int = 0
) -> Split:
    """Returns labelled texts as examples.

    Args:
        path: the file they come from, for the error message.
        rows: a label and the numbers of the words, for each example.
        length: the number of words to which an example is cut or padded.
        classes: the number of classes.
        first: the file's smallest label.
    """
    labels, tokens = [], []
    for label, ids in rows:
        labels.append(label)
        tokens.append(ids[:length])
    return Split(padded(tokens, length), class_labels(path, labels, classes, first))
