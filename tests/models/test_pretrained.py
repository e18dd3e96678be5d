"""Pre-trained networks: equal to transformers on tiny weights, read and written, and refusals."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import models
from tests.models.helpers import fast_jit

GOLDEN = Path(__file__).parent / "golden"
ENCODERS = ("bert", "roberta", "distilbert")
# What the tiny directories have no tokenizer to say.
OPTIONS = {"bert": {"separator": 5}}


def expected_of(name):
    return json.loads((GOLDEN / name / "expected.json").read_text())


def read(name, directory=None, **options):
    options = {"length": 10, **OPTIONS.get(name, {}), **options}
    return models.from_pretrained(directory or GOLDEN / name, **options)


@pytest.mark.parametrize("name", [*ENCODERS, "gpt2"])
def test_logits_losses_and_gradient_norms_are_those_of_transformers(name):
    expected = expected_of(name)
    model = read(name)
    assert model.new == ()
    assert model.unused == ()
    tokens = jnp.asarray(expected["tokens"], jnp.int32)
    labels = jnp.asarray(expected.get("labels", expected.get("starts")), jnp.int32)

    def loss(params, example):
        return model.network.loss(params, *example)

    def measured(params):
        grads = dpjax.per_example_grads(loss, engine="ghost")(params, (tokens, labels))
        return jax.vmap(model.network.apply, (None, 0))(params, tokens), grads.losses, grads.norms

    logits, losses, norms = fast_jit(measured)(model.params)
    if name == "gpt2":  # after the last token
        pairs = zip(logits, tokens, strict=True)
        logits = [rows[np.flatnonzero(row != -1)[-1]] for rows, row in pairs]
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-5)
    np.testing.assert_allclose(losses, expected["losses"], atol=1e-5)
    np.testing.assert_allclose(norms, expected["norms"], rtol=1e-5)


def test_searches_are_those_of_transformers_token_by_token():
    model = read("gpt2")
    searches = expected_of("gpt2")["searches"]
    prompts = np.full((len(searches), 4), models.NO_TOKEN, np.int32)
    for row, search in zip(prompts, searches, strict=True):
        row[: len(search["prompt"])] = search["prompt"]
    for beams, penalty in ((1, 1.0), (5, 1.0), (5, 0.6)):
        found = models.generate(
            model.network,
            model.params,
            prompts,
            steps=12,
            end=0,
            beams=beams,
            length_penalty=penalty,
        )
        expected = [search[f"{beams} {penalty}"] for search in searches]
        assert [[t for t in row.tolist() if t != models.NO_TOKEN] for row in found] == expected
    # Otherwise the rules of the search would not be tested.
    assert any(search["5 1.0"] != search["1 1.0"] for search in searches)
    assert any(search["5 0.6"] != search["5 1.0"] for search in searches)
    assert any(len(search["5 1.0"]) < 12 for search in searches)


def test_sampling_follows_the_model():
    """Frequencies of the first token against the softmax, among the three likeliest."""
    model = read("gpt2")
    prompts = jnp.tile(jnp.array([[5, 9]], jnp.int32), (2000, 1))
    drawn = models.generate(
        *(model.network, model.params, prompts),
        **{"steps": 1, "end": 0, "temperature": 2.0, "top_k": 3, "key": jax.random.key(1)},
    )
    tokens = jnp.full(10, -1, jnp.int32).at[:2].set(jnp.array([5, 9]))
    logits = np.asarray(model.network.apply(model.params, tokens)[1], np.float64) / 2
    best = np.argsort(logits)[-3:]
    chances = np.exp(logits[best]) / np.exp(logits[best]).sum()
    counts = np.array([np.sum(np.asarray(drawn) == token) for token in best])
    assert counts.sum() == 2000
    assert np.all(np.abs(counts / 2000 - chances) < 5 * np.sqrt(chances * (1 - chances) / 2000))


@pytest.mark.parametrize("name", [*ENCODERS, "gpt2"])
def test_what_is_written_is_read_again(name, tmp_path):
    model = read(name)
    models.save_pretrained(model, tmp_path / "out", card="Private.\n")
    again = read(name, tmp_path / "out")
    assert again.new == again.unused == ()
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)
    # transformers' own names, shapes and numbers, to the bit.
    theirs, ours = (_tensors(path) for path in (GOLDEN / name, tmp_path / "out"))
    assert theirs.keys() == ours.keys()
    for key in theirs:
        np.testing.assert_array_equal(theirs[key], ours[key])
    assert (tmp_path / "out" / "README.md").read_text() == "Private.\n"


def test_a_prefix_beside_the_weights_of_a_directory(tmp_path):
    model = read("gpt2", prefix=2)
    new = {f"blocks/{i}/prefix_{kind}" for i in (0, 1) for kind in ("key", "value")}
    assert set(model.new) == new
    with pytest.raises(ValueError, match="prefix = 2: expected 0; the files have no place"):
        models.save_pretrained(model, tmp_path / "out")


def _tensors(directory):
    flax = pytest.importorskip("safetensors.flax")
    return flax.load_file(str(directory / "model.safetensors"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(dtype, tmp_path):
    model = read("gpt2")
    models.save_pretrained(model, tmp_path / "half", dtype=dtype)
    again = read("gpt2", tmp_path / "half")
    for found, exact in zip(*map(jax.tree.leaves, (again.params, model.params)), strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_array_equal(found, exact.astype(dtype).astype(jnp.float32))


def _copied(name, tmp_path, **changes):
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def _rewrite(folder, change):
    flax = pytest.importorskip("safetensors.flax")
    tensors = _tensors(folder)
    change(tensors)
    flax.save_file(tensors, str(folder / "model.safetensors"))


def test_shards_old_names_a_bare_body_and_leftovers(tmp_path):
    """A body without its prefix, `gamma` and `beta`, in two files, with a head nobody asked for."""
    flax = pytest.importorskip("safetensors.flax")
    folder = _copied("bert", tmp_path)
    old = {}
    for name, array in _tensors(folder).items():
        name = name.removeprefix("bert.")  # noqa: PLW2901
        if "LayerNorm" in name:
            name = name.replace("weight", "gamma").replace("bias", "beta")  # noqa: PLW2901
        if not name.startswith("classifier"):
            old[name] = array
    old["cls.predictions.bias"] = jnp.zeros(40)
    names = sorted(old)
    files = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for file, own in files.items():
        flax.save_file({name: old[name] for name in own}, str(folder / file))
    index = {name: file for file, own in files.items() for name in own}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    model = read("bert", folder, classes=2)
    assert model.new == ("classifier/bias", "classifier/kernel")
    assert model.unused == ("cls.predictions.bias",)
    whole = read("bert")
    for part in ("embeddings", "blocks", "pooler"):
        jax.tree.map(np.testing.assert_array_equal, model.params[part], whole.params[part])
    (folder / "b.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"missing; model.safetensors.index.json names it"):
        read("bert", folder)


def test_another_number_of_classes_is_a_new_classifier():
    model = read("roberta", classes=5)
    assert model.new == ("classifier/bias", "classifier/kernel")
    assert model.unused == ("classifier.out_proj.bias", "classifier.out_proj.weight")
    assert model.params["classifier"]["kernel"].shape == (8, 5)


def test_bad_directories(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder; expected a Hugging Face dir"):
        models.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no config.json"):
        models.from_pretrained(tmp_path)
    folder = _copied("bert", tmp_path)
    with pytest.raises(FileNotFoundError, match="no tokenizer; expected one, or the separator"):
        models.from_pretrained(folder)
    with pytest.raises(ValueError, match="length = 17: expected at most 16, the network's"):
        read("bert", folder, length=17)
    with pytest.raises(ValueError, match="task = 'language_modelling': expected 'classification'"):
        read("bert", folder, task="language_modelling")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="a pickle can run code when it is read"):
        read("bert", folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"no weights; expected model\.safetensors"):
        read("bert", folder)
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ValueError, match="expected safetensors"):
        read("bert", folder)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ValueError, match="model_type = 't5': expected one of bert, distilbert"):
        read("bert", folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json: expected JSON"):
        read("bert", folder)


def test_bad_tensors(tmp_path):
    folder = _copied("bert", tmp_path)
    _rewrite(folder, lambda t: t.pop("bert.encoder.layer.1.output.dense.bias"))
    with pytest.raises(ValueError, match=r"encoder.layer.1.output.dense.bias: missing; expected"):
        read("bert", folder)
    shutil.rmtree(folder)
    folder = _copied("bert", tmp_path, vocab_size=50)
    with pytest.raises(
        ValueError, match=r"word_embeddings.weight has shape \(40, 8\): expected \(50, 8\)"
    ):
        read("bert", folder)
    shutil.rmtree(folder)
    folder = _copied("bert", tmp_path, position_embedding_type="relative_key")
    with pytest.raises(ValueError, match="position_embedding_type = 'relative_key': expected 'abs"):
        read("bert", folder)
    shutil.rmtree(folder)
    folder = _copied("gpt2", tmp_path)
    _rewrite(folder, lambda t: t.update({"lm_head.weight": jnp.zeros((40, 8))}))
    with pytest.raises(ValueError, match=r"lm_head.weight differs from the table of tokens"):
        read("gpt2", folder)


def test_a_tokenizer_of_another_model(tmp_path):
    folder = _copied("bert", tmp_path)
    for file in ("vocab.json", "merges.txt"):
        shutil.copy(GOLDEN / "byte_pairs" / file, folder)
    with pytest.raises(ValueError, match=r"no token '\[CLS\]': expected one of bert, this is anot"):
        read("bert", folder)
    for file in ("vocab.json", "merges.txt"):
        (folder / file).unlink()
    shutil.copy(GOLDEN / "word_pieces" / "vocab.txt", folder)
    with pytest.raises(ValueError, match="tokens: expected at most 40, the network's"):
        read("bert", folder)


def test_sizes_are_the_published_ones():
    """As `transformers` counts the parameters of the classes with these heads."""
    published = {
        ("bert", 30_522): 109_482_240 + 2 * 768 + 2,
        ("roberta", 50_265): 124_647_170,
        ("distilbert", 30_522): 66_955_010,
        ("gpt2", 50_257): 124_439_808,
    }
    for (name, vocabulary), count in published.items():
        own = {"padding": 1} if name == "roberta" else {}
        assert models.build(name, (128,), 2, vocabulary, **own).param_count == count
    large = {"layers": 36, "width": 1280, "heads": 20}
    assert models.build("gpt2", (8,), 1, 50_257, **large).param_count == 774_030_080
