"""The noise that really leaves `tx.update`: its scale, its shape, its independence."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import dpjax
from dpjax import methods, noise, rules, thresholds
from tests import registry
from tests.marks import some

B = 64.0
SHAPES = {"w": (150, 200), "b": (20_000,)}


def parameters(dtype=jnp.float32):
    return {name: jnp.zeros(shape, dtype) for name, shape in SHAPES.items()}


def empty_batch(params):
    return jax.tree.map(lambda p: jnp.zeros((1, *p.shape), p.dtype), params)


def flat_loss(params, x):
    """Has gradient zero everywhere."""
    return sum(jnp.sum(0 * leaf) for leaf in jax.tree.leaves(params)) + 0 * x


def pure_noise(method, steps=1, dtype=jnp.float32, seed=0):
    """Returns the updates of `steps` empty batches, as float64, and the state after them."""
    params = parameters(dtype)
    tx = method.transformation(B, jax.random.key(seed))
    state = tx.init(params)

    @jax.jit
    def update(state):
        grads_of = dpjax.per_example_grads(flat_loss, "vmap")
        return tx.update(grads_of(params, jnp.zeros(1), mask=jnp.zeros(1)), state, params)

    drawn = []
    for _ in range(steps):
        update_, state = update(state)
        drawn.append(jax.tree.map(lambda x: np.asarray(x, np.float64), update_))
    return drawn, state


def scale_is(sample, std):
    """Whether the sample's standard deviation is `std`, at five standard errors."""
    sample = np.ravel(sample)
    return abs(np.sqrt(np.mean(sample**2)) / std - 1) < 5 / np.sqrt(2 * sample.size)


def assert_scale(sample, std):
    """Accepts the right scale, and would have rejected one a tenth off on either side."""
    assert scale_is(sample, std)
    assert not scale_is(sample, 0.9 * std)
    assert not scale_is(sample, 1.1 * std)


MEMORYLESS = [
    name
    for name in registry.METHODS
    if name not in ("auto_dp_sgd", "adaclip", "psasc_momentum", "psasc_momentum_full_batch")
]


@pytest.mark.parametrize("name", MEMORYLESS)
def test_scale_per_leaf(name):
    check_scale(name, jnp.float32)


@pytest.mark.parametrize("name", some(MEMORYLESS, ["dp_sgd", "dc_sgd_e", "psasc"]))
def test_scale_per_leaf_in_half_precision(name):
    check_scale(name, jnp.float16)


def check_scale(name, dtype):
    method = registry.METHODS[name](1.3)
    (update,), state = pure_noise(method, dtype=dtype)
    std = float(state.released.sigma_gradient * state.released.bound) / B
    assert float(state.released.sigma) == pytest.approx(1.3)
    for leaf in update.values():
        assert_scale(leaf, std)


@pytest.mark.parametrize("groups", ["per_leaf", {"w": "x", "b": "y"}])
def test_scale_with_groups(groups):
    """A scalar C keeps its bound; a threshold per group adds in squares, on every coordinate."""
    for threshold, bound in ((2.0, 2.0), ((3.0, 4.0), 5.0)):
        method = dpjax.Mechanism(rules.abadi(), threshold, 0.7, groups=groups)
        (update,), _ = pure_noise(method)
        for leaf in update.values():
            assert_scale(leaf, 0.7 * bound / B)


def test_scale_of_psasc_is_threshold_over_s():
    (update,), _ = pure_noise(methods.psasc(1.0, r=0.1, s=0.5, threshold=3.0))
    assert_scale(update["w"], 3.0 / 0.5 / B)


def test_scale_of_adaclip_in_its_own_coordinates():
    """At the start s is constant, so b = s sqrt(d) in every coordinate."""
    method = methods.adaclip(1.0, h_floor=1e-6, h_ceiling=1e-2)
    (update,), _ = pure_noise(method)
    d = sum(int(np.prod(shape)) for shape in SHAPES.values())
    s = (1e-6 * 1e-2) ** 0.25
    for leaf in update.values():
        assert_scale(leaf, s * np.sqrt(d) / B)


