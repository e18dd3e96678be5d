"""The page on pre-trained networks and its notebook run as they are shown, on tiny weights."""

import json
import re
from pathlib import Path

import jax

from dpjax import models

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"


def tiny_directory(folder):
    """Writes a BERT with our own small vocabulary."""
    tokenizer = models.Tokenizer.from_directory(GOLDEN / "word_pieces", "bert")
    sizes = {"layers": 2, "width": 8, "heads": 2, "hidden": 12, "positions": 32}
    network = models.build(
        "bert", (8,), 2, tokenizer.vocabulary, separator=tokenizer.separator, **sizes
    )
    params = network.init(jax.random.key(1))
    models.save_pretrained(models.Pretrained(network, params, tokenizer, {}, (), ()), folder)


def code_of(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny_directory(tmp_path / "bert-base-uncased")
    text = (ROOT / "docs" / "pretrained.md").read_text()
    names: dict = {}
    first, *others = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    cells = code_of(ROOT / "docs" / "examples" / "private_bert.ipynb")
    # The notebook is the page's first block, so that one of them needs to run.
    assert "\n".join(cells).split() == first.split()
    lines = [line for line in first.splitlines() if line.strip()]
    assert len(lines) <= 30
    for block in (*cells, *others):
        exec(compile(block, "private_bert.ipynb", "exec"), names)
    assert "{'0': 'bad', '1': 'good'}" in capsys.readouterr().out
    card = (tmp_path / "private-bert" / "README.md").read_text()
    assert re.search(r"\((7\.9\d*|8|8\.0*), 0\.001\)-differentially private", card), card
    config = json.loads((tmp_path / "private-bert" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert names["found"].shape == (1, 6)
    # What was frozen is what was read.
    before, after = (names[model].params["embeddings"] for model in ("model", "private"))
    pairs = zip(*map(jax.tree.leaves, (before, after)), strict=True)
    assert all((one == other).all() for one, other in pairs)
