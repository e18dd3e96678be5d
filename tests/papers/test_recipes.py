"""Every printed number has an experiment, with the numbers that its paper prints."""

import math

import numpy as np
import optax
import pytest
from scipy.stats import norm

from dpjax.papers import Findings, Thresholds, TunedNoise, cell_named, cells, recipe_of
from dpjax.papers.printed_numbers import training_size
from dpjax.papers.recipes.auto_dp_numbers import RHO_MU, implied_sensitivity
from dpjax.papers.recipes.dc_sgd import candidates
from dpjax.papers.recipes.lin import search_for
from dpjax.train import Experiment, resolve


def test_every_cell_has_an_experiment_a_formula_or_a_reason():
    recipes = [(cell, recipe_of(cell)) for cell in cells()]
    for cell, recipe in recipes:
        ways = [recipe.experiment is not None, recipe.computed is not None, bool(recipe.obstacle)]
        assert sum(ways) == 1, cell.name


# To the last printed digit where the paper's formula gives it, else as near as is said.
@pytest.mark.parametrize(
    ("name", "computed"),
    [
        ("dc-sgd/I/mnist/cnn/andrew/runs", 45),
        # TensorFlow Privacy's RDP gave the paper's sigmas.
        ("auto-dp/2/mnist/custom-cnn/1/sigma1.4929/dp-sgd/epsilon", pytest.approx(1, abs=5e-4)),
        ("auto-dp/5/ag-news/bilstm/10/sigma0.5468/dp-sgd/epsilon", pytest.approx(10, rel=0.02)),
        # Zhang's epsilons: 16.86 is the one that the formula does not give, but 16.06.
        ("auto-dp/2/mnist/custom-cnn/9.52/sigma1.4929/adaptive-zhang/epsilon", 9.52),
        ("auto-dp/2/mnist/custom-cnn/16.86/sigma0.9584/adaptive-zhang/epsilon", 16.06),
        ("auto-dp/4/cifar100/nfnet-f1-pretrained/12.56/sigma0.5649/adaptive-zhang/epsilon", 12.56),
        # Only with 100 epochs, although AG News is trained for 40.
        ("auto-dp/5/ag-news/bilstm/8.51/sigma0.6585/adaptive-zhang/epsilon", 8.51),
        # From the best other method of the row.
        ("auto-dp/2/mnist/custom-cnn/0.51/sigma0.5517/auto-dp-s/epsilon-change", -94.9),
        ("auto-dp/3/cifar10/nfnet-f0-pretrained/0.5/sigma1.6082/auto-dp-s/accuracy-gain", 2.57),
    ],
)
def test_what_the_papers_formulas_give(name, computed):
    assert round(recipe_of(cell_named(name)).computed, 2) == computed


def test_zhangs_printed_epsilons_but_one_are_those_of_the_formula():
    rows = [c for c in cells() if c.metric == "epsilon" and c.method == "Adaptive (Zhang)"]
    away = [abs(recipe_of(cell).computed - cell.value) for cell in rows]
    assert len(rows) == 16
    assert sum(distance <= 0.005 for distance in away) == 14  # to the printed digit
    assert sum(distance <= 0.01 for distance in away) == 15
    assert sorted(away)[-1] == pytest.approx(0.80, abs=0.01)


def test_dus_growth_of_the_noise_gives_the_printed_epsilon_by_gdp():
    """mu = q sqrt(sum_t (exp(mu_t^2) - 1)), mu_t = rho^(t/T) / sigma_0 (MECHANISMS, section 2)."""
    for (data, sigma), rho in RHO_MU.items():
        size = training_size(data)
        steps = math.ceil(100 * size / 64)
        mu_t = rho ** (np.arange(steps) / steps) / sigma
        mu = 64 / size * math.sqrt(np.sum(np.expm1(mu_t**2)))
        (epsilon,) = {
            cell.epsilon
            for cell in cells()
            if (cell.data, cell.sigma0, cell.method) == (data, sigma, "Dynamic (Du)")
        }
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
            -mu / 2 - epsilon / mu
        )
        assert delta == pytest.approx(1e-5, rel=1e-3)


