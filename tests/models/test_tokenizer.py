"""Tokens are transformers' own, for a small sample and, where the files are, for real sentences."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from dpjax.models import NO_TOKEN, Tokenizer

GOLDEN = Path(__file__).parent / "golden"
FILES = {"bert": "word_pieces", "roberta": "byte_pairs", "gpt2": "byte_pairs"}


@pytest.mark.parametrize("name", sorted(FILES))
def test_small_sample(name):
    folder = GOLDEN / FILES[name]
    expected = json.loads((folder / "expected.json").read_text())
    tokenizer = Tokenizer.from_directory(folder, name)
    for pairs, kind in ((None, "single"), (expected["seconds"], "pairs")):
        rows = tokenizer.rows(expected["texts"], pairs, length=12)
        assert rows.shape == (len(expected["texts"]), 12)
        found = [row[row != tokenizer.padding].tolist() for row in rows]
        assert found == expected[name][kind]
        for row, ids in zip(rows, found, strict=True):
            assert (row[len(ids) :] == tokenizer.padding).all()


def test_special_tokens_and_padding():
    roberta, gpt2, bert = (
        Tokenizer.from_directory(GOLDEN / FILES[name], name) for name in ("roberta", "gpt2", "bert")
    )
    assert (roberta.padding, roberta.separator, roberta.end) == (1, 2, None)
    assert (gpt2.padding, gpt2.separator, gpt2.end) == (NO_TOKEN, None, 5)
    assert (bert.padding, bert.separator) == (0, 3)
    assert gpt2.decode(gpt2.rows(["A funny film!"], length=30)[0]) == "A funny film!"
    assert bert.decode(bert.encode("funny film")) == "funny film"


def test_saved_and_read_again(tmp_path):
    for name, folder in FILES.items():
        tokenizer = Tokenizer.from_directory(GOLDEN / folder, name)
        (tmp_path / name).mkdir()
        tokenizer.save(tmp_path / name)
        again = Tokenizer.from_directory(tmp_path / name, name)
        texts = ["An un-believable film, isn't it?"]
        assert again.encode(texts[0]) == tokenizer.encode(texts[0])
        assert (again.rows(texts, texts, length=9) == tokenizer.rows(texts, texts, length=9)).all()


def test_bad_values(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no tokenizer; expected tokenizer.json"):
        Tokenizer.from_directory(tmp_path, "bert")
    with pytest.raises(ValueError, match=r"no token '\[CLS\]': expected one of distilbert"):
        Tokenizer.from_directory(GOLDEN / "byte_pairs", "distilbert")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json: expected a tokenizer"):
        Tokenizer.from_directory(tmp_path, "bert")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"merges.txt: missing; expected it beside vocab"):
        Tokenizer.from_directory(tmp_path, "gpt2")
    tokenizer = Tokenizer.from_directory(GOLDEN / "word_pieces", "bert")
    with pytest.raises(ValueError, match="length = 3: expected more than the 3 special tokens"):
        tokenizer.rows(["a"], ["b"], length=3)
    with pytest.raises(ValueError, match="1 texts, 2 pairs: expected equal numbers"):
        tokenizer.rows(["a"], ["b", "c"], length=8)


DATA = Path(os.environ.get("DPJAX_DATA", "nowhere"))


@pytest.mark.skipif(not (DATA / "bert-vocab").is_dir(), reason="needs the published vocabularies")
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_thousand_real_sentences(name, tmp_path):
    """Of the first 1,000 of SST-2's training file; their tokens' hash is transformers'."""
    lines = (DATA / "sst2" / "train.tsv").read_text(encoding="utf-8").split("\n")[1:1001]
    texts = [line.split("\t")[0] for line in lines]
    folder = DATA / ("bert-vocab" if name == "bert" else "gpt2-bpe")
    if name == "roberta":  # its vocabulary has GPT-2's pieces behind four special tokens
        table = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
        own = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
        own |= {token: 4 + number for token, number in table.items()}
        own["<mask>"] = len(own)
        (tmp_path / "vocab.json").write_text(json.dumps(own, ensure_ascii=False), encoding="utf-8")
        merges = (folder / "vocab.bpe").read_text(encoding="utf-8")
        (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
        folder = tmp_path
    tokenizer = Tokenizer.from_directory(folder, name)
    found = [tokenizer.encode(text) for text in texts]
    expected = json.loads((GOLDEN / "sst2_first_1000.json").read_text())[name]
    assert len(found) == 1000
    assert hashlib.sha256(json.dumps(found).encode()).hexdigest() == expected
