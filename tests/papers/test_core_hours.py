"""Estimated hours: near what was measured, for every recipe, and in proportion to the work."""

import math

import pytest

from dpjax.papers import SeededRun, cell_named, cells, recipe_of
from dpjax.papers.core_hours import (
    MeasuredNetwork,
    cost_of,
    estimated_search_seconds,
    estimated_seconds,
    is_measured,
    network_of,
)
from dpjax.papers.greedy_thresholds import GreedySearch
from dpjax.train import Experiment

DP_SGD = "dc-sgd/IV/mnist/cnn/2/dp-sgd"


def run_of(name, **values):
    experiment = recipe_of(cell_named(name)).experiment
    paths = {path.replace("__", "."): value for path, value in values.items()}
    return SeededRun(experiment.with_values(paths), 1)


@pytest.mark.parametrize(
    ("name", "seconds"),  # of ten epochs, each run alone on its core
    [(DP_SGD, 88), ("auto-dp/2/mnist/custom-cnn/2/sigma0.9584/dp-sgd", 120)],
)
def test_the_estimate_is_near_what_a_run_took(name, seconds):
    run = run_of(name, train__epochs=10)
    assert estimated_seconds(run) == pytest.approx(seconds, rel=0.35)


def test_every_experiment_has_an_estimate_but_those_of_two_networks():
    for cell in cells():
        experiment = recipe_of(cell).experiment
        if experiment is not None:
            run = SeededRun(experiment, 1)
            assert is_measured(run) != cell.model.startswith(("NFNet", "WRN")), cell.name
            if is_measured(run):
                seconds = estimated_seconds(run)
                assert math.isfinite(seconds), cell.name
                assert 5 < seconds < 1e8, cell.name


def test_time_goes_with_epochs_and_small_batches_take_longer():
    one = estimated_seconds(run_of(DP_SGD, train__epochs=1))
    assert estimated_seconds(run_of(DP_SGD, train__epochs=7)) == pytest.approx(7 * one)
    many = estimated_seconds(run_of(DP_SGD, train__epochs=1, train__batch_size=16))
    assert many > one
    # All the difference is what steps cost: 60,000 / 16 of them instead of 60,000 / 256.
    step = cost_of(MeasuredNetwork("small_cnn", 28)).step
    assert many - one == pytest.approx(60_000 * (1 / 16 - 1 / 256) * step)


def test_steps_count_where_epochs_are_not_given():
    run = run_of(DP_SGD, train__steps=100)
    example, step = cost_of(MeasuredNetwork("small_cnn", 28))
    assert estimated_seconds(run) == pytest.approx(100 * (step + 256 * example))


def test_inner_momentum_takes_a_second_gradient():
    plain = estimated_seconds(run_of("psasc/III/mnist/4-layer-cnn/3/dp-psasc"))
    twice = estimated_seconds(run_of("psasc/III/mnist/4-layer-cnn/3/dp-psasc*"))
    example = cost_of(MeasuredNetwork("cnn4", 28)).example
    assert twice - plain == pytest.approx(20 * 60_000 * example)


def test_augmented_copies_take_as_many_gradients():
    run = run_of(DP_SGD, train__epochs=1)
    copies = run_of(DP_SGD, train__epochs=1, train__augment=["flip"], train__multiplicity=4)
    example = cost_of(MeasuredNetwork("small_cnn", 28)).example
    assert estimated_seconds(copies) - estimated_seconds(run) == pytest.approx(3 * 60_000 * example)


def test_the_large_network_is_extrapolated_by_layers_and_width():
    small, large = (
        cost_of(network_of(run_of(f"auto-clip/{table}/qnli/roberta-{size}/3/auto-s")))
        for table, size in (("2", "base"), ("3", "large"))
    )
    assert large.example / small.example == pytest.approx(24 * 1024**2 / (12 * 768**2))


def test_a_greedy_search_takes_many_runs():
    run = run_of(DP_SGD, train__epochs=5)
    one = GreedySearch(run.experiment, repeats=1)
    assert estimated_search_seconds(one) > 3 * estimated_seconds(run)
    again = GreedySearch(run.experiment, repeats=6)  # five more first epochs of five
    assert estimated_search_seconds(again) == pytest.approx(2 * estimated_search_seconds(one))


def test_what_was_not_measured_is_refused():
    with pytest.raises(ValueError, match=r"resnet9 at 28 by ghost: no cost was measured"):
        cost_of(MeasuredNetwork("resnet9", 28))
    with pytest.raises(ValueError, match=r"data = 'digits': "):
        network_of(SeededRun(Experiment(), 0))
