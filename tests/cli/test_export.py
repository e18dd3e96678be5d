"""`dpjax export`: a model to publish, without what gives the noise away."""

import json

import jax
import numpy as np
import pytest

from dpjax import data, models
from dpjax.accounting import Ledger
from dpjax.cli import main
from dpjax.data import fingerprints
from dpjax.train import Experiment, Run, RunFolder, build_program
from dpjax.train.folder import NOT_PRIVATE
from tests.cli.calls import printed, refused

SEED = 987_654_321  # so that it is found nowhere by chance
ARGV = (
    *("train", "--quiet", "--seed", str(SEED), "--diagnostics", "--json"),
    *("--set", "train.steps=20", "--set", "model.hidden=8", "--set", "train.ema=0.5"),
    *("--set", "privacy.accountant=rdp", "--method", "dc_sgd_e"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a seed and diagnostics, neither of which may leave it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpjax.cli.run_plots.draw_runs", lambda runs, output: None)
        assert main([*ARGV, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def exported(run):
    folder = run.with_name("model")
    assert main(["export", str(run), "--output", str(folder)]) == 0
    return folder


def weights_of(folder):
    with np.load(folder / "model.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def test_prints_the_files_it_writes(capsys, run, tmp_path):
    names = ("model.npz", "config.toml", "statement.md", "ledger.json")
    text = printed(capsys, ["export", str(run), "--output", str(tmp_path / "new" / "model")])
    assert text.split() == [str(tmp_path / "new" / "model" / name) for name in names]
    found = sorted(path.name for path in (tmp_path / "new" / "model").rglob("*"))
    assert found == sorted(names)


def test_statement_and_ledger_are_the_runs(run, exported):
    for name in ("ledger.json", "statement.md"):
        assert (exported / name).read_bytes() == (run / name).read_bytes()
    ledger = Ledger.from_json((exported / "ledger.json").read_text())
    assert ledger.epsilon(1 / 1437, "rdp") <= 4


def test_no_key_no_seed_no_diagnostics(run, exported):
    stored = RunFolder(run)
    digits = data.load("digits")
    program = build_program(stored.read_config(), digits)
    state = Run.resume(program, stored, fingerprints(digits)).state
    keys = [leaf for leaf in jax.tree.leaves(state) if is_key(leaf)]
    assert len(keys) == 2  # that of the run, and that of the noise
    secrets = [str(SEED).encode(), SEED.to_bytes(4, "little"), NOT_PRIVATE[:11].encode()]
    for key in keys:
        words = np.asarray(jax.random.key_data(key))
        secrets += [words.tobytes(), words.astype(">u4").tobytes()]
        secrets += [form(int(word)).encode() for word in words for form in (str, hex)]
    secrets += [str(row["norm_quantiles"]["0.5"]).encode() for row in stored.diagnostics()]
    assert len(secrets) > 12
    contents = [path.read_bytes() for path in exported.iterdir()]
    contents += [leaf.tobytes() for leaf in weights_of(exported).values()]
    for secret in secrets:
        assert not any(secret in content for content in contents), secret
    # The scan would find them where they are.
    assert str(SEED).encode() in (run / "config.toml").read_bytes()
    assert secrets[-1] in (run / "diagnostics.jsonl").read_bytes()


def is_key(leaf):
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def test_the_parameters_give_the_accuracy_that_was_printed(run, exported):
    digits, weights = data.load("digits"), weights_of(exported)
    shown = RunFolder(run).released()[-1]["accuracy"]
    pixels = digits.test.x.reshape(len(digits.test.y), -1).astype(np.float64) / 16
    mean, deviation = digits.pixels.mean[0], digits.pixels.std[0]
    x = (pixels - mean) / deviation
    # By hand, in float64,
    hidden = np.maximum(x @ weights["dense/0/kernel"] + weights["dense/0/bias"], 0)
    logits = hidden @ weights["dense/1/kernel"] + weights["dense/1/bias"]
    assert np.mean(logits.argmax(1) == digits.test.y) == pytest.approx(shown, abs=1e-6)
    # and by the network, as the exported experiment names it.
    config = Experiment.from_file(exported / "config.toml")
    network = models.build(config.model.name, digits.shape, digits.classes, **config.model.options)
    params = {"dense": {str(i): {} for i in range(2)}}
    for path, leaf in weights.items():
        _, layer, name = path.split("/")
        params["dense"][layer][name] = leaf
    images = x.reshape(-1, 8, 8, 1).astype(np.float32)
    own = jax.vmap(network.apply, (None, 0))(params, images)
    np.testing.assert_allclose(own, logits, atol=1e-4)


def test_a_model_to_start_from(capsys, exported, tmp_path, monkeypatch):
    monkeypatch.setattr("dpjax.cli.run_plots.draw_runs", lambda runs, output: None)
    config = str(exported / "config.toml")  # the experiment itself may be run again, with new keys
    argv = ["train", "--quiet", "--config", config, "--set", "train.steps=1", "--json"]
    weights = f'model.weights="{exported / "model.npz"}"'
    slow = ["--set", "optimizer.learning_rate=1e-9", "--set", "train.ema=none"]
    found = json.loads(
        printed(capsys, [*argv, *slow, "--set", weights, "--out", str(tmp_path / "more")])
    )
    printed(capsys, ["export", found["folder"], "--output", str(tmp_path / "after")])
    before, after = weights_of(exported), weights_of(tmp_path / "after")
    for name, leaf in before.items():
        np.testing.assert_allclose(after[name], leaf, atol=1e-7)
    wrong = refused(capsys, [*argv, "--set", weights, "--set", "model.hidden=9"])
    assert "model.weights: dense/0/" in wrong
    assert "expected (" in wrong


class TestRefusals:
    def test_a_folder_in_use(self, capsys, run, exported, tmp_path):
        before = {path.name: path.read_bytes() for path in exported.iterdir()}
        for place in (exported, exported / "model.npz"):
            sentence = refused(capsys, ["export", str(run), "--output", str(place)])
            assert sentence == f"{place}: expected a folder that does not exist yet, or is empty"
        assert {path.name: path.read_bytes() for path in exported.iterdir()} == before

    def test_no_run(self, capsys, tmp_path):
        argv = ["--output", str(tmp_path / "model")]
        assert "holds no run" in refused(capsys, ["export", str(tmp_path), *argv])
        assert "holds no run" in refused(capsys, ["export", str(tmp_path / "none"), *argv])
        assert not (tmp_path / "model").exists()

    def test_an_export_is_no_run(self, capsys, exported, tmp_path):
        argv = ["export", str(exported), "--output", str(tmp_path / "model")]
        assert "holds no run" in refused(capsys, argv)

    def test_flags(self, capsys, run):
        assert "--output" in refused(capsys, ["export", str(run)])
        assert "RUN" in refused(capsys, ["export", "--output", "model"])
