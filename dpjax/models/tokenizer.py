"""A pre-trained network's own tokenizer, from the files next to its weights."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from dpjax import _checks
from dpjax.models.gpt2 import NO_TOKEN

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Tokenizer"]


@dataclass(frozen=True)
class _SpecialTokens:
    """The special tokens of a family.

    Attributes:
        padding: the token that fills up a text; None if there is no such token.
        unknown: the token of a word without pieces; None if every byte has a token.
        single: the template of one text, A.
        pair: the template of two texts, A and B, with segments.
        others: special tokens that are not in the templates.
    """

    padding: str | None
    unknown: str | None
    single: str
    pair: str
    others: tuple[str, ...] = ()

    @property
    def framing(self) -> tuple[str, ...]:
        """The special tokens of the templates."""
        words = (word.split(":")[0] for word in self.pair.split())
        return tuple(dict.fromkeys(word for word in words if not word.startswith("$")))


_BERT = _SpecialTokens(
    "[PAD]", "[UNK]", "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ("[MASK]",)
)
_ROBERTA = _SpecialTokens("<pad>", "<unk>", "<s> $A </s>", "<s> $A </s> </s> $B </s>", ("<mask>",))
_GPT2 = _SpecialTokens(None, None, "$A", "$A $B:1", ("<|endoftext|>",))
_KINDS = {"bert": _BERT, "distilbert": _BERT, "roberta": _ROBERTA, "gpt2": _GPT2}

_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "encoder.json")


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Texts as a pre-trained network's tokens.

    Made by `Tokenizer.from_directory`. The special tokens are the family's: ``[CLS] A [SEP] B
    [SEP]``, ``<s> A </s></s> B </s>``, or none for GPT-2.

    Attributes:
        family: a name in `dpjax.models.MODELS`.
        vocabulary: the number of tokens.
        padding: the token that fills up a text shorter than a row.
        separator: ends the first text; None for GPT-2.
        end: ends a generated text; None except for GPT-2.

    Example:
        >>> import tempfile
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "film"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "vocab.txt").write_text("\\n".join(words))
        ...     tokenizer = Tokenizer.from_directory(folder, "bert")
        >>> tokenizer.rows(["good film"], length=6).tolist()
        [[2, 5, 6, 3, 0, 0]]
    """

    family: str
    vocabulary: int
    padding: int
    separator: int | None
    end: int | None
    _engine: "tokenizers.Tokenizer" = field(repr=False)

    @classmethod
    def from_directory(cls, directory: str | Path, family: str) -> "Tokenizer":
        """Reads tokenizer.json, or vocab.txt, or vocab.json with merges.txt.

        OpenAI's own names for the last two, encoder.json and vocab.bpe, are read too.

        Args:
            directory: the network's directory.
            family: "bert", "distilbert", "roberta" or "gpt2".

        Returns:
            The tokenizer.

        Raises:
            FileNotFoundError: if there is no tokenizer.
            ValueError: if it is not one of this family.
        """
        kind = _KINDS[_checks.choice("family", family, _KINDS)]
        engine = _read(Path(directory), kind)
        for token in (*kind.framing, kind.padding, kind.unknown):
            if token is not None and engine.token_to_id(token) is None:
                raise ValueError(
                    f"{directory}: the tokenizer has no token {token!r}: expected one of "
                    f"{family}, this is another model's"
                )
        _frame(engine, kind)
        engine.no_padding()
        padding = None if kind.padding is None else engine.token_to_id(kind.padding)
        return cls(
            family,
            engine.get_vocab_size(),
            NO_TOKEN if padding is None else padding,
            engine.token_to_id(kind.framing[-1]) if kind.framing else None,
            engine.token_to_id(kind.others[0]) if family == "gpt2" else None,
            engine,
        )

    def encode(self, text: str, pair: str | None = None) -> list[int]:
        """Returns all tokens of a text, or of two, including the special ones.

        Args:
            text: the text.
            pair: the second text; None for none.
        """
        self._engine.no_truncation()
        return self._engine.encode(text, pair).ids

    def rows(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, length: int
    ) -> np.ndarray:
        """Returns texts as one int32 array, (n, length), truncated and padded.

        The longer of two texts is truncated first; special tokens are never cut off.

        Args:
            texts: the texts.
            pairs: the second texts, one for each; None for none.
            length: the number of tokens in a row, including special ones.

        Raises:
            ValueError: if a row has no room for more than the special tokens, or there is not one
                second text for each text.
        """
        special = self._engine.num_special_tokens_to_add(pairs is not None)
        if _checks.integer("length", length, at_least=1) <= special:
            raise ValueError(f"length = {length}: expected more than the {special} special tokens")
        if pairs is not None and len(pairs) != len(texts):
            raise ValueError(f"{len(texts)} texts, {len(pairs)} pairs: expected equal numbers")
        given = texts if pairs is None else zip(texts, pairs, strict=True)
        self._engine.enable_truncation(length, strategy="longest_first")
        out = np.full((len(texts), length), self.padding, np.int32)
        for row, encoded in zip(out, self._engine.encode_batch(list(given)), strict=True):
            row[: len(encoded.ids)] = encoded.ids
        return out

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Returns the text of tokens, without special tokens and padding.

        Args:
            tokens: the tokens; padding may follow them.
        """
        ids = [int(token) for token in tokens if token != self.padding]
        return self._engine.decode(ids, skip_special_tokens=True)

    def save(self, directory: str | Path) -> None:
        """Writes tokenizer.json.

        Args:
            directory: a folder that exists.
        """
        self._engine.no_truncation()
        self._engine.save(str(Path(directory) / "tokenizer.json"))


def _library() -> ModuleType:
    try:
        import tokenizers  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise ImportError("tokenizers is missing: pip install 'dpjax[pretrained]'") from error
    return tokenizers


def _read(directory: Path, kind: _SpecialTokens) -> "tokenizers.Tokenizer":
    name = next((name for name in _FILES if (directory / name).is_file()), None)
    if name is None:
        raise FileNotFoundError(
            f"{directory}: no tokenizer; expected tokenizer.json, vocab.txt, or vocab.json with "
            "merges.txt"
        )
    try:
        if name == "tokenizer.json":
            return _library().Tokenizer.from_file(str(directory / name))
        if name == "vocab.txt":
            return _word_pieces(directory, kind)
        merges = directory / ("merges.txt" if name == "vocab.json" else "vocab.bpe")
        return _byte_pairs(directory / name, merges, kind)
    except (FileNotFoundError, ImportError):
        raise
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{directory / name}: expected a tokenizer: {error}") from error


def _word_pieces(directory: Path, kind: _SpecialTokens) -> "tokenizers.Tokenizer":
    library, file = _library(), directory / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    lines = (directory / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {line.strip(): number for number, line in enumerate(lines) if line.strip()}
    engine = library.Tokenizer(library.models.WordPiece(vocabulary, unk_token=kind.unknown))
    engine.normalizer = library.normalizers.BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    engine.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    engine.decoder = library.decoders.WordPiece()
    _add_special(engine, kind)
    return engine


def _byte_pairs(vocabulary: Path, merges: Path, kind: _SpecialTokens) -> "tokenizers.Tokenizer":
    if not merges.is_file():
        raise FileNotFoundError(f"{merges}: missing; expected it beside {vocabulary.name}")
    library = _library()
    engine = library.Tokenizer(library.models.BPE.from_file(str(vocabulary), str(merges)))
    engine.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = library.decoders.ByteLevel()
    _add_special(engine, kind)
    return engine


def _add_special(engine: "tokenizers.Tokenizer", kind: _SpecialTokens) -> None:
    named = (*kind.framing, kind.padding, kind.unknown, *kind.others)
    known = dict.fromkeys(t for t in named if t is not None and engine.token_to_id(t) is not None)
    # The space before RoBERTa's mask token belongs to the token.
    added = _library().AddedToken
    engine.add_special_tokens([added(t, lstrip=t == "<mask>", special=True) for t in known])


def _frame(engine: "tokenizers.Tokenizer", kind: _SpecialTokens) -> None:
    if kind.framing:
        special = [(token, engine.token_to_id(token)) for token in kind.framing]
        engine.post_processor = _library().processors.TemplateProcessing(
            single=kind.single, pair=kind.pair, special_tokens=special
        )
