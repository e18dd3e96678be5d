"""Adaptive thresholds come back from anything: empty batches, NaN batches, a thousand bad draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import rules
from dpjax.thresholds import ThresholdContext
from tests import registry
from tests.marks import some
from tests.oracles import thresholds as oracle

B, D, SIGMA = 512, 5000, 1.0
FEW = ("quantile", "dc_sgd_e")  # `test_long_streams` has all of them by default
NORMS = np.random.default_rng(0).lognormal(mean=1.0, sigma=0.5, size=B)


def noise_free_fixed_point(name):
    """Iterates the float64 oracle without noise on the same norms, far from where dpjax starts."""
    c, upper = 5.0, 20.0
    sigma_t = oracle.sigma_gradient(SIGMA, oracle.sigma_h(SIGMA))
    path = []
    for _ in range(600):
        if name == "quantile":
            total = oracle.quantile_statistic(NORMS, c).sum(0)
            c = oracle.quantile_update(c, total, B, 0.5, 0.2, 1e-8, 1e8)
        elif name == "dc_sgd_p":
            total = oracle.histogram_statistic(NORMS, upper, 20).sum(0)
            c, upper = oracle.dc_sgd_p_update(c, upper, total, 0.5)
        elif name.startswith("dc_sgd_e"):
            total = oracle.histogram_statistic(NORMS, upper, 20).sum(0)
            c, upper = oracle.dc_sgd_e_update(c, upper, total, sigma_t, D, B)
        elif name == "private_mean":
            total = oracle.private_mean_statistic(NORMS, c, 2.0).sum(0)
            c = oracle.private_mean_update(c, total, B, 1.0, 2.0, 1e-8, 1e8)
        else:
            total = oracle.global_z_statistic(NORMS, c, 1.0).sum(0)
            c = oracle.global_z_update(c, total, B, 0.1, 1e-8, 1e8)
        path.append(c)
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
