"""Lower bounds and trade-off curves against the Gaussian mechanism's closed forms."""

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from dpjax.audit.bounds import bound_of_draws, bound_of_one_run
from dpjax.audit.tradeoff import claimed_tradeoff, measured_tradeoff

DELTA = 1e-3


def gaussian(mu, count, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(count) + mu, rng.standard_normal(count)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_bound_is_below_the_truth_and_near_it(mu):
    truth = dp_accounting.get_epsilon_gaussian(1 / mu, DELTA)
    bounds = [bound_of_draws(*gaussian(mu, 50_000, seed), 0.95, DELTA) for seed in range(20)]
    assert sum(bound > truth for bound in bounds) <= 3  # one is expected at most
    assert np.median(bounds) > 0.6 * truth


def test_worlds_may_be_exchanged():
    ones, zeros = gaussian(1.5, 50_000, 0)
    turned = bound_of_draws(-zeros, -ones, 0.95, DELTA)
    assert turned == pytest.approx(bound_of_draws(ones, zeros, 0.95, DELTA), rel=0.3)


def test_no_difference_gives_no_bound():
    assert bound_of_draws(*gaussian(0.0, 50_000, 1), 0.95, DELTA) < 0.05
    assert bound_of_one_run(*gaussian(0.0, 500, 1), 0.95, 1e-5) < 0.3


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_one_run_against_randomised_response(epsilon):
    """Scores that are right with probability e^eps / (1 + e^eps) are exactly eps-DP."""
    right = 1 / (1 + np.exp(-epsilon))
    bounds = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ones = np.where(rng.random(1000) < right, 1.0, -1.0)
        zeros = np.where(rng.random(1000) < right, -1.0, 1.0)
        bounds.append(bound_of_one_run(ones, zeros, 0.95, 1e-6))
    assert sum(bound > epsilon for bound in bounds) <= 3
    assert np.median(bounds) > 0.8 * epsilon
    assert np.median(bounds) > 0.9 * epsilon / 2  # twice the claim would be found


def test_the_claimed_curve_is_the_gaussian_one():
    deltas = np.geomspace(1e-7, 0.38, 60)
    claims = [(dp_accounting.get_epsilon_gaussian(1.0, delta), delta) for delta in deltas]
    x = np.linspace(0.001, 0.999, 50)
    exact = stats.norm.cdf(stats.norm.isf(x) - 1.0)
    found = claimed_tradeoff(claims, x)
    assert (found <= exact + 1e-9).all()
    np.testing.assert_allclose(found, exact, atol=0.005)


def test_the_measured_curve_is_that_of_its_scores():
    ones, zeros = gaussian(1.0, 100_000, 3)
    positive, negative = measured_tradeoff(ones, zeros)
    exact = stats.norm.cdf(stats.norm.isf(positive) - 1.0)
    np.testing.assert_allclose(negative, exact, atol=0.01)