def test_outer_momentum_adds_up_the_noise_of_its_steps():
    method = methods.psasc_momentum(1.0, gamma1=0.2, s=1.0)
    (first, second), _ = pure_noise(method, steps=2)
    assert_scale(first["w"], 1 / B)
    assert_scale(second["w"] - 0.8 * first["w"], 1 / B)


def test_noise_is_gaussian_in_float32_even_for_half_precision_gradients():
    """On the grid of sigma / 16, each cell as often as the Gaussian says."""
    params = {"w": jnp.zeros(200_000, jnp.bfloat16)}
    mechanism = dpjax.Mechanism(rules.abadi(), 1.0, 1.0)
    tx = dpjax.privatize(mechanism, 1, jax.random.key(0))
    state = tx.init(params)
    part = dpjax.clipped_sum(mechanism, empty_batch(params), state, mask=jnp.zeros(1))
    sample, _ = tx.update(part, state)  # without params, the release as it is before the last cast
    assert sample["w"].dtype == jnp.float32
    sample = np.float64(sample["w"])
    edges = np.concatenate([[-np.inf], (np.arange(-48, 48) + 0.5) / 16, [np.inf]])
    expected = np.diff(scipy.stats.norm.cdf(edges)) * sample.size
    counts, _ = np.histogram(sample, edges)
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-4
    coarse = np.float64(jnp.asarray(sample).astype(jnp.float8_e4m3fn))
    counts, _ = np.histogram(coarse, edges)  # what noise in few bits would give
    assert scipy.stats.chisquare(counts, expected).pvalue < 1e-9


def correlation(x, y):
    x, y = np.ravel(x)[:20_000], np.ravel(y)[:20_000]
    return np.corrcoef(x, y)[0, 1] * np.sqrt(x.size)


def test_no_correlation_across_leaves_steps_and_keys():
    drawn, _ = pure_noise(methods.dp_sgd(1.0), steps=3)
    other, _ = pure_noise(methods.dp_sgd(1.0), seed=1)
    again, _ = pure_noise(methods.dp_sgd(1.0))
    samples = [drawn[0]["w"], drawn[0]["b"], drawn[1]["w"], drawn[2]["w"], other[0]["w"]]
    for i, x in enumerate(samples):
        for y in samples[:i]:
            assert abs(correlation(x, y)) < 5
    assert correlation(drawn[0]["w"], again[0]["w"]) > 100  # the same key: the same noise


@pytest.mark.parametrize("size", [0.0, 1.0, 1000.3])
def test_the_grid_is_the_same_whatever_the_sum(size):
    """Each release, of gradient and statistic, is a multiple of the power of two below std / 16."""
    mechanism = dpjax.Mechanism(
        rules.abadi(), recorder(thresholds.quantile(target=0.5)), noise_multiplier=1.5
    )
    tx = dpjax.privatize(mechanism, 64, jax.random.key(0))
    rows = jnp.full((64, 400), size) * jnp.linspace(0, 1, 400)
    update, state = jax.jit(tx.update)(rows, tx.init(jnp.zeros(400)))
    for released, std in (
        (np.float64(update) * 64, float(state.released.sigma_gradient)),
        (np.float64(state.threshold.noisy), 64 / 20),
    ):
        unit = 2.0 ** np.floor(np.log2(std / 16))
        assert np.all(released / unit == np.round(released / unit))
        assert np.any(released / (2 * unit) != np.round(released / (2 * unit)))  # no coarser


class RecorderState(NamedTuple):
    inner: object
    noisy: jax.Array

    @property
    def threshold(self):
        return self.inner.threshold


@dataclass(frozen=True)
class recorder(thresholds.Threshold):
    """Adapts like `inner` and remembers the noisy sum it was given."""

    inner: thresholds.Threshold

    @property
    def sensitivity(self):
        return self.inner.sensitivity

    def sigma_statistic(self, sigma, expected_batch_size):
        return self.inner.sigma_statistic(sigma, expected_batch_size)

    def init(self):
        state = self.inner.init()
        return RecorderState(state, self.inner.statistic(jnp.ones(1), state)[0] * 0)

    def statistic(self, norms, state):
        return self.inner.statistic(norms, state.inner)

    def update(self, state, noisy_sum, context):
        return RecorderState(self.inner.update(state.inner, noisy_sum, context), noisy_sum)


