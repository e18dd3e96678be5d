"""The numbers behind DC-SGD's figures 2 to 4."""

import numpy as np
import pytest

from dpjax.papers.figures.squared_error import (
    NoisyGradient,
    best_threshold,
    estimated_error,
    noisy_histogram,
    percentile_thresholds,
    picked_thresholds,
    squared_error,
)
from dpjax.thresholds import dc_sgd_e, dc_sgd_p

UNIFORM = (np.arange(20_000) + 0.5) / 20_000  # norms spread evenly over [0, 1]


def test_the_error_of_uniform_norms_has_a_closed_form():
    thresholds = np.array([0.0, 0.3, 0.8, 1.0, 2.0])
    error = squared_error(
        thresholds, UNIFORM, NoisyGradient(sigma=3.0, dimension=50, batch_size=20.0)
    )
    np.testing.assert_allclose(error.variance, 9 * 50 / 400 * thresholds**2)
    closed = np.maximum(1 - thresholds, 0) ** 3 / 3
    np.testing.assert_allclose(error.bias, closed, atol=1e-8)
    np.testing.assert_array_equal(error.total, error.variance + error.bias)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_the_best_threshold_of_uniform_norms_has_a_closed_form(scale):
    # scale C = (1 - C)^2 / 2
    closed = 1 + scale - np.sqrt((1 + scale) ** 2 - 1)
    found = best_threshold(UNIFORM, NoisyGradient(np.sqrt(scale), 100, 10.0))
    assert found == pytest.approx(closed, rel=1e-4)


def test_no_other_threshold_is_better():
    norms = np.random.default_rng(0).lognormal(0, 1.5, 50)
    release = NoisyGradient(1.3, 900, 64.0)
    best = best_threshold(norms, release)
    around = squared_error(best * np.array([0.99, 1.0, 1.01]), norms, release).total
    everywhere = squared_error(np.linspace(0, norms.max(), 4000), norms, release).total
    assert around.argmin() == 1
    assert around[1] <= everywhere.min()


def test_the_error_that_a_histogram_stands_for():
    # Middles 0.5, 1.5, 2.5; the negative bin is empty, but counts in the total of 2.
    found = estimated_error(
        np.array([1.0]), np.array([2.0, -1.0, 1.0]), 3.0, NoisyGradient(1, 16, 4.0)
    )
    assert found[0] == pytest.approx(1.0 + (2.5 - 1.0) ** 2 / 2)
    bins, _ = np.histogram(UNIFORM, 1000, (0.0, 1.0))
    exact = squared_error(np.array([0.2, 0.6]), UNIFORM, NoisyGradient(1, 1, 9.0)).total
    close = estimated_error(np.array([0.2, 0.6]), bins, 1.0, NoisyGradient(1, 1, 9.0))
    np.testing.assert_allclose(close, exact, rtol=1e-3)


def test_a_histogram_and_its_noise():
    # From R on, all norms are in the last bin.
    assert noisy_histogram(np.array([0.5, 1.5, 1.6, 9.0]), 2.0, 2, 0.0).tolist() == [1.0, 3.0]
    noise = noisy_histogram(np.ones(3), 1e4, 10_000, 4.0)[2:]
    assert noise.std() == pytest.approx(4.0, rel=0.05)
    assert abs(noise.mean()) < 0.2


def test_dc_sgd_e_picks_about_the_best():
    norms = np.random.default_rng(1).normal(100, 20, 256)
    release = NoisyGradient(1.0, 100_000, 256)
    picked = picked_thresholds(dc_sgd_e(), norms, release, sigma_h=5.0, steps=40)[-20:]
    best = best_threshold(norms, release)
    assert best == pytest.approx(39.5, abs=1.5)  # about mean / (1 + scale), the paper's figure 3
    assert np.median(picked) == pytest.approx(best, rel=0.15)
    assert picked.std() > 0  # the histogram has noise


def test_dc_sgd_p_picks_about_the_percentile():
    norms = np.random.default_rng(1).normal(100, 20, 1024)
    rule = dc_sgd_p(p=0.7, c0=50.0)
    picked = picked_thresholds(rule, norms, NoisyGradient(1.0, 10, 512), sigma_h=1.0, steps=30)[
        -10:
    ]
    assert picked.mean() == pytest.approx(np.quantile(norms, 0.7), rel=0.06)
    bins, edges = np.histogram(norms, 40, (0.0, 200.0))
    found = percentile_thresholds(np.array([0.1, 0.5, 0.9]), bins, 200.0)
    np.testing.assert_allclose(found, np.quantile(norms, (0.1, 0.5, 0.9)), atol=edges[1] / 2)


def test_fewer_norms_than_a_batch_are_refused():
    with pytest.raises(ValueError, match="3 norms: expected at least the batch's 4"):
        picked_thresholds(dc_sgd_e(), np.ones(3), NoisyGradient(1.0, 1, 4), 5.0, 1)
