"""Lower bounds and trade-off curves against the Gaussian mechanism's closed forms."""

import dp_accounting
import numpy as np
import pytest
from jax_privacy import auditing
from scipy import stats

from dpjax.audit.bounds import bound_of_draws, bound_of_one_run, claimed_tradeoff, measured_tradeoff

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


def lineup(count, seed, suspects=16, mu=1.0, cut=np.inf):
    """Scores of the largest coordinate, guessing which of 16 axes a Gaussian is moved along."""
    rng = np.random.default_rng(seed)
    zeros, ones = np.clip(rng.standard_normal((2, count, suspects // 2)), -cut, cut)
    which = np.arange(count) % suspects
    sign = np.where(which % 2, -1.0, 1.0)
    ones[np.arange(count), which // 2] += mu * sign
    places = np.argmax(np.abs(ones), axis=1)
    found = ones[np.arange(count), places]
    right = (places == which // 2) & (found * sign > 0)
    return np.where(right, np.abs(found), -np.inf), np.abs(zeros).max(1)


def test_naming_one_of_many_is_below_the_truth_and_shows_what_is_rare():
    truth = dp_accounting.get_epsilon_gaussian(1.0, DELTA)
    bounds = [bound_of_draws(*lineup(50_000, s), 0.95, DELTA, 16) for s in range(20)]
    assert sum(bound > truth for bound in bounds) <= 3
    assert np.median(bounds) > 0.6 * truth
    # Noise cut at four sigma: without names, as many draws cannot tell.
    claim = dp_accounting.get_epsilon_gaussian(1.0, 1e-4)
    scores = lineup(100_000, 0, cut=4.0)
    assert bound_of_draws(*scores, 0.999, 1e-4, 16) > claim
    assert bound_of_draws(*scores, 0.999, 1e-4) < claim


def test_a_wrong_name_never_counts():
    """Whatever threshold the choosing draws ask for, even one below every score."""
    low = (np.full(500, -9.0), np.full(500, -np.inf))
    rng = np.random.default_rng(0)
    zeros = rng.random(20_000)
    assert bound_of_draws(np.full(20_000, -np.inf), zeros, 0.99, 0.1, 16, choosing=low) == 0
    # Right as often as by chance, with scores as without the canary.
    ones = np.where(np.arange(20_000) % 16 == 0, rng.random(20_000), -np.inf)
    assert bound_of_draws(ones, zeros, 0.99, 1e-3, 16, choosing=(ones, zeros)) < 0.05


def test_scores_that_choose_are_not_counted():
    """Draws that choose the threshold may lie as they like: the bound still holds."""
    truth = dp_accounting.get_epsilon_gaussian(1.0, DELTA)
    for seed in range(20):
        lies = gaussian(6.0, 1000, seed)
        assert bound_of_draws(*gaussian(1.0, 20_000, seed), 0.999, DELTA, choosing=lies) < truth


def test_the_bound_is_near_jax_privacys():
    scores = gaussian(1.0, 50_000, 4)
    theirs = auditing.CanaryScoreAuditor(*scores).epsilon_clopper_pearson(
        0.05, DELTA, one_sided=False, threshold_strategy=auditing.Split(0.3, seed=0)
    )
    assert bound_of_draws(*scores, 0.95, DELTA) == pytest.approx(float(theirs), rel=0.15)


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
