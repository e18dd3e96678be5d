"""Names, csv and tab-separated texts become tokens by public rules alone."""

import subprocess
import sys

import numpy as np
import pytest

from dpjax import data
from dpjax.data import names, words
from tests.data.official import make_official


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def load(monkeypatch, tmp_path, name, folder, train, test):
    make_official(monkeypatch, name, tmp_path / folder, train, test)
    return data.load(name, tmp_path)


def ids(*texts):
    """Returns tokens without the padding that follows."""
    return [i for text in texts for i in ([1] if text is None else words.word_ids(text))]


def row(split, number):
    """Returns a row's tokens before the padding, and checks that padding is all that follows."""
    used = np.count_nonzero(split.x[number])
    assert not split.x[number, used:].any()
    return split.x[number, :used].tolist()


def test_words_are_numbered_by_the_standard_crc_32():
    # The check value of CRC-32 (ISO-HDLC) is 0xCBF43926 for "123456789".
    assert words.word_ids("123456789") == [2 + 0xCBF43926 % (16384 - 2)]


def test_words_are_lower_cased_runs_of_letters_and_single_signs():
    assert words.word_ids("It's GOOD!!") == ids("it", "'", "s", "good", "!", "!")
    assert words.word_ids(" \t\n") == []
    many = words.word_ids(" ".join(f"w{i}" for i in range(50_000)))
    assert min(many) >= 2
    assert max(many) < words.VOCABULARY
    # Hashing spreads: 50,000 balls into 16,382 bins leave exp(-50000 / 16382) = 4.7% of them empty.
    assert len(set(many)) / (words.VOCABULARY - 2) == pytest.approx(0.953, abs=0.01)


def test_ag_news(monkeypatch, tmp_path):
    quoted = '"4","Say ""hi""","A second\\team, of 2"\n"1","Peace","Soon"\n'
    write(tmp_path / "ag_news" / "train.csv", quoted)
    write(tmp_path / "ag_news" / "test.csv", '"2","T","' + "word " * 100 + '"\n')
    loaded = load(monkeypatch, tmp_path, "ag_news", "ag_news", 2, 1)
    assert loaded.train.y.tolist() == [3, 0]
    assert row(loaded.train, 0) == ids('say "hi" a second team, of 2')
    assert row(loaded.train, 1) == ids("peace soon")
    assert row(loaded.test, 0) == (ids("t") + ids("word") * 100)[:64]
    assert (loaded.train.x.dtype, loaded.train.y.dtype) == (np.int32, np.int32)
    assert (loaded.shape, loaded.vocabulary, loaded.pixels) == ((64,), 16384, None)


def test_ag_news_subset_has_descriptions_alone(monkeypatch, tmp_path):
    folder = tmp_path / "ag_news"
    write(folder / "train_desc_partial.tsv", 'label\tdescription\tsources\n3\t"Oil\tx\n1\tWar\ty\n')
    write(folder / "test.csv", '"2","Title","Text"\n')
    loaded = load(monkeypatch, tmp_path, "ag_news_subset", "ag_news", None, 1)
    assert loaded.name == "ag_news_subset"
    assert loaded.train.y.tolist() == [2, 0]
    assert [row(loaded.train, 0), row(loaded.test, 0)] == [ids('" oil'), ids("text")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"1","a"\n', "line 1 has 2 fields, expected 3"),
        ('"1","a","b"\n"5","a","b"\n', "label 5 of example 1 is out of range, expected 1 to 4"),
        ('"one","a","b"\n', "line 1 has the label 'one', expected an integer"),
        ('"-1","a","b"\n', "line 1 has the label '-1'"),
        ('"1","a","b', "not valid csv after line 1"),
        ('"1","a","b"x\n', "not valid csv after line 1"),
        ('"1","a","' + "b" * 200_000 + '"\n', "not valid csv after line"),
    ],
)
def test_damaged_ag_news(monkeypatch, tmp_path, text, said):
    write(tmp_path / "ag_news" / "train.csv", text)
    write(tmp_path / "ag_news" / "test.csv", '"2","Title","Text"\n')
    with pytest.raises(ValueError) as raised:
        load(monkeypatch, tmp_path, "ag_news", "ag_news", 1, 1)
    assert f"train.csv: {said}" in str(raised.value)


def test_texts_that_are_no_utf_8(monkeypatch, tmp_path):
    for name, folder, file in (("ag_news", "ag_news", "test.csv"), ("sst2", "sst2", "dev.tsv")):
        write(tmp_path / folder / "train.csv", '"2","Title","Text"\n')
        write(tmp_path / folder / "train.tsv", "sentence\tlabel\ngood\t1\n")
        (tmp_path / folder / file).write_bytes(b'sentence\tlabel\n\xff\xfe\t1\n"')
        with pytest.raises(ValueError, match=rf"{file}: not (valid csv|UTF-8 text)"):
            load(monkeypatch, tmp_path, name, folder, 1, 1)


