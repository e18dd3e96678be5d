"""Texts with a network's own tokenizer, the E2E challenge's files, and the scores of texts."""

from pathlib import Path

import numpy as np
import pytest

from dpjax import data
from dpjax.data.e2e import causal_rows, prompt_rows, read_e2e
from dpjax.data.text_scores import bleu, nist, rouge_l
from dpjax.models import Tokenizer
from tests.data.official import make_official

GOLDEN = Path(__file__).parents[1] / "models" / "golden"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def test_glue_with_a_networks_own_tokens(monkeypatch, tmp_path):
    header = "sentence1\tsentence2\tgold_label\n"
    write(tmp_path / "mnli" / "train.tsv", f"{header}A good film\tIt is good\tneutral\n")
    write(tmp_path / "mnli" / "dev_mismatched.tsv", f"{header}un\tfilm\tcontradiction\n")
    make_official(monkeypatch, "mnli_mm", tmp_path / "mnli", 1, 1)
    tokenizer = Tokenizer.from_directory(GOLDEN / "word_pieces", "bert")
    loaded = data.load("mnli_mm", tmp_path, tokenizer, length=12)
    assert loaded.vocabulary == tokenizer.vocabulary
    expected = tokenizer.encode("A good film", "It is good")
    assert loaded.train.x[0, : len(expected)].tolist() == expected
    assert loaded.shape == (12,)
    assert (loaded.train.y.tolist(), loaded.test.y.tolist()) == ([1], [2])
    with pytest.raises(ValueError, match="tokenizer and length: expected None, digits takes nei"):
        data.load("digits", tokenizer=tokenizer)


TRAIN = 'mr,ref\n"name[The Mill], food[Thai]","A film, \'The Mill\'."\n"name[Zizzi]",Pub\n'
TEST = '"mr","ref"\n"name[Zizzi]","A pub"\n"name[Aroma]","It is good"\n"name[Zizzi]","Good"\n'


def test_e2e_tables_become_prompts_and_targets(tmp_path):
    write(tmp_path / "trainset.csv", TRAIN)
    write(tmp_path / "devset.csv", TEST)
    write(tmp_path / "testset_w_refs.csv", TEST)
    found = read_e2e(tmp_path)
    assert found.train[0] == ("name : The Mill | food : Thai", ("A film, 'The Mill'.",))
    assert found.test == (("name : Zizzi", ("A pub", "Good")), ("name : Aroma", ("It is good",)))
    gpt2 = Tokenizer.from_directory(GOLDEN / "byte_pairs", "gpt2")
    rows = causal_rows(found.train, gpt2, length=60)
    prompt = gpt2.encode(" name : Zizzi ")
    target = gpt2.encode(" Pub ")
    assert rows.x[1, : rows.y[1]].tolist() == [*prompt, gpt2.end]
    used = rows.x[1] != gpt2.padding
    assert rows.x[1][used][rows.y[1] :].tolist() == [*target, gpt2.end]
    short = causal_rows(found.train, gpt2, length=int(used.sum()))
    np.testing.assert_array_equal(short.x, rows.x[1:, : used.sum()])  # the long one is left out
    prompts = prompt_rows(found.test, gpt2, length=20)
    assert prompts[0][prompts[0] != gpt2.padding].tolist() == [*prompt, gpt2.end]
    with pytest.raises(ValueError, match="length = 5: expected enough for one of 2 examples"):
        causal_rows(found.train, gpt2, length=5)
    with pytest.raises(ValueError, match="length = 5: expected at least"):
        prompt_rows(found.test, gpt2, length=5)
    bert = Tokenizer.from_directory(GOLDEN / "word_pieces", "bert")
    with pytest.raises(ValueError, match="tokenizer of bert: expected a language model's"):
        causal_rows(found.train, bert, length=60)


def test_e2e_files_that_are_not(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"trainset.csv: missing; it is in the challenge"):
        read_e2e(tmp_path)
    for text, said in (
        ("a,b\n", "expected mr and ref"),
        ("mr,ref\nname[x],\n", "line 2: expected a table and a text"),
        ("mr,ref\nx,y\n", "line 2 has the table 'x'"),
    ):
        write(tmp_path / "trainset.csv", text)
        with pytest.raises(ValueError, match=said):
            read_e2e(tmp_path)


CANDIDATES = [
    "The Vaults is a cheap pub near Café Adriatic.",
    "Blue Spice: a 5-star coffee shop, in the city centre!",
]
REFERENCES = [
    [
        "The Vaults is a pub near Café Adriatic with cheap food.",
        "Near Café Adriatic is The Vaults, a cheap pub.",
    ],
    [
        "Blue Spice is a coffee shop in the city centre rated 5 stars.",
        "In the city centre, Blue Spice is a coffee shop.",
        "A coffee shop called Blue Spice.",
    ],
]


def test_scores_are_the_organisers():
    """Numbers of the E2E challenge's own program (pymteval.py; COCO's rouge.py on our words).

    sacrebleu agrees about BLEU. On the organisers' ten example outputs both give BLEU 0.72029 and
    NIST 7.78889.
    """
    assert bleu(CANDIDATES, REFERENCES) == pytest.approx(0.3975898605360809, abs=1e-12)
    assert nist(CANDIDATES, REFERENCES) == pytest.approx(4.0899616190875765, abs=1e-12)
    assert rouge_l(CANDIDATES, REFERENCES) == pytest.approx(0.7623628368259419, abs=1e-12)


def test_scores_at_the_ends():
    texts = ["a pub near the river that serves food"]
    for score in (bleu, rouge_l):
        assert score(texts, [texts]) == pytest.approx(1.0)
        assert score(["unlike"], [texts]) == 0.0
    assert nist(["unlike"], [texts]) == 0.0
    with pytest.raises(ValueError, match="1 candidates, 2 lists of references: expected as many"):
        bleu(texts, [texts, texts])
