"""Experiments that start from a pre-trained network: tokens, LoRA, cached states, export."""

import json

import jax
import numpy as np
import pytest

from dpjax import cli, models
from dpjax.data import Dataset, Split
from dpjax.models.parameters import flat
from dpjax.train import Experiment, RunFolder, build_program, export, train
from tests.models.test_pretrained_page import GOLDEN, tiny_directory

TEXTS = ["a funny film", "the plot is a mess", "good", "it is not good at all"] * 8


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained") / "tiny"
    tiny_directory(folder)
    return folder


@pytest.fixture(scope="module")
def dataset(directory):
    tokens = models.pretrained_tokenizer(directory).rows(TEXTS, length=10)
    split = Split(tokens, np.arange(len(TEXTS), dtype=np.int32) % 2)
    vocabulary = models.pretrained_tokenizer(directory).vocabulary
    return Dataset("reviews", split, split, 2, vocabulary=vocabulary)


def experiment(directory, tmp_path, **tables):
    return Experiment.from_plain(
        {
            "data": {"name": "reviews"},
            "model": {"pretrained": str(directory), **tables.get("model", {})},
            "method": {"name": "auto_s", "noise_multiplier": 1.0},
            "train": {"batch_size": 8, "steps": 3, "engine": "ghost", **tables.get("train", {})},
            "run": {"seed": 1, "cache_dir": str(tmp_path / "states")},
        }
    )


LAST = {"trainable": ["blocks/-1", "pooler", "classifier"]}


def test_a_run_from_cached_states_is_the_run_without(directory, dataset, tmp_path):
    """The same batches and clipped gradients: only the noise, whose key differs, is another."""
    plain = experiment(directory, tmp_path, model=LAST)
    cached = plain.set("train.cache_frozen", True)
    first = train(plain, dataset, tmp_path / "plain")[0]
    second = train(cached, dataset, tmp_path / "cached")[0]
    assert len(list((tmp_path / "states").iterdir())) == 1  # train and test are the same texts
    assert first.epsilon == second.epsilon
    written = {}
    for name, result in (("plain", first), ("cached", second)):
        out = tmp_path / f"{name}-out"
        files = export(RunFolder(result.folder.path), dataset, out)
        names = {file.name for file in files}
        assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= names
        assert "model.npz" not in names
        written[name] = models.from_pretrained(out, length=10)
        assert written[name].new == ()
    started = models.from_pretrained(directory, classes=2, length=10)
    for model in written.values():
        for path, leaf in flat(model.params).items():
            changed = path.startswith(("blocks/1", "pooler", "classifier"))
            same = np.array_equal(leaf, flat(started.params)[path])
            assert same != changed or "key/bias" in path, path
    card = (tmp_path / "plain-out" / "README.md").read_text()
    assert "differentially private" in card
    config = (tmp_path / "plain-out" / "config.toml").read_text()
    assert str(directory) not in config
    assert 'pretrained = "tiny"' in config


def test_lora_is_trained_and_merged(directory, dataset, tmp_path, capsys):
    model = {"lora": {"rank": 2, "alpha": 4.0}, "trainable": ["*/lora_*", "classifier"]}
    asked = experiment(directory, tmp_path, model=model)
    program = build_program(asked, dataset)
    state = jax.eval_shape(program.init, jax.random.key(0))
    assert len(flat(state.params)) == 2 * 2 * 2 + 2
    result = train(asked, dataset, tmp_path / "lora")[0]
    out = tmp_path / "out"
    export(RunFolder(result.folder.path), dataset, out)
    before = flat(models.from_pretrained(directory, length=10).params)
    after = flat(models.from_pretrained(out, length=10).params)
    changed = {path for path in after if not np.array_equal(before[path], after[path])}
    kernels = {f"blocks/{i}/{name}/kernel" for i in range(2) for name in ("query", "value")}
    assert changed == kernels | {"classifier/kernel", "classifier/bias"}
    assert cli.main(["predict", str(out), "a funny film", "--length", "10"]) == 0
    label, chance, text = capsys.readouterr().out.strip().split("\t")
    assert (label[:6], text) == ("LABEL_", "a funny film")
    assert 0.5 <= float(chance) <= 1


def test_a_language_model_continues_a_text(tmp_path, capsys):
    tokenizer = models.Tokenizer.from_directory(GOLDEN / "byte_pairs", "gpt2")
    sizes = {"layers": 1, "width": 8, "heads": 2, "positions": 16}
    network = models.build("gpt2", (8,), 1, tokenizer.vocabulary, **sizes)
    params = network.init(jax.random.key(0))
    model = models.Pretrained(network, params, tokenizer, {}, (), ())
    models.save_pretrained(model, tmp_path / "tiny")
    asked = ["predict", str(tmp_path / "tiny"), "a film", "--length", "8", "--new-tokens", "4"]
    assert cli.main([*asked, "--beams", "1"]) == 0
    new = models.generate(
        network, params, tokenizer.rows(["a film"], length=8), steps=4, end=tokenizer.end
    )
    assert capsys.readouterr().out.strip() == tokenizer.decode(np.asarray(new[0])).strip()
    assert cli.main([*asked, "--pair", "b"]) != 0
    assert "--pair: expected none; a language model continues" in capsys.readouterr().err


def test_identity_follows_the_weights_and_not_their_place(directory, dataset, tmp_path):
    asked = experiment(directory, tmp_path, model=LAST)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in directory.iterdir():
        (elsewhere / file.name).write_bytes(file.read_bytes())
    moved = asked.set("model.pretrained", str(elsewhere))
    identities = [build_program(e, dataset).plan.experiment.identity for e in (asked, moved)]
    assert identities[0] == identities[1]
    config = json.loads((elsewhere / "config.json").read_text())
    (elsewhere / "config.json").write_text(json.dumps({**config, "note": 1}))
    known = build_program(asked, dataset).plan.experiment
    with pytest.raises(ValueError, match=r"has the sha256 .* expected"):
        build_program(known.set("model.pretrained", str(elsewhere)), dataset)
    plain = Experiment().to_plain()  # stored results keep their names
    assert {"lora", "pretrained", "length"}.isdisjoint({*plain["model"], *plain["data"]})
    assert "cache_frozen" not in plain["train"]


def test_bad_values(directory, dataset, tmp_path):
    hashed = Dataset("reviews", dataset.train, dataset.test, 2, vocabulary=16_384)
    with pytest.raises(ValueError, match="reviews was read as 16384 tokens: expected the"):
        build_program(experiment(directory, tmp_path), hashed)
    for model, train_table, said in (
        ({"trainable": ["embeddings"]}, {"cache_frozen": True}, "expected frozen embeddings"),
        ({"lora": {"rank": 1}, **LAST}, {"cache_frozen": True}, "with model.lora: expected none"),
    ):
        asked = experiment(directory, tmp_path, model=model, train=train_table)
        with pytest.raises(ValueError, match=said):
            train(asked, dataset, tmp_path / "bad")
    with pytest.raises(ValueError, match=r"model.lora = 'rnk': did you mean 'rank'"):
        experiment(directory, tmp_path, model={"lora": {"rnk": 1}})
    with pytest.raises(ValueError, match=r"model.weights and model.pretrained: expected one"):
        experiment(directory, tmp_path, model={"weights": "a.npz"})
    asked = experiment(directory, tmp_path, model=LAST, train={"cache_frozen": True})
    with pytest.raises(ValueError, match="bytes: expected at least"):
        train(asked.set("run.cache_limit", 1e-9), dataset, tmp_path / "bad")
