"""Every adaptive threshold against the float64 oracle, and Andrew's against published numbers."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import Mechanism, noise, privatize, rules, thresholds
from dpjax.thresholds import Threshold, ThresholdContext
from tests.oracles import thresholds as oracle
from tests.oracles import trajectories

FLOAT32 = 1e-5
STATES = ((1.0, 20.0), (0.03, 0.06), (7.0, 3.0), (250.0, 160.0), (1e-5, 1.0))
FLOOR, CEILING = 1e-3, 1e3
SETTINGS = ([0.05, 0.6, 3.0], [10, 2000, 26010], [16.0, 256.0])  # sigma_T, d, B
RNG_NORMS = np.random.default_rng(5).lognormal(0.0, 3.0, 2000)


def away_from(norms: np.ndarray, edge: float) -> np.ndarray:
    """Norms off an edge, where float32 and float64 might fall on different sides."""
    return norms[np.abs(norms / edge - 1) > 1e-5].astype(np.float32)


def at(rule: Threshold, c: Any, upper: Any = None) -> Any:
    """The rule's state with this threshold, and this range if it has one."""
    found = {"threshold": c} if upper is None else {"threshold": c, "range": upper}
    return rule.init()._replace(**{name: jnp.asarray(v, jnp.float32) for name, v in found.items()})


def context(b: Any = 64.0, d: Any = 10, sigma_t: Any = 1.0, sigma_s: float = 5.0) -> Any:
    return ThresholdContext(b, d, sigma_t, sigma_s)


@pytest.mark.parametrize(("c", "upper"), STATES)
def test_statistics_follow_the_oracle(c: float, upper: float) -> None:
    every = np.concatenate([RNG_NORMS, [0.0, 1e20, np.inf]])
    bits = away_from(every, c)
    rule: Threshold = thresholds.quantile(target=0.3)
    got = rule.statistic(jnp.asarray(bits), at(rule, c))
    np.testing.assert_array_equal(got, oracle.quantile_statistic(bits, c))
    for tau in (1.0, 0.4):
        bits = away_from(every, tau * c)
        rule = thresholds.global_z(tau=tau)
        got = rule.statistic(jnp.asarray(bits), at(rule, c))
        np.testing.assert_array_equal(got, oracle.global_z_statistic(bits, c, tau))
    norms = every.astype(np.float32)
    for alpha, kappa in ((1.0, 2.0), (0.5, 3.5)):
        rule = thresholds.private_mean(alpha=alpha, kappa=kappa)
        got = rule.statistic(jnp.asarray(norms), at(rule, c))
        np.testing.assert_allclose(got, oracle.private_mean_statistic(norms, c, kappa), 1e-6)
    for bins in (20, 7):
        place = np.minimum(every * bins / upper, bins + 0.5)
        keep = (np.abs(place - np.round(place)) > 1e-4 * place) | (every == 0)
        norms = every[keep].astype(np.float32)
        want = oracle.histogram_statistic(norms, upper, bins)
        for rule in (thresholds.dc_sgd_p(p=0.5, bins=bins), thresholds.dc_sgd_e(bins=bins)):
            got = rule.statistic(jnp.asarray(norms), at(rule, c, upper))
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        (thresholds.quantile(target=0.5), [-0.5]),
        (thresholds.dc_sgd_p(p=0.5, bins=3), [0, 0, 1]),
        (thresholds.dc_sgd_e(bins=3), [0, 0, 1]),
        (thresholds.global_z(), [0.5]),
        (thresholds.private_mean(), [1.0]),
    ],
)
def test_a_norm_that_is_nan_counts_as_infinite(rule: Threshold, want: list) -> None:
    assert rule.statistic(jnp.array([jnp.nan, jnp.inf]), rule.init()).tolist() == [want] * 2


@pytest.mark.parametrize("b", [1.0, 64.0])
@pytest.mark.parametrize("c", [1.0, 0.03, 250.0, 1e-3, 1e3])
def test_scalar_updates_follow_the_oracle(c: float, b: float) -> None:
    sums = np.concatenate([np.random.default_rng(1).normal(0, b, 60), [0.0, -9 * b, 9 * b]])
    noisy = jnp.asarray(sums.astype(np.float32))[:, None]

    def updated(rule: Threshold) -> jax.Array:
        return jax.vmap(lambda n: rule.update(at(rule, c), n, context(b)).threshold)(noisy)

    for target, lr in ((0.5, 0.2), (0.9, 1.5)):
        rule: Threshold = thresholds.quantile(target, lr, floor=FLOOR, ceiling=CEILING)
        got = updated(rule)
        want = [oracle.quantile_update(c, s, b, target, lr, FLOOR, CEILING) for s in sums]
        np.testing.assert_allclose(got, want, FLOAT32)
    for eta in (0.1, 0.7):
        rule = thresholds.global_z(eta=eta, floor=FLOOR, ceiling=CEILING)
        got = updated(rule)
        want = [oracle.global_z_update(c, s, b, eta, FLOOR, CEILING) for s in sums]
        np.testing.assert_allclose(got, want, FLOAT32)
    for alpha, kappa in ((1.0, 2.0), (0.5, 3.5)):
        rule = thresholds.private_mean(alpha, kappa, floor=FLOOR, ceiling=CEILING)
        got = updated(rule)
        want = [oracle.private_mean_update(c, s, b, alpha, kappa, FLOOR, CEILING) for s in sums]
        np.testing.assert_allclose(got, want, FLOAT32)


