"""The E2E NLG challenge: tables about restaurants, and texts that describe them."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpjax import _checks
from dpjax.data.base import Split
from dpjax.models.tokenizer import Tokenizer

__all__ = ["E2E", "TableTexts", "causal_rows", "prompt_rows", "read_e2e"]

_FILES = ("trainset.csv", "devset.csv", "testset_w_refs.csv")
_SLOT = re.compile(r"\s*([^\[\],]+)\[([^\]]*)\]\s*")


class TableTexts(NamedTuple):
    """A table, as one line, and the texts that describe it."""

    table: str
    texts: tuple[str, ...]


class E2E(NamedTuple):
    """The three parts: one text per training example, otherwise all references of a table."""

    train: tuple[TableTexts, ...]
    dev: tuple[TableTexts, ...]
    test: tuple[TableTexts, ...]


def read_e2e(folder: str | Path) -> E2E:
    """Reads the organisers' csv files: trainset.csv, devset.csv and testset_w_refs.csv.

    A table ``name[The Vaults], eatType[pub]`` becomes ``name : The Vaults | eatType : pub``, the
    form of Li and Liang's prompts, with the organisers' own names of the columns.

    Args:
        folder: where the files are.

    Raises:
        FileNotFoundError: if a file is missing; names it.
        ValueError: if a line is not one table and one text; names it.
    """
    train, dev, test = (_rows(Path(folder) / name) for name in _FILES)
    single = tuple(TableTexts(table, (text,)) for table, text in train)
    return E2E(single, _together(dev), _together(test))


def causal_rows(examples: Sequence[TableTexts], tokenizer: Tokenizer, *, length: int) -> Split:
    """Returns examples as rows of tokens for a language model, and their prompts' lengths.

    A row is `` table <end> text <end>``, as in Li et al.'s program; the loss covers the tokens
    after the first end. Examples longer than `length` are left out, as in that program. The
    decision is made per example, so one never affects another's row. N is the number of examples
    that remain.

    Args:
        examples: tables with one text each.
        tokenizer: GPT-2's.
        length: the number of tokens in a row.

    Returns:
        Tokens (n, length), padded with `dpjax.models.NO_TOKEN`, and the lengths of the prompts,
        (n,).
    """
    end = _end(tokenizer)
    rows, starts = [], []
    for table, texts in examples:
        for text in texts:
            prompt = [*tokenizer.encode(f" {table} "), end]
            ids = [*prompt, *tokenizer.encode(f" {text} "), end]
            if len(ids) <= length:
                rows.append(ids)
                starts.append(len(prompt))
    if not rows:
        raise ValueError(f"length = {length}: expected enough for one of {len(examples)} examples")
    return Split(_filled(rows, length, tokenizer.padding), np.asarray(starts, np.int32))


def prompt_rows(examples: Sequence[TableTexts], tokenizer: Tokenizer, *, length: int) -> np.ndarray:
    """Returns the prompts of tables, (n, length), for `dpjax.models.generate`."""
    end = _end(tokenizer)
    rows = [[*tokenizer.encode(f" {table} "), end] for table, _ in examples]
    longest = max(map(len, rows))
    if longest > _checks.integer("length", length, at_least=1):
        raise ValueError(f"length = {length}: expected at least {longest}, the longest prompt")
    return _filled(rows, length, tokenizer.padding)


def _rows(path: Path) -> list[tuple[str, str]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: missing; it is in the challenge's e2e-dataset.zip")
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        header = next(lines, [])
        if header != ["mr", "ref"]:
            raise ValueError(f"{path}: its first line is {header}: expected mr and ref")
        found = []
        for fields in lines:
            if len(fields) != 2 or not fields[1].strip():
                raise ValueError(f"{path}: line {lines.line_num}: expected a table and a text")
            found.append((_table(path, lines.line_num, fields[0]), fields[1].strip()))
    return found


def _table(path: Path, line: int, text: str) -> str:
    slots = _SLOT.findall(text)
    if not slots:
        raise ValueError(f"{path}: line {line} has the table {text!r}: expected name[...], ...")
    return " | ".join(f"{name.strip()} : {value.strip()}" for name, value in slots)


def _together(rows: Sequence[tuple[str, str]]) -> tuple[TableTexts, ...]:
    texts: dict[str, list[str]] = {}
    for table, text in rows:
        texts.setdefault(table, []).append(text)
    return tuple(TableTexts(table, tuple(own)) for table, own in texts.items())


def _end(tokenizer: Tokenizer) -> int:
    if tokenizer.end is None:
        raise ValueError(f"tokenizer of {tokenizer.family}: expected a language model's")
    return tokenizer.end


def _filled(rows: Sequence[Sequence[int]], length: int, padding: int) -> np.ndarray:
    out = np.full((len(rows), length), padding, np.int32)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return out