@pytest.mark.parametrize("name", registry.THRESHOLDS)
def test_scale_of_the_statistic(name):
    threshold = registry.THRESHOLDS[name]
    mechanism = dpjax.Mechanism(rules.abadi(), recorder(threshold), 1.0)
    params = jnp.zeros(2)

    def noisy_statistic(key):
        tx = dpjax.privatize(mechanism, B, key)
        update, state = tx.update(jnp.zeros((1, 2)), tx.init(params), params, mask=jnp.zeros(1))
        return state.threshold.noisy, update

    keys = jax.random.split(jax.random.key(3), 20_000)
    statistic, gradient = jax.jit(jax.vmap(noisy_statistic))(keys)
    sigma_s = mechanism.sigma_statistic(B)
    for column in np.asarray(statistic, np.float64).T:
        assert_scale(column, sigma_s * threshold.sensitivity)
        assert abs(correlation(column, np.asarray(gradient)[:, 0])) < 5
    sigma_t = np.std(np.float64(gradient)) * B
    assert (sigma_t**-2 + sigma_s**-2) ** -0.5 == pytest.approx(1.0, rel=0.02)


def test_a_key_is_derived_once_however_often_it_is_used():
    """XLA's CPU compiler copies a scalar's arithmetic to each use: 20 rounds for each row here."""

    def used(key, rows):
        own = jax.random.key_data(noise.fold(noise.stream(key, "sampling"), 7))
        return [row[::-1] * own[0] + jnp.cumsum(row) * own[1] for row in rows]

    rows = [jnp.ones(n, jnp.uint32) for n in range(10, 16)]
    compiled = jax.jit(used).lower(jax.random.key(0), rows).compile()
    assert compiled.as_text().count(" xor(") <= 40  # the rounds of two derivations


@pytest.mark.parametrize("number", [0, 7, 2**32 - 1])
def test_fold_is_jaxs_also_under_jit_and_vmap(number):
    keys = jax.random.split(jax.random.key(3), 4)
    expected = jax.random.key_data(jax.vmap(lambda key: jax.random.fold_in(key, number))(keys))
    under_vmap = jax.vmap(lambda key: noise.fold(key, number))(keys)
    under_jit = [jax.jit(noise.fold)(key, jnp.uint32(number)) for key in keys]
    assert np.array_equal(jax.random.key_data(under_vmap), expected)
    assert np.array_equal(np.stack([jax.random.key_data(key) for key in under_jit]), expected)


def test_named_streams_differ():
    root = jax.random.key(0)
    names = ["noise/gradient", "noise/statistic", "sampling", "init", "dropout"]
    keys = {tuple(np.asarray(jax.random.key_data(noise.stream(root, n)))) for n in names}
    assert len(keys) == len(names)


@pytest.mark.parametrize("bad", [None, 0, 1.5, "seed", np.zeros(3)])
def test_a_missing_key_is_an_error(bad):
    with pytest.raises(TypeError, match="expected a JAX random key"):
        dpjax.privatize(dpjax.Mechanism(rules.abadi(), 1.0, 1.0), 8, bad)


def test_only_threefry():
    mechanism = dpjax.Mechanism(rules.abadi(), 1.0, 1.0)
    with pytest.raises(ValueError, match="threefry2x32"):
        dpjax.privatize(mechanism, 8, jax.random.key(0, impl="rbg"))
    old_style = dpjax.privatize(mechanism, 8, jax.random.PRNGKey(7)).init(jnp.zeros(2))
    assert old_style.key == jax.random.key(7)


def test_as_printed_auto_dp_sgd_adds_no_noise_to_a_batch_of_zeros():
    """Why it is not private: its noise follows the data's own norms."""
    (update,), _ = pure_noise(registry.METHODS["auto_dp_sgd"](1.0))
    assert not np.any(update["w"])
