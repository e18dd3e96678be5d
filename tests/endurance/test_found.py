"""What fuzzing and hostile files found, one case each, so that it stays found.

Before they were fixed, these ran into other exceptions than refusals, or were accepted and came to
noise of zero or infinity, thresholds of NaN, infinite weights, or files written elsewhere.
"""

import os
import re

import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import (
    Mechanism,
    methods,
    per_example_grads,
    rules,
    sampling,
    schedules,
    thresholds,
)
from dpjax._files import refuse_links
from dpjax._toml import read
from dpjax.accounting import epsilon
from dpjax.adaclip import adaclip
from dpjax.cli import main
from dpjax.cli.released_runs import read_run
from dpjax.data import load
from dpjax.methods.adaptive import noise_decay
from dpjax.models import build
from dpjax.papers import Store
from dpjax.testing import SLACK
from dpjax.train import Experiment
from dpjax.train.folder import RunFolder, RunIdentity
from dpjax.train.network import file_hash
from tests.cli.run_folders import write_run

HUGE = 10**400
abadi = rules.abadi()

REFUSED = {
    "an integer beyond all floats": (lambda: Mechanism(abadi, HUGE, 1.0), "threshold = 1000"),
    "its negative": (lambda: rules.psac(r=-HUGE), "r = -1000"),
    "more digits than Python writes": (lambda: rules.psac(r=10**5000), "r = an integer of 16610"),
    "steps of 400 digits": (lambda: schedules.yu_linear(1.0, HUGE), "steps = 1000"),
    "a batch of 400 digits": (lambda: sampling.FixedSize(1, HUGE), "dataset_size = 1000"),
    "bins of a gigabyte": (lambda: thresholds.dc_sgd_e(bins=2**30), "bins = 1073741824"),
    # In float32 these are infinite, or 0.
    "a curve from infinity": (lambda: schedules.du_decay(1e300, 0.5, 9), r"init = 1e\+300"),
    "a curve from zero": (lambda: schedules.table((1e-300,)), r"values\[0\] = 1e-300"),
    "infinity times zero": (lambda: schedules.time_decay(1.0, 10, 1e300), r"rate = 1e\+300"),
    "zero over zero": (lambda: schedules.geometric(1.0, 1e-300), "steps_per_epoch = 1e-300"),
    "a product beyond float32": (
        lambda: schedules.scaled(schedules.table((1e20,)), 1e20),
        "factor times the schedule's largest value",
    ),
    "a class as a curve": (lambda: schedules.scaled(float, 1.0), "schedule = float: expected"),
    "a threshold from infinity": (lambda: thresholds.dc_sgd_e(c0=1e300), r"c0 = 1e\+300"),
    "a threshold from zero": (lambda: thresholds.dc_sgd_p(p=0.5, c0=1e-60), "c0 = 1e-60"),
    "a range of infinity": (lambda: thresholds.dc_sgd_e(range0=1e60), r"range0 = 1e\+60"),
    "a floor of zero": (lambda: thresholds.quantile(0.5, floor=1e-300), "floor = 1e-300"),
    "no ceiling": (lambda: thresholds.private_mean(ceiling=1e300), r"ceiling = 1e\+300"),
    "a variance of zero": (lambda: adaclip(h_floor=1e-300), "h_floor = 1e-300"),
    "noise of zero": (lambda: Mechanism(abadi, 1.0, 1e-60), "noise_multiplier = 1e-60"),
    "noise of infinity": (lambda: Mechanism(abadi, 1.0, 1e300), r"noise_multiplier = 1e\+300"),
    "noise that adapts to zero": (lambda: methods.andrew(1e-45), "noise_multiplier = 1e-45"),
    "noise of a product": (lambda: Mechanism(abadi, 1e20, 1e20), r"with a bound of 1e\+20"),
    "a bound of infinity": (
        lambda: Mechanism(rules.psasc(s=1e-300), 1.0, 1.0),
        r"with a bound of 1e\+300",
    ),
    # A name becomes a folder's.
    "a name that leads elsewhere": (
        lambda: Mechanism(abadi, 1.0, 1.0, name="../../x"),
        r"name = '\.\./\.\./x': expected a word",
    ),
    "an empty name": (lambda: Mechanism(abadi, 1.0, 1.0, name=""), "name = '': expected a word"),
    "a lineage that leads elsewhere": (lambda: RunIdentity("../../x"), "lineage = '../../x'"),
    "a lineage by its path": (lambda: RunIdentity("/tmp/x"), "lineage = '/tmp/x'"),
    "a member that is none": (lambda: RunIdentity("0" * 64, "x"), "member = 'x'"),
    "no table": (lambda: Experiment.from_plain("x"), "experiment = 'x': expected a table"),
    "an infinite option": (
        lambda: Experiment().set("optimizer.momentum", float("inf")),
        "optimizer.momentum = inf: expected a finite number",
    ),
    # An array compares with every name, and has no truth value.
    "an array as an accountant": (
        lambda: epsilon(methods.dp_sgd(1.0), sampling.Poisson.with_rate(0.1), 1, 1e-5, np.ones(2)),
        "accountant = array",
    ),
    "an array as a relation": (
        lambda: epsilon(
            methods.dp_sgd(1.0), sampling.Poisson.with_rate(0.1), 1, 1e-5, relation=np.ones(2)
        ),
        "relation = array",
    ),
    "an array as a mode": (lambda: thresholds.dc_sgd_e(negative=np.ones(2)), "negative = array"),
    "an array as a decay": (lambda: noise_decay(np.ones(2), 1.0, 9, 9), "decay = array"),
    "a list as an engine": (lambda: per_example_grads(abs, engine=[]), r"engine = \[\]"),
    "a list as a model": (lambda: build([], (8, 8, 1), 10), r"model = \[\]"),
    "a list as a data set": (lambda: load([]), r"data set = \[\]"),
    # A threshold that is a function of one's own took the check of the noise with it.
    "noise that float32 has not": (
        lambda: Mechanism(rules.abadi(), lambda t: 1 / (1 + t), 3.4e-282),
        "noise_multiplier = 3.4e-282",
    ),
    "weights of no file": (lambda: Experiment().set("model.weights", 0), "model.weights = 0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_the_name_of_the_field(what):
    make, words = REFUSED[what]
    with pytest.raises((TypeError, ValueError), match=words) as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_weights_are_normal_numbers_or_zero():
    """c / z may be infinite; below the normal numbers it is 0, or rounded by up to a half."""
    c, z = 1e-25, 9.5e19
    norm = np.float32(9.4e19)
    weight = float(rules.global_clip(z=z).weight(jnp.asarray(norm), jnp.float32(c)))
    assert weight * float(norm) <= c * (1 + SLACK)
    far = rules.global_clip(z=1e-25).weight(jnp.zeros(()), jnp.float32(1e25))
    assert np.isfinite(far)


@pytest.mark.parametrize("make", [schedules.yu_linear, lambda i, n: schedules.du_decay(i, 0.5, n)])
def test_more_steps_than_an_int32_counts(make):
    assert float(make(2.0, 2**31)(2**31 - 1)) == pytest.approx(1.0, rel=1e-6)


def test_every_more_epochs_than_an_int32_counts():
    assert float(schedules.step_decay(2.0, 1.0, 0.5, 2**31)(2**30)) == 2.0


def test_nesting_without_end_is_named(tmp_path):
    file = tmp_path / "deep.toml"
    file.write_text("x = " + "[" * 100_000)
    with pytest.raises(ValueError, match=r"deep\.toml: expected TOML"):
        read(file)


def test_weights_that_never_end_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match="expected a plain file"):
            file_hash(path)


def test_links_in_a_run_are_refused_before_anything_is_written(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    folder = write_run(tmp_path / "run")
    (folder.path / "lock").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="lock is a link"), folder.locked():
        pass
    with pytest.raises(ValueError, match="lock is a link"):
        read_run(folder).plots  # noqa: B018
    assert elsewhere.read_text() == "mine"
    (folder.path / "lock").unlink()
    refuse_links(folder.path)
    with folder.locked():
        assert (folder.path / "lock").is_file()


@pytest.mark.parametrize("line", ["[1]", '{"step": 4}', '{"step": "x"}', "{", "[" * 100_000])
def test_evaluations_of_another_form_are_refused_by_their_file(tmp_path, line):
    folder = write_run(tmp_path / "run", ledger=False)
    (folder.path / "released.jsonl").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=re.escape("released.jsonl: expected")):
        RunFolder(folder.path).released()


@pytest.mark.parametrize(
    ("file", "text", "ask"),
    [
        ("findings.jsonl", "[1]\n", "findings"),
        ("findings.jsonl", '{"key": "k"}\n', "findings"),
        ("findings.jsonl", '{"key": {}, "noise": 1}\n', "findings"),
        ("findings.jsonl", "[" * 100_000 + "\n", "findings"),
        ("runs.csv", "a,b\n1,2\n", "records"),
        ("runs.csv", "experiment,seed\n../../x,1\n", "records"),
        ("curves.csv", "key\nx\n", "curves"),
    ],
)
def test_stores_of_another_form_are_refused_by_their_file(tmp_path, file, text, ask):
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"{file}: expected what dpjax wrote")):
        getattr(Store(tmp_path), ask)


def test_what_a_terminal_obeys_is_shown_and_not_sent(capsys, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('[train]\n"\\u001b[2J" = 1\n')
    assert main(["train", "--config", str(file)]) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\\x1b[2J" in said