def histograms(seed: int, bins: int, sigma_h: float) -> np.ndarray:
    """Noisy histograms of many shapes: full, thin, in one bin, empty; most hold negative bins."""
    rng = np.random.default_rng(seed)
    size = rng.choice([0, 8, 64, 256, 2000], 150)
    shape = rng.dirichlet(np.full(bins, 0.3), 150)
    shape[:30] = np.eye(bins)[rng.integers(0, bins, 30)]
    counts = np.stack([rng.multinomial(n, p) for n, p in zip(size, shape, strict=True)])
    noisy = counts + sigma_h * rng.standard_normal(counts.shape)
    noisy = np.concatenate([noisy, np.zeros((1, bins)), np.full((1, bins), -3.0)])
    return noisy.astype(np.float32).astype(np.float64)


def settled(update: Any, inputs: list, shaken: list[np.ndarray]) -> tuple[float, float]:
    """The oracle's (C, R) where no rounding changes it; NaN at ties and on edges."""
    want = update(*inputs)
    return want if all(update(h, *inputs[1:]) == want for h in shaken) else (np.nan, np.nan)


@pytest.mark.parametrize(("p", "bins"), [(0.1, 20), (0.5, 7), (0.9, 20)])
def test_dc_sgd_p_follows_the_oracle(p: float, bins: int) -> None:
    rule = thresholds.dc_sgd_p(p=p, bins=bins)
    hists = histograms(11, bins, 5.0)
    assert (hists.sum(axis=1) <= 0).any()
    assert (hists.min(axis=1) < 0).mean() > 0.8
    update = jax.jit(jax.vmap(lambda h, s: rule.update(s, h, context()), (0, None)))
    shake = 1 + 1e-5 * np.random.default_rng(14).standard_normal((2, bins))
    for c, upper in STATES:
        got = np.stack(update(hists, at(rule, c, upper)), axis=1)
        truth = partial(oracle.dc_sgd_p_update, c, upper, p=p)
        want = np.array([settled(truth, [h], list(h * shake)) for h in hists])
        kept = ~np.isnan(want[:, 0])
        assert kept.mean() > 0.97
        np.testing.assert_allclose(got[kept], want[kept], FLOAT32)


@pytest.mark.parametrize(("bins", "sigma_h"), [(20, 5.0), (7, 12.0)])
@pytest.mark.parametrize("negative", ["nonneg", "raw", "threshold"])
def test_dc_sgd_e_follows_the_oracle(negative: str, bins: int, sigma_h: float) -> None:
    rule = thresholds.dc_sgd_e(negative=negative, bins=bins)
    hists = histograms(12, bins, sigma_h)
    rng = np.random.default_rng(13)
    settings = np.stack([rng.choice(v, len(hists)) for v in SETTINGS], axis=1)

    @jax.jit
    @partial(jax.vmap, in_axes=(0, 0, None))
    def update(hist: Any, setting: Any, state: Any) -> Any:
        sigma_t, d, b = setting
        return rule.update(state, hist, context(b, d, sigma_t, sigma_h))

    shake = 1 + 2e-5 * rng.standard_normal((2, bins))
    for c, upper in STATES:
        got = np.stack(update(hists, settings, at(rule, c, upper)), axis=1)
        truth = partial(oracle.dc_sgd_e_update, c, upper, negative=negative, sigma_h=sigma_h)
        pairs = zip(hists, settings, strict=True)
        want = np.array([settled(truth, [h, *s], list(h * shake)) for h, s in pairs])
        kept = want[:, 0] > 0  # ties are NaN
        assert kept.mean() > 0.9
        np.testing.assert_allclose(got[kept], want[kept], FLOAT32)