def test_sst2_keeps_quotes_and_odd_line_ends(monkeypatch, tmp_path):
    text = 'sentence\tlabel\nso "good\t1\nbad\x85film \u2028 it is\t0\r\n'
    write(tmp_path / "sst2" / "train.tsv", text)
    write(tmp_path / "sst2" / "dev.tsv", "sentence\tlabel\nfine \t1\n")
    loaded = load(monkeypatch, tmp_path, "sst2", "sst2", 2, 1)
    assert loaded.train.y.tolist() == [1, 0]
    assert row(loaded.train, 0) == ids('so "good')
    assert row(loaded.train, 1) == ids("bad film it is")
    assert (row(loaded.test, 0), loaded.shape, loaded.classes) == (ids("fine"), (64,), 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "its first line names no column 'sentence'"),
        ("index\tsentence\n0\tgood\n", "its first line names no column 'label'"),
        ("sentence\tlabel\ngood 1\n", "line 2 has 1 fields, expected 2"),
        ("sentence\tlabel\ngood\t1\nbad\t\n", "line 3 has the label '', expected an integer"),
        ("sentence\tlabel\ngood\t2\n", "label 2 of example 0 is out of range, expected 0 to 1"),
    ],
)
def test_damaged_sst2(monkeypatch, tmp_path, text, said):
    write(tmp_path / "sst2" / "train.tsv", "sentence\tlabel\ngood\t1\n")
    write(tmp_path / "sst2" / "dev.tsv", text)
    with pytest.raises(ValueError) as raised:
        load(monkeypatch, tmp_path, "sst2", "sst2", 1, 1)
    assert f"dev.tsv: {said}" in str(raised.value)


QNLI_HEADER = "index\tquestion\tsentence\tlabel\n"


def test_qnli_separates_question_and_sentence(monkeypatch, tmp_path):
    text = QNLI_HEADER + "0\tWho?\tShe did.\tentailment\n1\tWhy?\tNo.\tnot_entailment\n"
    write(tmp_path / "qnli" / "train.tsv", text)
    write(tmp_path / "qnli" / "dev.tsv", QNLI_HEADER + "0\tQ\t" + "a " * 300 + "\tentailment\n")
    loaded = load(monkeypatch, tmp_path, "qnli", "qnli", 2, 1)
    assert loaded.train.y.tolist() == [0, 1]
    assert row(loaded.train, 0) == ids("who?", None, "she did.")
    assert row(loaded.test, 0) == (ids("q", None) + ids("a") * 300)[:128]
    assert (loaded.shape, loaded.vocabulary) == ((128,), 16384)


def test_qnli_refuses_other_labels(monkeypatch, tmp_path):
    write(tmp_path / "qnli" / "train.tsv", QNLI_HEADER + "0\ta\tb\tneutral\n")
    write(tmp_path / "qnli" / "dev.tsv", QNLI_HEADER)
    with pytest.raises(ValueError, match="line 2 has the label 'neutral', expected entailment or"):
        load(monkeypatch, tmp_path, "qnli", "qnli", 1, 1)


MNLI_START = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
MNLI_START += "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\t"
MNLI_HEADERS = {
    "train.tsv": MNLI_START + "label1\tgold_label\n",
    "dev_matched.tsv": MNLI_START + "label1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n",
}


def mnli_line(number, first, second, votes, label):
    """Returns a line as in GLUE, where trees of both sentences stand before them."""
    trees = f"( {first} )\t( {second} )\t(ROOT {first})\t(ROOT {second})"
    return "\t".join([f"{number}\t7\t7e\tfiction", trees, first, second, *votes, label]) + "\n"


def write_mnli(folder, train, dev):
    for (file, header), lines in zip(MNLI_HEADERS.items(), (train, dev), strict=True):
        write(folder / file, header + "".join(mnli_line(i, *line) for i, line in enumerate(lines)))


def test_mnli_takes_the_agreed_label_and_the_matched_part(monkeypatch, tmp_path):
    train = [
        ('He said "go.', "He spoke.", ["entailment"], "entailment"),
        ("A", "B", ["neutral"], "neutral"),
        ("A", "Not A", ["contradiction"], "contradiction"),
    ]
    votes = ["neutral", "neutral", "entailment", "entailment", "entailment"]
    dev = [("a " * 100, "b " * 100, votes, "entailment"), ("C", "D", votes[::-1], "neutral")]
    write_mnli(tmp_path / "mnli", train, dev)
    loaded = load(monkeypatch, tmp_path, "mnli", "mnli", 3, 2)
    assert loaded.train.y.tolist() == [0, 1, 2]
    assert loaded.test.y.tolist() == [0, 1]
    assert row(loaded.train, 0) == ids('he said "go.', None, "he spoke.")
    assert row(loaded.train, 2) == ids("a", None, "not a")
    assert row(loaded.test, 0) == ids("a") * 100 + [1] + ids("b") * 27
    assert (loaded.shape, loaded.vocabulary, loaded.classes) == ((128,), 16384, 3)


