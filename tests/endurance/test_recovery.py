"""Adaptive thresholds come back from anything: empty batches, NaN batches, a thousand bad draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import rules
from dpjax.thresholds import ThresholdContext
from tests import registry
from tests.endurance import streams
from tests.marks import some
from tests.oracles import thresholds as oracle

B, D, SIGMA = streams.B, streams.D, streams.SIGMA
FEW = ("quantile", "dc_sgd_e")  # `test_long_streams` has all of them by default
NORMS = np.random.default_rng(0).lognormal(mean=1.0, sigma=0.5, size=B)


def noise_free_fixed_point(name):
    """Iterates the float64 oracle without noise on the same norms, far from where dpjax starts."""
    path = streams.oracle_path(name, 5.0, 20.0, 600, NORMS)
    return float(np.mean(path[-100:]))


def phases(threshold, sigma_s):
    """Returns a jitted function from a key to the thresholds of every phase."""
    context = ThresholdContext(B, D, oracle.sigma_gradient(SIGMA, sigma_s), sigma_s)

    def run(key, state, steps, norms, noise_scale):
        def step(state, k):
            statistic = threshold.statistic(norms, state)
            noise = jax.random.normal(k, statistic.shape[1:]) * threshold.sensitivity * noise_scale
            state = threshold.update(state, jnp.sum(statistic, 0) + noise, context)
            return state, state.threshold

        return jax.lax.scan(step, state, jax.random.split(key, steps))

    @jax.jit
    def everything(key):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        state = threshold.init()
        state, empty = run(k1, state, 100, jnp.zeros(0), sigma_s)
        state, nan = run(k2, state, 100, jnp.full(B, jnp.inf), sigma_s)
        state, wild = run(k3, state, 1000, jnp.asarray(NORMS, jnp.float32), 1e5)
        _, clean = run(k4, state, 300, jnp.asarray(NORMS, jnp.float32), sigma_s)
        return empty, nan, wild, clean

    return everything


@pytest.mark.parametrize("name", some(registry.THRESHOLDS, FEW))
def test_recovers(name):
    threshold = registry.THRESHOLDS[name]
    run = phases(threshold, threshold.sigma_statistic(SIGMA, B))
    target = noise_free_fixed_point(name)
    for seed in range(3):
        empty, nan, wild, clean = run(jax.random.key(seed))
        for path in (empty, nan, wild, clean):
            assert np.all(np.isfinite(path))
            assert np.all((np.asarray(path) >= 0.99e-8) & (np.asarray(path) <= 1.01e8))
        assert float(clean[-1]) == pytest.approx(target, rel=0.25), (seed, target)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.THRESHOLDS)
def test_recovers_from_two_hundred_seeds(name):
    """The share of seeds within 25% of the fixed point, and none that is lost for good."""
    threshold = registry.THRESHOLDS[name]
    run = jax.vmap(phases(threshold, threshold.sigma_statistic(SIGMA, B)))
    *_, clean = run(jax.random.split(jax.random.key(7), 200))
    ratio = np.asarray(clean)[:, -1] / noise_free_fixed_point(name)
    assert np.mean(np.abs(np.log(ratio)) < np.log(1.25)) > 0.95
    assert np.all((ratio > 0.2) & (ratio < 5))


@pytest.mark.parametrize("name", some(registry.THRESHOLDS, FEW))
def test_the_recovery_test_can_fail(name):
    """Where the wild phase ends is nowhere near: without clean steps the test above rejects."""
    threshold = registry.THRESHOLDS[name]
    _, _, wild, _ = phases(threshold, threshold.sigma_statistic(SIGMA, B))(jax.random.key(0))
    off = np.abs(np.log(np.asarray(wild) / noise_free_fixed_point(name))) > np.log(1.25)
    assert np.mean(off) > 0.5


@pytest.mark.parametrize("name", some(registry.THRESHOLDS, FEW))
def test_through_privatize_with_empty_and_nan_batches(name):
    """The released gradient of such batches is finite noise, and the state stays finite."""
    mechanism = dpjax.Mechanism(rules.abadi(), registry.THRESHOLDS[name], SIGMA)
    tx = dpjax.privatize(mechanism, B, jax.random.key(0))
    params = jnp.zeros(3)
    rows = jnp.full((4, 3), jnp.nan)

    @jax.jit
    def run(state):
        def step(state, mask):
            update, state = tx.update(rows, state, params, mask=mask)
            return state, (update, state.threshold.threshold)

        masks = jnp.concatenate([jnp.zeros((30, 4)), jnp.ones((30, 4))])
        return jax.lax.scan(step, state, masks)[1]

    updates, thresholds = run(tx.init(params))
    assert np.all(np.isfinite(updates))
    assert np.all(np.isfinite(thresholds))
    assert np.all(np.asarray(thresholds) > 0)
