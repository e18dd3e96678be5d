"""Two steps of every network with every method of the papers' tables, on made data."""

import jax
import numpy as np
import pytest

from dpjax.papers import Findings, Thresholds, cells, recipe_of
from dpjax.papers.recipes.lin import PUBLIC, search_for
from dpjax.train import build_program, build_runner, member_key, root_key
from tests.papers.made import made

# The networks that take long to compile or to hold: smaller ones of the same kind by default.
SMALLER = {
    "bert": {
        "layers": 2,
        "width": 16,
        "heads": 2,
        "hidden": 32,
        "trainable": ["blocks/1", "pooler"],
    },
    "roberta": {"layers": 2, "width": 16, "heads": 2, "hidden": 32},
    "nfnet_f0": {"widths": [16, 16, 16, 16], "group": 4},
    "nfnet_f1": {"widths": [16, 16, 16, 16], "group": 4},
    "wide_resnet": {"depth": 10, "width": 1},
}
QUICK = ("small_cnn", "linear")


def distinct():
    """Returns an experiment for each network with each method, by a name for both."""
    found = {}
    searches = {
        search_for(cell).key: Thresholds((0.5, 0.25), (0.5, 0.6), 4, (0.5,))
        for cell in cells()
        if cell.paper == "Lin" and cell.data in PUBLIC
    }
    for cell in cells():
        recipe = recipe_of(cell, Findings(searches))
        for experiment in (recipe.experiment, recipe.sound):
            if experiment is not None:
                chosen = experiment.with_values(recipe.only_choice)
                name = f"{experiment.model.name}-{experiment.method['name']}"
                name += "-labels" if cell.data == "celeba_attributes_full" else ""
                found.setdefault(name, chosen)
    return found


def smoked(experiment):
    """Returns the experiment cut to two steps of four examples.

    With noise 0.1: that of some statistics follows the batch size, and the gradient needs more.
    """
    model = experiment.model.name
    values = {"train.batch_size": 4, "train.steps": 2, "train.chunk": 4}
    values |= {f"model.{key}": value for key, value in SMALLER.get(model, {}).items()}
    values["model.pretrained"] = "none"  # new weights will do
    values |= {"privacy.epsilon": "none", "privacy.delta": 0.1, "method.noise_multiplier": 0.1}
    return experiment.with_values(values)


def cases():
    seen = set()
    for name, experiment in distinct().items():
        model = experiment.model.name
        quick = model in QUICK and model not in seen
        seen.add(model)
        yield pytest.param(experiment, id=name, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("experiment", list(cases()))
def test_two_steps(experiment):
    dataset = made(experiment.data.name)
    program = build_program(smoked(experiment), dataset)
    runner = build_runner(program, dataset, experiment.run)
    before = jax.jit(program.init)(member_key(root_key(1), "00" * 32, 0))
    after, _ = runner.advance(before, 2)
    assert int(after.step) == 2
    old, new = (jax.tree.leaves(state.params) for state in (before, after))
    assert all(np.all(np.isfinite(leaf)) for leaf in new)
    assert any(np.any(a != b) for a, b in zip(old, new, strict=True))
    assert 0 <= float(runner.evaluate(after).accuracy) <= 1