@pytest.mark.parametrize("negative", ["nonneg", "raw"])
@pytest.mark.parametrize("c", [1e-8, 1e-7, 1e-6])
def test_dc_sgd_e_recovers_from_a_vanishing_threshold(c: float, negative: str) -> None:
    rule, upper = thresholds.dc_sgd_e(negative=negative), 20.0
    norms = np.random.default_rng(2).lognormal(1.0, 0.4, 256)
    hist = oracle.histogram_statistic(norms, upper, 20).sum(axis=0)
    noisy = jnp.asarray(hist, jnp.float32)
    got = rule.update(at(rule, c, upper), noisy, context(256.0, 26010, 1.0))
    want = oracle.dc_sgd_e_update(c, upper, hist, 1.0, 26010, 256.0, negative)
    assert want[0] > 1
    np.testing.assert_allclose((got.threshold, got.range), want, FLOAT32)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 1.99, 2.0, 3.0, 3.01, 4.5])
def test_the_split_of_sigma_follows_the_oracle(sigma: float) -> None:
    for rule in (thresholds.dc_sgd_p(p=0.5), thresholds.dc_sgd_e()):
        sigma_s = rule.sigma_statistic(sigma, None)
        assert sigma_s == oracle.sigma_h(sigma)
        got = float(noise.sigma_gradient(sigma, sigma_s))
        assert got == pytest.approx(oracle.sigma_gradient(sigma, sigma_s), rel=FLOAT32)
    for bits in (thresholds.quantile(target=0.5), thresholds.global_z()):
        assert bits.sigma_statistic(sigma, 256) == 2 * 256 / 20  # sensitivity 1/2
    assert thresholds.private_mean().sigma_statistic(sigma, 256) == 256 / 20


def followed(norms: np.ndarray, c0: float, target: float, rates: Any) -> list[float]:
    """Andrew's noise-free trajectory in the library, the same norms every step."""
    state, out = at(thresholds.quantile(target), c0), []
    for rate in rates:
        rule = thresholds.quantile(target, float(rate))
        total = rule.statistic(jnp.asarray(norms, jnp.float32), state).sum(axis=0)
        state = rule.update(state, total, context(b=float(len(norms))))
        out.append(float(state.threshold))
    return out


@pytest.mark.parametrize("published", trajectories.TF_PRIVACY_GEOMETRIC)
def test_andrew_follows_tensorflow_privacy(published: trajectories.PublishedTrajectory) -> None:
    """Through `privatize`: thresholds and clipped sums. Targets 0 and 1 are approached."""
    target = min(max(published.target, 1e-9), 1 - 1e-9)
    rule = thresholds.quantile(target, published.lr, published.c0, sigma_b=1e-20)
    tx = privatize(Mechanism(rules.abadi(), rule, 0.0), 2, jax.random.key(0))
    grads, params = jnp.array(published.gradients, jnp.float32)[:, None], jnp.zeros(1)
    state = tx.init(params)
    for c, total in zip(published.thresholds, published.clipped_sums, strict=True):
        update, state = tx.update(grads, state, params)
        assert 2 * float(update[0]) == pytest.approx(total, rel=FLOAT32, abs=3e-5)
        assert float(state.threshold.threshold) == pytest.approx(c, rel=FLOAT32)


@pytest.mark.parametrize("published", trajectories.TF_PRIVACY_CONVERGENCE)
def test_andrew_converges_as_published(published: trajectories.PublishedConvergence) -> None:
    for start in published.starts:
        path = followed(np.array(published.norms), start, published.target, published.lr)
        off = np.abs(np.array(path[published.first :]) - published.limit)
        assert off.max() <= published.tolerance


@pytest.mark.parametrize("published", trajectories.PFL_UPDATES)
def test_andrew_updates_as_pfl_research(published: trajectories.PublishedUpdate) -> None:
    rule = thresholds.quantile(published.target, published.lr)
    noisy = jnp.array([(published.fraction - 0.5) * 100])
    state = rule.update(at(rule, published.c), noisy, context(b=100.0))
    assert float(state.threshold) == pytest.approx(published.expected, rel=1e-6)


def test_andrew_follows_the_oracles_trajectory() -> None:
    norms = np.random.default_rng(3).lognormal(1.0, 1.0, 50)
    want = trajectories.quantile_trajectory([norms] * 30, 0.7, 0.8, 0.3)
    np.testing.assert_allclose(followed(norms, 0.7, 0.8, [0.3] * 30), want, FLOAT32)


@pytest.mark.parametrize(("c0", "value"), [(1.0, 5.3), (0.2, 1.7), (9.0, 2.3), (40.0, 0.9)])
@pytest.mark.parametrize(("target", "lr"), [(0.5, 0.2), (0.9, 0.35)])
def test_andrew_crosses_when_the_oracle_says(
    c0: float, value: float, target: float, lr: float
) -> None:
    rounds = trajectories.rounds_to_cross(c0, value, target, lr)
    path = [c0, *followed(np.full(4, value), c0, target, [lr] * rounds)]
    below = [c < value for c in path]
    assert below == [c0 < value] * rounds + [c0 >= value]
