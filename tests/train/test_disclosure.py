"""No key in what is printed, no number that is none in JSON, no timing without its label."""

import json
import math

import jax
import numpy as np
import optax
import pytest

import dpjax
from dpjax.data import fingerprints
from dpjax.train import Checkpoints, Experiment, Run, RunFolder, train
from tests.train.small import experiment, images, program

DATA = images()
RUN = {"run__seed": 5, "run__evaluate_every": 2, "run__checkpoint_every": 3, "train__steps": 4}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    (result,) = train(experiment(**RUN), DATA, tmp_path_factory.mktemp("one") / "run")
    return result


def words(tree):
    """Returns the words of all keys in a tree, as they would be printed."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if is_key(leaf)]
    found = {str(word) for key in leaves for word in np.ravel(jax.random.key_data(key))}
    assert all(len(word) > 6 for word in found)  # long enough not to be there by chance
    return found


def is_key(leaf):
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


class TestRepr:
    def shown(self, value):
        assert f"{value}" == repr(value)
        return repr(value)

    def test_results_show_no_key(self, result):
        secrets = words(result.state)
        assert len(secrets) == 4  # the run's and the noise's
        shown = self.shown(result)
        assert not any(word in shown for word in secrets)
        assert "accuracy" in shown
        assert any(word in repr(jax.tree.leaves(result.state)) for word in secrets)  # rejects

    def test_states_show_no_key_but_the_rest(self, result):
        shown = self.shown(result.state)
        assert not any(word in shown for word in words(result.state))
        assert "step=Array(4, dtype=int32)" in shown
        assert "key=<private>" in shown
        assert "0.7" in shown  # the released threshold, inside the optimizer's state

    def test_members_and_checkpoints_show_neither_key_nor_mark(self, result, tmp_path):
        marks = fingerprints(DATA)
        member = Run.resume(program(**RUN), result.folder, marks)
        secrets = {*words(member.state), *marks.values()}
        assert len(secrets) == 6
        checkpoints = Checkpoints(tmp_path, "me")
        checkpoints.save(4, member.state, {"data": marks})
        restored = checkpoints.restore(member.state)
        for value in (member, restored, restored.state):
            assert not any(word in self.shown(value) for word in secrets), type(value)

    @pytest.mark.parametrize("method", ["dp_sgd", "auto_dp_sgd"])
    def test_states_of_transformations_show_no_key(self, method):
        made = program(method__name=method, method__noise_multiplier=1.0).plan.method
        key = jax.random.wrap_key_data(np.array([123456789, 987654321], np.uint32))
        tx = optax.chain(made.transformation(32.0, key), optax.sgd(0.1))
        state = tx.init({"w": np.ones(2, np.float32)})
        assert words(state) == {"123456789", "987654321"}
        assert not any(word in repr(state) for word in words(state))
        assert "<private>" in repr(state)

    def test_a_traced_state_can_be_printed(self, result):
        seen = []
        jax.eval_shape(lambda state: seen.append(repr(state)) or state.step, result.state)
        assert "<private>" in seen[0]


class TestJson:
    def strict(self, file):
        """Reads JSON as its standard has it: Python also takes NaN."""

        def refuse(word):
            raise AssertionError(f"{word} in {file.name}")

        return [json.loads(line, parse_constant=refuse) for line in file.read_text().splitlines()]

    def test_a_loss_that_is_no_number_is_null_and_comes_back_as_nan(self, tmp_path):
        huge = experiment(**RUN, optimizer__learning_rate=3e38, method__threshold=50.0)
        huge = huge.set("run.diagnostics", True)
        (result,) = train(huge, DATA, tmp_path / "run")
        rows = self.strict(tmp_path / "run" / "released.jsonl")
        assert [row["loss"] for row in rows] == [None, None]
        self.strict(tmp_path / "run" / "diagnostics.jsonl")
        self.strict(tmp_path / "run" / "timing.json")
        back = result.folder.released()
        assert all(math.isnan(row["loss"]) for row in back)
        assert back[-1]["accuracy"] == result.accuracy
        train(huge, DATA, tmp_path / "run", resume=True)  # and is read by a resume

    def test_what_is_missing_and_what_is_no_number(self, tmp_path):
        folder = RunFolder(tmp_path)
        row = {"step": 2, "epoch": 1.0, "epsilon": None, "threshold": [0.5, math.inf]}
        folder.add_released({**row, "accuracy": math.nan, "loss": math.inf})
        (back,) = folder.released()
        assert math.isnan(back["accuracy"])
        assert math.isnan(back["loss"])
        assert back["epsilon"] is None
        assert back["threshold"] == [0.5, None]
        self.strict(tmp_path / "released.jsonl")

    def test_an_evaluation_without_an_accuracy_is_still_refused(self, tmp_path):
        (tmp_path / "released.jsonl").write_text('{"step": 1, "epoch": 1, "epsilon": null}\n')
        with pytest.raises(ValueError, match="expected a number 'accuracy' in every line"):
            RunFolder(tmp_path).released()


def test_timing_is_labelled(result):
    timing = json.loads((result.folder.path / "timing.json").read_text())
    assert timing["label"].startswith("NOT PRIVATE: ")
    assert "batch" in timing["label"]
    assert timing["steps"] == 4


def test_the_statement_says_that_the_number_of_examples_is_public(result, tmp_path):
    text = (result.folder.path / "statement.md").read_text()
    assert "add or remove one" in text
    assert "the number of examples is public" in text
    fixed = experiment(**RUN, train__sampling="fixed")
    train(fixed, DATA, tmp_path / "run")
    text = (tmp_path / "run" / "statement.md").read_text()
    assert "replace one" in text  # neighbours are of one size: there is nothing to add
    assert "is public" not in text


@pytest.mark.parametrize("bad", [0, -3, 0.1, 0.999, float("nan")])
def test_a_batch_size_below_one_is_refused_wherever_it_is_given(bad):
    with pytest.raises((ValueError, TypeError), match=r"train\.batch_size = .*expected"):
        Experiment().set("train.batch_size", bad)
    mechanism = dpjax.Mechanism(dpjax.rules.abadi(), 1.0, 1.0)
    with pytest.raises(ValueError, match=r"sampling = .*expected .* >= 1"):
        dpjax.privatize(mechanism, bad, jax.random.key(0))
    method = program(method__name="auto_dp_sgd", method__noise_multiplier=1.0).plan.method
    with pytest.raises(ValueError, match=r"sampling = .*expected .* >= 1"):
        method.transformation(bad, jax.random.key(0))


def test_a_rate_in_place_of_a_batch_size_is_told_so():
    with pytest.raises(ValueError, match=r"train\.batch_size = 0.1: .*not a sampling rate"):
        Experiment().set("train.batch_size", 0.1)
    mechanism = dpjax.Mechanism(dpjax.rules.abadi(), 1.0, 1.0)
    with pytest.raises(ValueError, match=r"sampling = 0.1: .*not a sampling rate"):
        dpjax.privatize(mechanism, 0.1, jax.random.key(0))


def test_noise_that_reaches_no_epsilon_says_so(tmp_path):
    """At sigma 0.05 an example moves a coordinate by 20 sigma, and the noise ends at 11.6."""
    own = experiment(method__noise_multiplier=0.05, privacy__epsilon="none")
    (result,) = train(own, DATA, tmp_path / "run")
    assert result.epsilon == math.inf
    statement = (tmp_path / "run" / "statement.md").read_text()
    assert "No guarantee: delta = " in statement
    assert "the noise ends at 11.6 standard deviations" in statement