def test_the_sensitivities_behind_printed_epsilons_are_those_of_table_13():
    """AG News, whose gradients change little with the noise: 7.1516 to 7.3702 at sigma 2.8."""
    implied = [
        implied_sensitivity(cell)
        for cell in cells()
        if cell.table == "17" and cell.metric == "epsilon" and cell.sigma0 == 1.3768
    ]
    assert implied == pytest.approx([7.36, 7.33, 7.22, 7.03], abs=0.01)


def test_different_rows_are_different_experiments():
    """Papernot's AlexNet has bounded units; that is all that sets it apart from Abadi's."""
    for epsilon in ("11", "46.6", "130.5"):
        rows = [
            cell_named(f"lin/2/imagenette/alexnet/{epsilon}/{m}") for m in ("abadi", "papernot")
        ]
        abadi, papernot = (recipe_of(cell).experiment for cell in rows)
        assert abadi.identity != papernot.identity
        assert papernot.model.options["activation"] == "tanh"
    bare = recipe_of(cell_named("lin/3/imagenette/resnet18-nobn/11/abadi")).experiment
    assert bare.model.options["norm"] == "none"


def test_psascs_recipe_is_its_own_table_ii():
    experiment = recipe_of(cell_named("psasc/III/fashion-mnist/4-layer-cnn/9/dp-psasc")).experiment
    assert experiment.model.name == "cnn4"
    assert (experiment.train.batch_size, experiment.train.epochs) == (512, 60)
    numbers = {key: experiment.method[key] for key in ("r", "s", "threshold")}
    assert numbers == {"r": 1e-3, "s": 0.55, "threshold": 0.25}
    assert (experiment.privacy.epsilon, experiment.privacy.delta) == (9.0, 1e-5)
    shipped = Experiment.from_file("configs/train/fashion_mnist_psasc.toml")
    assert shipped.model.name == "cnn4"
    assert {key: shipped.method[key] for key in numbers} == numbers
    assert (shipped.privacy.epsilon, shipped.train.epochs) == (9.0, 60)


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


def test_auto_dp_sgd_runs_its_hundred_epochs():
    recipe = recipe_of(cell_named("auto-dp/14/mnist/custom-cnn/0.68/sigma0.9584/auto-dp-s"))
    plan = resolve(recipe.sound, 60_000)
    sigma = plan.method.noise_multiplier
    assert float(sigma(0)) == pytest.approx(0.9584)
    # Table 1: sigma_0^2 R^floor(e / D), R 0.5, D 10; the last of the paper's epochs is 99.
    assert float(sigma(plan.steps - 1)) == pytest.approx(0.9584 * 0.5 ** (9 / 2), rel=1e-5)
    assert plan.steps == 93750


def test_lins_thresholds_are_those_of_table_d1():
    # MNIST at 2.93.
    for method, name, value in (
        ("abadi", "threshold", 0.3),
        ("yu", "c0", 0.8),
        ("du", "c0", 0.8),
        ("andrew", "target", 0.7),
        ("pichapati", "estimate", "published"),
    ):
        cell = cell_named(f"lin/2/mnist/cnn-b1/2.93/{method}")
        assert recipe_of(cell).experiment.method[name] == value
    upside_down = recipe_of(cell_named("lin/2/mnist/cnn-b1/4.5/papernot")).experiment
    assert upside_down.method["threshold"] == 0.6


def test_cyclic_rates_are_pytorchs_triangles():
    """CyclicLR: 2,000 steps up and 2,000 down between the two rates; 93,750 steps in all."""
    cell = cell_named("auto-dp/11/mnist/custom-cnn/sigma2.8/auto-dp-l-cycliclr")
    table = dict(recipe_of(cell).experiment.optimizer.learning_rate)
    assert table.pop("name") == "piecewise_interpolate_schedule"
    turns = {int(step): scale for step, scale in table.pop("boundaries_and_scales").items()}
    rate = optax.piecewise_interpolate_schedule(**table, boundaries_and_scales=turns)
    steps = np.array([0, 500, 2000, 3000, 4000, 4500, 92_000, 93_749])
    way = 1 - np.abs(steps / 2000 % 2 - 1)  # 0 at the lower rate, 1 at the upper one
    np.testing.assert_allclose([float(rate(t)) for t in steps], 1e-4 + 9e-4 * way, rtol=1e-4)
