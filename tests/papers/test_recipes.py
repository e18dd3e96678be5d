"""Every printed number has an experiment, with the numbers that its paper prints."""

import pytest

from dpjax.papers import Findings, Thresholds, TunedNoise, cell_named, cells, recipe_of
from dpjax.papers.printed_numbers import training_size
from dpjax.papers.recipes.dc_sgd import candidates
from dpjax.papers.recipes.lin import search_for
from dpjax.train import resolve


def test_every_cell_has_an_experiment_or_a_reason():
    recipes = [(cell, recipe_of(cell)) for cell in cells()]
    without = [cell for cell, recipe in recipes if recipe.experiment is None]
    assert all(recipe.obstacle for cell, recipe in recipes if recipe.experiment is None)
    # Generated text, forty labels at once, RGP, and thresholds from ImageNet.
    kinds = {(cell.dataset, cell.method) for cell in without}
    assert {data for data, method in kinds if method != "RGP"} == {
        "E2E",
        "CelebA multi-label",
        "Imagenette",
    }
    assert len(without) < 60


def test_experiments_name_what_exists():
    for recipe in map(recipe_of, cells()):
        if recipe.experiment is not None:
            assert training_size(recipe.experiment.data.name) > 1000
            assert recipe.candidates() == [] or len(recipe.candidates()) == len(recipe.grid)


def test_two_tables_with_one_setting_share_their_runs():
    four = recipe_of(cell_named("dc-sgd/IV/mnist/cnn/2/dc-sgd-e"))
    eight = recipe_of(cell_named("dc-sgd/VIII/mnist/cnn/2/dc-sgd-e"))
    tuned = recipe_of(cell_named("dc-sgd/II/mnist/cnn/2/dc-sgd-e"))
    keys = [[run.key for run in r.results(r.only_choice)] for r in (four, eight, tuned)]
    assert keys[0] == keys[1] == keys[2]


def test_results_use_other_seeds_than_the_search():
    recipe = recipe_of(cell_named("dc-sgd/IV/mnist/cnn/2/dp-sgd"))
    searched = {run.seed for run in recipe.candidates()}
    assert searched.isdisjoint(run.seed for run in recipe.results(recipe.grid[0]))


# Table I of DC-SGD multiplies the time of one run by these.
@pytest.mark.parametrize(
    ("method", "count"),
    [("dp-sgd", 10), ("dc-sgd-p", 9), ("dc-sgd-e", 1), ("andrew", 45), ("du", 90)],
)
def test_the_papers_grids_have_the_sizes_that_it_prints(method, count):
    assert candidates(cell_named(f"dc-sgd/II/mnist/cnn/2/{method}")) == count


@pytest.mark.parametrize(
    ("way", "sigma"),
    # Worked out beside this library, with dp-accounting alone: CIFAR-10, B 256, 20 epochs, G 10.
    [("LT", 4.02), ("RDP", 2.22)],
)
def test_the_budget_of_a_search_leaves_the_noise_that_it_should(way, sigma):
    cell = cell_named("dc-sgd/II/cifar10/resnet18/2/dp-sgd")
    experiment = recipe_of(cell).experiment
    assert TunedNoise(experiment, way, 10).find() == pytest.approx(sigma, abs=0.02)


def test_a_tuned_cell_waits_for_its_noise_and_then_has_it():
    cell = cell_named("dc-sgd/III/mnist/cnn/2/andrew")
    waiting = recipe_of(cell)
    assert isinstance(waiting.waits_for, TunedNoise)
    assert waiting.results(waiting.grid[0]) == []
    found = recipe_of(cell, Findings(noises={waiting.waits_for.key: 3.0}))
    assert found.waits_for is None
    assert found.experiment.method["noise_multiplier"] == 3.0
    assert found.experiment.privacy.epsilon is None


def test_transfer_and_decay_take_what_the_search_found():
    transfer = cell_named("lin/2/mnist/cnn-b1/2.93/transfer")
    decay = cell_named("lin/1/mnist/cnn-b1/2.93/decay-a=0.3")
    search = search_for(transfer)
    assert search.experiment.data.name == "fashion_mnist"
    assert search.key == search_for(decay).key
    found = Findings({search.key: Thresholds((0.7, 0.5), (0.8, 0.9), 9, (0.6, 0.8))})
    assert recipe_of(transfer).results({}) == []
    assert recipe_of(transfer, found).experiment.method["thresholds"] == [0.7, 0.5]
    method = recipe_of(decay, found).experiment.method
    assert (method["c0"], method["exponent"]) == (pytest.approx(0.7), 0.3)


def test_the_noise_of_dc_sgd_on_mnist_is_that_of_rdp():
    # MECHANISMS: RDP sigmas for T = ceil(E N / B), B 256, ten epochs, delta 1/N.
    for epsilon, sigma in ((1, 1.12866), (2, 0.84140), (4, 0.66790)):
        cell = cell_named(f"dc-sgd/IV/mnist/cnn/{epsilon}/dp-sgd")
        plan = resolve(recipe_of(cell).experiment, 60_000)
        assert plan.method.noise_multiplier == pytest.approx(sigma, abs=2e-4)


def test_auto_dp_sgd_goes_through_its_whole_schedule_in_a_tenth_of_the_epochs():
    recipe = recipe_of(cell_named("auto-dp/14/mnist/custom-cnn/0.68/sigma0.9584/auto-dp-s"))
    plan = resolve(recipe.sound, 60_000)
    sigma = plan.method.noise_multiplier
    assert float(sigma(0)) == pytest.approx(0.9584)
    # Table 1: sigma_0^2 R^floor(e / D), R 0.5, D 10; the last of the paper's epochs is 99.
    assert float(sigma(plan.steps - 1)) == pytest.approx(0.9584 * 0.5 ** (9 / 2), rel=1e-5)
    assert plan.steps == 9375


def test_lins_thresholds_are_those_of_table_d1():
    # MNIST at 2.93.
    for method, name, value in (
        ("abadi", "threshold", 0.3),
        ("yu", "c0", 0.8),
        ("du", "c0", 0.8),
        ("andrew", "target", 0.7),
    ):
        cell = cell_named(f"lin/2/mnist/cnn-b1/2.93/{method}")
        assert recipe_of(cell).experiment.method[name] == value
