"""Lin et al.'s greedy search against a loop written here, and where it stops."""

from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from dpjax import data
from dpjax.papers import GreedySearch, Thresholds, greedy_search
from dpjax.papers.greedy_thresholds import _best_of_epoch
from dpjax.train import Experiment, TrainState, build_program, build_runner, member_key, root_key


def experiment(**values):
    base = Experiment.from_plain(
        {
            "data": {"name": "digits"},
            "model": {"name": "mlp"},
            "method": {"name": "dp_sgd", "threshold": 1.0, "noise_multiplier": 1.0},
            "optimizer": {"name": "sgd", "learning_rate": 1.0},
            "train": {"batch_size": 256, "epochs": 2},
        }
    )
    return base.with_values(values)


class Scripted:
    """A runner whose accuracy is a given function of the threshold."""

    most = 10

    def __init__(self, accuracy):
        self.accuracy, self.tried = accuracy, []

    def advance(self, state, steps):
        self.tried.append(round(float(state.vary["method.threshold"]), 6))
        return state._replace(step=state.step + steps), None

    def evaluate(self, state):
        return SimpleNamespace(accuracy=self.accuracy(float(state.vary["method.threshold"])))


def best(accuracy, **numbers):
    search = GreedySearch(experiment(), **numbers)
    runner = Scripted(accuracy)
    state = TrainState(jnp.int32(0), None, None, None, None, None, {})
    return _best_of_epoch(search, runner, state, 7), runner.tried


def test_it_keeps_the_best_and_stops_after_the_fall():
    # A tent with its top at 0.25: at 0.40 it is more than 0.02 lower for the first time.
    found, tried = best(lambda c: 0.9 - 0.2 * abs(c - 0.25), start=0.05, step=0.05, fall=0.02)
    assert found.threshold == pytest.approx(0.25)
    assert tried == [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    assert found.trials == len(tried)
    assert int(found.state.step) == 7


def test_a_fall_before_the_best_does_not_stop_it_early():
    scores = {0.1: 0.5, 0.2: 0.49, 0.3: 0.6, 0.4: 0.57}
    found, tried = best(lambda c: scores[round(c, 6)], start=0.1, step=0.1, fall=0.02)
    assert (found.threshold, found.accuracy) == (pytest.approx(0.3), 0.6)
    assert len(tried) == 4


def test_an_accuracy_that_never_falls_comes_to_an_end():
    found, tried = best(lambda c: 0.5, start=0.1, step=0.1)
    assert found.threshold == pytest.approx(0.1)
    assert len(tried) == 500


@pytest.mark.slow
def test_a_search_is_that_of_a_loop_over_constant_thresholds():
    dataset = data.load("digits")
    search = GreedySearch(experiment(), start=1.0, step=8.0, fall=0.05, repeats=2)
    found = greedy_search(search, dataset)
    assert len(found.thresholds) == 2
    assert found.first[0] == found.thresholds[0]
    assert found.initial == pytest.approx(sum(found.first) / 2)
    # The first epoch again, with programs that have their threshold built in. The keys are those
    # of the search's own experiment, so that batches and noise are the same.
    identity = build_program(search.experiment, dataset).plan.experiment.identity
    scores = {}
    while not scores or max(scores.values()) - list(scores.values())[-1] <= 0.05:
        c = 1.0 + 8.0 * len(scores)
        program = build_program(experiment(**{"method.threshold": c}), dataset)
        runner = build_runner(program, dataset, search.experiment.run)
        state = program.init(member_key(root_key(0), identity, 0))
        state, _ = runner.advance(state, round(program.plan.steps_per_epoch))
        scores[c] = float(runner.evaluate(state).accuracy)
    assert found.thresholds[0] == pytest.approx(max(scores, key=scores.get))
    assert found.accuracies[0] == pytest.approx(max(scores.values()), abs=1e-6)


def test_bad_numbers_are_refused():
    for field, value in (("start", 0.0), ("step", -1.0), ("fall", 1.5), ("repeats", 0)):
        with pytest.raises((TypeError, ValueError), match=field):
            GreedySearch(experiment(), **{field: value})


def test_the_key_tells_searches_apart():
    one = GreedySearch(experiment())
    assert one.key == GreedySearch(experiment()).key
    assert one.key != GreedySearch(experiment(), step=0.02).key
    assert one.key != GreedySearch(experiment(**{"train.batch_size": 128})).key


def test_what_was_found_is_plain():
    found = Thresholds((1.0,), (0.5,), 3, (1.0, 2.0))
    assert found.initial == 1.5
