"""Auto DP-SGD as printed: it runs, and says that it protects nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.papers.auto_dp_sgd import auto_dp_sgd, auto_dp_sgd_as_printed

KEY = jax.random.key(0)
PARAMS = jnp.zeros(3)


def test_every_gradient_is_weighed_alike_and_one_that_is_not_finite_not_at_all():
    weights = auto_dp_sgd_as_printed(1.0, scale=0.4).weight(jnp.array([0.0, 1e-30, 3.0, jnp.inf]))
    np.testing.assert_allclose(weights, [0.4, 0.4, 0.4, 0.0])


def test_a_batch_of_zeros_is_released_without_noise():
    """What the audit finds: one canary among zeros is seen at once."""
    tx = auto_dp_sgd(1.0, steps_per_epoch=10, epochs=5).transformation(4, KEY)
    silent, _ = tx.update(jnp.zeros((4, 3)), tx.init(PARAMS), PARAMS)
    np.testing.assert_array_equal(silent, 0.0)
    heard, _ = tx.update(jnp.zeros((4, 3)).at[0].set(1.0), tx.init(PARAMS), PARAMS)
    assert np.all(np.asarray(heard) != 0.0)


def test_it_is_no_mechanism_and_nothing_accounts_for_it():
    release = auto_dp_sgd(1.0, steps_per_epoch=10, epochs=5)
    assert not isinstance(release, dpjax.Mechanism)
    assert not release.guarantee.private
    sampling = dpjax.sampling.Poisson.with_rate(0.1)
    for refused in (
        lambda: dpjax.privatize(release, 4, KEY),
        lambda: dpjax.epsilon(release, sampling, 10, 1e-5),
        lambda: dpjax.calibrate(release, sampling, 10, 1.0, 1e-5),
    ):
        with pytest.raises(TypeError, match=r"expected a dpjax\.Mechanism"):
            refused()


def test_its_noise_cannot_be_calibrated():
    with pytest.raises(ValueError, match=r"expected a number.*auto_dp_sgd_sound"):
        auto_dp_sgd(steps_per_epoch=10, epochs=5)


def test_the_average_sensitivity_is_the_mean_over_all_steps():
    """The paper's C: the mean of W |g_i| over examples and iterations."""
    release = auto_dp_sgd(1.0, steps_per_epoch=10, epochs=5, scale=0.5)
    tx = release.transformation(4, KEY)
    state, norms = tx.init(PARAMS), np.array([[3.0, 4.0, 0.0, 1.0], [2.0, 2.0, 2.0, 6.0]])
    for row in norms:
        rows = jnp.zeros((4, 3)).at[:, 1].set(row)
        _, state = tx.update(rows, state, PARAMS)
    average = release.diagnostics(state)["average_sensitivity"]
    np.testing.assert_allclose(average, 0.5 * norms.mean(), rtol=1e-5)
    assert np.isnan(state.released.threshold)  # a number of the data is not published