def test_mnli_refuses_sentences_without_an_agreed_label(monkeypatch, tmp_path):
    write_mnli(tmp_path / "mnli", [("A", "B", ["neutral"], "-")], [])
    with pytest.raises(ValueError) as raised:
        load(monkeypatch, tmp_path, "mnli", "mnli", 1, 1)
    assert "line 2 has the label '-', expected entailment or neutral or" in str(raised.value)


QQP_HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"


def test_qqp_separates_the_questions(monkeypatch, tmp_path):
    train = QQP_HEADER + '9\t1\t2\tWhy "me?\tWhy us?\t0\n8\t3\t4\tHow?\tHow so?\t1\n'
    write(tmp_path / "qqp" / "train.tsv", train)
    write(tmp_path / "qqp" / "dev.tsv", QQP_HEADER + "7\t5\t6\t" + "a " * 300 + "\tB?\t1\n")
    loaded = load(monkeypatch, tmp_path, "qqp", "qqp", 2, 1)
    assert (loaded.train.y.tolist(), loaded.test.y.tolist()) == ([0, 1], [1])
    assert row(loaded.train, 0) == ids('why "me?', None, "why us?")
    assert row(loaded.test, 0) == ids("a") * 128
    assert (loaded.shape, loaded.vocabulary, loaded.classes) == ((128,), 16384, 2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("7\t5\t6\tA?\tB?\t2", "line 2 has the label '2', expected 0 or 1"),
        ("7\t5\t6\tA?\tB?\t", "line 2 has the label '', expected 0 or 1"),
        ("7\t5\t6\tA broken", "line 2 has 4 fields, expected 6"),
    ],
)
def test_damaged_qqp(monkeypatch, tmp_path, line, said):
    write(tmp_path / "qqp" / "train.tsv", QQP_HEADER + line + "\n")
    write(tmp_path / "qqp" / "dev.tsv", QQP_HEADER)
    with pytest.raises(ValueError) as raised:
        load(monkeypatch, tmp_path, "qqp", "qqp", 1, 1)
    assert f"train.tsv: {said}" in str(raised.value)


def test_ascii_as_in_the_tutorial():
    # The tutorial's own examples.
    assert names.to_ascii("Ślusàrski") == "Slusarski"
    assert names.to_ascii("O'Néàl") == "O'Neal"
    assert names.to_ascii("Maxa/B1-ß\xa0") == "MaxaB"
    assert len(names.ALPHABET) == 57


def test_names(monkeypatch, tmp_path):
    files = [entry.path for entry in data.DATASETS["names"].files]
    languages = [path.removesuffix(".txt") for path in files]
    assert languages == sorted(languages)
    for language in languages:
        write(tmp_path / "names" / f"{language}.txt", "Abe\nÀbe\nZ " + "a" * 30 + "\n")
    many = [f"Name{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(676)]
    write(tmp_path / "names" / "Greek.txt", "\n".join(many))
    make_official(monkeypatch, "names", tmp_path / "names", None, 0)
    source = data.DATASETS["names"]
    loaded = source.read(source, tmp_path / "names")
    assert len(loaded.train.y) + len(loaded.test.y) == 17 * 3 + 676
    assert len(loaded.test.y) / (17 * 3 + 676) == pytest.approx(0.2, abs=0.05)
    # No name is on both sides, under whatever accent.
    assert not {tuple(x) for x in loaded.train.x} & {tuple(x) for x in loaded.test.x}
    text = {tuple(x): y for x, y in zip(loaded.train.x, loaded.train.y, strict=True)}
    text |= {tuple(x): y for x, y in zip(loaded.test.x, loaded.test.y, strict=True)}
    assert text[(27, 2, 5) + (0,) * 17] == languages.index("Vietnamese")  # A b e
    assert text[(52, 53) + (1,) * 18] == languages.index("Vietnamese")  # Z, blank, a ... cut
    assert (loaded.shape, loaded.vocabulary, loaded.classes) == ((20,), 58, 18)


def test_no_vocabulary_comes_from_the_data(monkeypatch, tmp_path):
    """A text's tokens are the same whatever other texts there are."""
    rows = ["good film\t1", "bad\t0"]
    found = []
    for extra in ("", "quite another text with many words\t0\n" * 5):
        write(tmp_path / "sst2" / "train.tsv", "sentence\tlabel\n" + "\n".join(rows) + "\n" + extra)
        write(tmp_path / "sst2" / "dev.tsv", "sentence\tlabel\ngood\t1\n")
        found.append(load(monkeypatch, tmp_path, "sst2", "sst2", None, 1).train.x[:2].tolist())
    assert found[0] == found[1]


def test_loading_data_needs_neither_pillow_nor_scikit_learn():
    code = (
        "import sys, dpjax.data; "
        "assert not {'PIL', 'sklearn', 'scipy.io'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
