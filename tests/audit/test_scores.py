"""Scores against closed forms: Fisher's direction, and the likelihood ratio of Gaussians."""

import numpy as np
import pytest
from scipy import stats

from dpjax.audit.scores import LargestCoordinate, NearestAtom, by_mean, by_spread

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


AXES = np.concatenate([np.eye(4), -np.eye(4)])
SCALE, CENTRE = np.array([1.0, 2.0, 0.5, 1.0]), np.array([0.0, 3.0, -1.0, 0.0])


def guesses(fit):
    """A guess fitted to four coordinates of unlike scales, each canary one deviation long."""
    without = CENTRE + SCALE * RNG.standard_normal((40_000, 4))
    with_each = CENTRE + SCALE * (AXES + RNG.standard_normal((5_000, 8, 4)))
    return fit(without, with_each)


def test_the_nearest_atom_is_named_by_its_distance():
    guess = guesses(NearestAtom.fit)
    names, scores = guess(CENTRE + SCALE * AXES)
    assert names.tolist() == list(range(8))
    np.testing.assert_allclose(scores, 0, atol=0.1)
    names, scores = guess(CENTRE + SCALE * 1.5 * AXES)
    np.testing.assert_allclose(scores, -0.5, atol=0.1)


def test_the_largest_coordinate_is_named_by_its_deviations():
    guess = guesses(LargestCoordinate.fit)
    far = np.diag([5.0, -6.0, 7.0, -8.0]) + 0.5
    names, scores = guess(CENTRE + SCALE * far)
    assert names.tolist() == [0, 5, 2, 7]
    np.testing.assert_allclose(scores, [5.5, 5.5, 7.5, 7.5], rtol=0.03)


def test_deviations_that_differ_by_chance_are_one():
    noise = RNG.standard_normal((30_000, 8)) * np.repeat([1.0, 1.5], [6, 2])
    scale = LargestCoordinate.fit(noise, noise[:, None]).scale
    assert len(set(scale[:6])) == 1
    np.testing.assert_allclose(scale, np.repeat([1.0, 1.5], [6, 2]), rtol=0.02)


@pytest.mark.parametrize("fit", [NearestAtom.fit, LargestCoordinate.fit])
def test_guesses_survive_what_is_not_finite(fit):
    releases = np.array([[np.nan] * 4, [np.inf, 0, 0, 0], [0, 1e300, 0, 0]])
    names, scores = guesses(fit)(releases)
    assert ((names >= 0) & (names < 8)).all()
    assert np.isfinite(scores).all()
    fit(np.full((10, 4), np.nan), np.full((10, 8, 4), np.nan))
