"""Scores against closed forms: Fisher's direction, and the likelihood ratio of Gaussians."""

import numpy as np
import pytest
from scipy import stats

from dpjax.audit.scores import by_mean, by_spread

RNG = np.random.default_rng(0)
MIX = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.5, 2.0]])
SHIFT = np.array([0.5, -0.2, 1.0])


def worlds(count=40_000):
    zeros = RNG.standard_normal((count, 3)) @ MIX.T
    return zeros, RNG.standard_normal((count, 3)) @ MIX.T + SHIFT


def test_the_score_by_means_is_fishers():
    score = by_mean(*worlds())
    expected = np.linalg.solve(MIX @ MIX.T, SHIFT)
    np.testing.assert_allclose(score.linear, expected, atol=0.05)
    zeros, ones = worlds()
    separation = (score(ones).mean() - score(zeros).mean()) / score(zeros).std()
    assert separation == pytest.approx(np.sqrt(SHIFT @ expected), abs=0.03)


def test_noise_that_cancels_is_seen():
    """Two coordinates share their noise: their difference is bare."""
    noise = RNG.standard_normal((2_000, 1))
    zeros, ones = np.hstack([noise, noise]), np.hstack([noise + 0.01, noise - 0.01])
    score = by_mean(zeros, ones)
    assert score(ones).min() > score(zeros).max()


def test_the_score_by_spread_is_the_likelihood_ratio():
    zeros = RNG.normal([0.0, 1.0], [1.0, 2.0], (40_000, 2))
    ones = RNG.normal([0.3, 1.0], [1.0, 0.5], (40_000, 2))
    x = RNG.normal(0, 2, (50, 2))
    expected = stats.norm.logpdf(x, [0.3, 1.0], [1.0, 0.5]).sum(1)
    expected -= stats.norm.logpdf(x, [0.0, 1.0], [1.0, 2.0]).sum(1)
    found = by_spread(zeros, ones)(x)
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1.0, rtol=0.1)


@pytest.mark.parametrize("fit", [by_mean, by_spread])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_evidence(fit, value):
    zeros, ones = RNG.standard_normal((2, 500, 3))
    with_value = ones.copy()
    with_value[:, 1] = value
    score = fit(zeros, with_value)
    assert score(with_value).min() > score(zeros).max()
    assert fit(with_value, zeros)(zeros).min() > fit(with_value, zeros)(with_value).max()


@pytest.mark.parametrize("fit", [by_mean, by_spread])
def test_worlds_without_any_noise(fit):
    zeros, ones = np.zeros((200, 3)), np.tile([0.0, 1e-3, 0.0], (200, 1))
    score = fit(zeros, ones)
    assert score(ones).min() > score(zeros).max()
    assert np.isfinite(fit(zeros, zeros)(ones)).all()
