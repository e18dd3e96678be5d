"""Learning rates that fall on plateaus of a public test loss, and the recipe that takes them."""

from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from dpjax import data
from dpjax.papers import (
    Findings,
    PlateauSearch,
    Store,
    cell_named,
    plateau_search,
    plateaus,
    recipe_of,
)
from dpjax.train import Experiment

CELL = cell_named("auto-dp/11/mnist/custom-cnn/sigma2.8/auto-dp-l-reducelrplateau")
EXPERIMENT = Experiment.from_plain(
    {
        "data": {"name": "digits"},
        "model": {"name": "linear"},
        "method": {"name": "dp_sgd", "threshold": 1.0, "noise_multiplier": 1.0},
        "optimizer": {"name": "sgd", "learning_rate": 0.5},
        "train": {"batch_size": 256, "epochs": 3},
    }
)


class Scripted:
    """A runner with given losses, one per epoch; it remembers the learning rates."""

    def __init__(self, losses):
        self.losses, self.rates = list(losses), []

    def advance(self, state, steps):
        self.rates.append(float(state.vary.get("optimizer.learning_rate", jnp.nan)))
        return state._replace(step=state.step + steps), None

    def evaluate(self, state):
        return SimpleNamespace(loss=self.losses[int(state.step) - 1])


class _State(SimpleNamespace):
    def _replace(self, **values):
        return _State(**{**vars(self), **values})


def searched(losses, monkeypatch, **numbers):
    runner = Scripted(losses)
    plan = SimpleNamespace(steps=len(losses), steps_per_epoch=1.0, experiment=EXPERIMENT)
    program = SimpleNamespace(plan=plan, init=lambda key: _State(step=0, vary={}))
    monkeypatch.setattr(plateaus, "build_program", lambda *_: program)
    monkeypatch.setattr(plateaus, "build_runner", lambda *_: runner)
    return plateau_search(PlateauSearch(EXPERIMENT, **numbers), None), runner.rates


def test_the_rate_falls_after_more_than_the_tolerated_epochs(monkeypatch):
    # PyTorch's patience of 10: epochs 2 to 12 are eleven without an improvement, then 13 to 23.
    falls, rates = searched([1.0] * 25, monkeypatch)
    assert falls == (12, 23)
    assert rates[12:23] == [pytest.approx(0.05)] * 11
    assert rates[23:] == [pytest.approx(0.005)] * 2


def test_an_improvement_starts_the_count_again(monkeypatch):
    losses = [1.0, 1.0, 1.0, 0.9, 0.9, 0.9, 0.9]
    assert searched(losses, monkeypatch, patience=2)[0] == (7,)


def test_a_smaller_improvement_than_the_threshold_is_none(monkeypatch):
    losses = [1.0, 0.99995, 0.99991, 0.99]
    assert searched(losses, monkeypatch, patience=1)[0] == (3,)
    assert searched(losses, monkeypatch, patience=1, threshold=1e-6)[0] == ()


def test_a_schedule_in_place_of_the_rate_is_refused():
    rate = {"name": "cosine_decay_schedule", "init_value": 0.1}
    with pytest.raises(ValueError, match="expected a number, not a schedule"):
        PlateauSearch(EXPERIMENT.with_values({"optimizer.learning_rate": rate}))


def test_the_recipe_waits_for_public_data_and_takes_its_epochs(tmp_path):
    waiting = recipe_of(CELL)
    search = waiting.waits_for
    assert search.experiment.data.name == "fashion_mnist"
    assert waiting.results({}) == []
    store = Store(tmp_path)
    store.add_finding(search, (40, 70))
    found = recipe_of(CELL, Store(tmp_path).findings)
    rate = found.experiment.optimizer.learning_rate
    # 937.5 steps are an epoch: the rate falls with the first step after the fortieth.
    assert rate["boundaries_and_scales"] == {"37500": 0.1, "65625": 0.1}
    never = recipe_of(CELL, Findings(plateaus={search.key: ()}))
    assert never.experiment.optimizer.learning_rate == 1e-3


@pytest.mark.slow
def test_a_run_on_digits_ends():
    falls = plateau_search(PlateauSearch(EXPERIMENT, patience=0), data.load("digits"))
    assert all(1 <= epoch <= 3 for epoch in falls)
