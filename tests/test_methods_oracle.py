"""Whole steps of every method against the float64 oracle, with the same draws on both sides."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from dpjax import methods, per_example_grads, schedules
from tests.oracles import methods as oracle
from tests.oracles import noise as random
from tests.oracles import schedules as curves
from tests.registry import METHODS
from tests.stepping import (
    FLOAT32,
    LEAVES,
    ROWS,
    D,
    Stepper,
    at_step,
    batch,
    close,
    flat_of,
    quadratic,
    stepper,
    tree_of,
)

SIGMA, B = 0.9, 60.0
KEY = jax.random.key(0)
Curve = Callable[[int], float]
Patch = pytest.MonkeyPatch


def always(value: float) -> Curve:
    return lambda t: value


# Per method: the rule, its parameters, C_t and sigma_t. An epoch has 10 steps.
FIXED: dict[str, tuple[str, dict[str, float], Curve, Curve]] = {
    "dp_sgd": ("abadi", {}, always(1.0), always(SIGMA)),
    "auto_v": ("auto_v", {}, always(1.0), always(SIGMA)),
    "auto_s": ("auto_s", {"gamma": 0.01}, always(1.0), always(SIGMA)),
    "psac": ("psac", {"r": 0.01}, always(1.0), always(SIGMA)),
    "psasc": ("psasc", {"r": 0.01, "s": 0.9}, always(1.0), always(SIGMA)),
    "global_": ("global_clip", {"z": 3.0}, always(1.0), always(SIGMA)),
    "yu": ("abadi", {}, lambda t: curves.yu_linear(t, 1.0, 100), always(SIGMA)),
    "du": (
        *("abadi", {}, lambda t: curves.du_decay(t, 1.0, 0.5, 100)),
        lambda t: curves.du_noise(t, SIGMA, 2.0, 100),
    ),
    "lin_decay": ("abadi", {}, lambda t: curves.power_decay(t, 1.0, 0.5, 1, 10), always(SIGMA)),
    "lin_transfer": ("abadi", {}, lambda t: curves.table(t, (1.0, 0.8), 1, 10), always(SIGMA)),
    "zhang_adaptive": (
        *("abadi", {}, always(1.0)),
        lambda t: curves.geometric(t, SIGMA, 0.99, 1, 10),
    ),
}

LIMITS = {"floor": 1e-8, "ceiling": 1e8}
QUANTILE = {"target": 0.5, "lr": 0.2, **LIMITS}
MEAN = {"alpha": 1.0, "kappa": 2.0, **LIMITS}
GLOBAL = {"tau": 1.0, "eta": 0.1, **LIMITS}
# Per method: the threshold, its parameters, its first state, the size of its statistic, sigma_S.
ADAPTIVE: dict[str, tuple[str, dict[str, Any], dict[str, float], int, float]] = {
    "andrew": ("quantile", QUANTILE, {"c": 1.0}, 1, 2 * B / 20),
    "dc_sgd_p": ("dc_sgd_p", {"p": 0.5, "bins": 20}, {"c": 1.0, "R": 2.0}, 20, 5.0),
    "dc_sgd_e": ("dc_sgd_e", {"bins": 20}, {"c": 1.0, "R": 20.0}, 20, 5.0),
    "van_der_veen": ("private_mean", MEAN, {"c": 1.0}, 1, B / 20),
    "global_adapt": ("global_z", GLOBAL, {"c": 1.0}, 1, 2 * B / 20),
    "auto_dp_sgd_sound": ("private_mean", MEAN, {"c": 1.0}, 1, B / 20),
}
OTHERS = {"psasc_momentum", "psasc_momentum_full_batch", "adaclip", "auto_dp_sgd"}


def auto_dp_sigma(t: int) -> float:
    return curves.step_decay(t, SIGMA, 0.5, 10, 1, 10)


def test_every_method_has_its_oracle() -> None:
    assert {*FIXED, *ADAPTIVE, *OTHERS} == set(METHODS)
    assert flat_of(tree_of(np.arange(D))).tolist() == list(range(D))  # rows in leaves' order


@pytest.mark.parametrize("name", FIXED)
def test_fixed_and_scheduled_methods(name: str, monkeypatch: Patch) -> None:
    rule, rule_params, c, sigma = FIXED[name]
    run = stepper(monkeypatch, METHODS[name](SIGMA).transformation(B, KEY))
    for t in (0, 1, 2, 3, 98, 99, 100, 101):
        run.state = at_step(run.state, t)
        g, mask = batch(t)
        got = run.step(tree_of(g), mask)
        want = oracle.fixed_rule_step(g, mask, rule, c(t), sigma(t), B, run.z_grad, **rule_params)
        close(got, want)
        close(run.state.released.threshold, c(t))
        close(run.state.released.sigma, sigma(t))
        assert run.state.step == t + 1


@pytest.mark.parametrize(
    ("name", "groups"), [*((name, None) for name in ADAPTIVE), ("dc_sgd_p", "per_leaf")]
)
def test_adaptive_methods(name: str, groups: str | None, monkeypatch: Patch) -> None:
    kind, params, state, size, sigma_s = ADAPTIVE[name]
    sigma = auto_dp_sigma if name == "auto_dp_sgd_sound" else always(SIGMA)
    method = METHODS[name](SIGMA)
    mechanism = method.replace(groups=groups)
    rule, rule_params = ("abadi", {})
    if name == "global_adapt":
        rule, rule_params = (name, {"scale": 1.0})
    tx = mechanism.transformation(B, KEY)
    run = stepper(monkeypatch, tx, start=96)  # auto_dp_sgd_sound's sigma drops at step 100
    for t in range(96, 103):
        g, mask = batch(t)
        got = run.step(tree_of(g), mask)
        close(run.state.released.threshold, state["c"])
        want, state = oracle.adaptive_step(
            *(g, mask, rule, kind, state, sigma(t), sigma(t + 1), sigma_s, B),
            *(run.z_grad, run.z_stat(size), params, rule_params),
            groups=None if groups is None else LEAVES,
        )
        close(got, want)
        close(run.state.threshold.threshold, state["c"])
        if "R" in state:
            close(run.state.threshold.range, state["R"])
    assert state["c"] != 1.0


def test_dc_sgd_e_reads_the_noise_of_the_coming_step(monkeypatch: Patch) -> None:
    sigmas, b, sigma_s = (3.0, 3.0, 0.3), 12.0, 8.0  # sigma_H = 8 follows the largest sigma
    run = stepper(monkeypatch, methods.dc_sgd_e(schedules.table(sigmas)).transformation(b, KEY))
    state = {"c": 1.0, "R": 20.0}
    for t in range(2):
        g, mask = batch(t, scale=3.0)
        got = run.step(tree_of(g), mask)
        given = g, mask, "abadi", "dc_sgd_e", state, sigmas[t]
        rest = sigma_s, b, run.z_grad, run.z_stat(20), {"bins": 20}
        _, late = oracle.adaptive_step(*given, sigmas[t], *rest)
        want, state = oracle.adaptive_step(*given, sigmas[t + 1], *rest)
        close(got, want)
        close(run.state.threshold.threshold, state["c"])
    assert state["c"] > 1.2 * late["c"]


@pytest.mark.parametrize("estimate", ["per_example", "published"])
def test_adaclip(estimate: str, monkeypatch: Patch) -> None:
    # The published variance is that of the mean, and starts slower.
    beta2, floor = (0.99, 1e-5) if estimate == "per_example" else (0.8, 1e-8)
    betas_and_limits = (0.9, beta2, floor, 1e-3)
    method = methods.adaclip(SIGMA, *betas_and_limits, estimate)
    run = stepper(monkeypatch, method.transformation(B, KEY))
    moments = np.zeros(D), np.full(D, math.sqrt(floor * 1e-3))
    for t in range(6):
        g, mask = batch(t, scale=0.02)
        got = run.step(tree_of(g), mask)
        want, moments = oracle.adaclip_step(
            g, mask, moments, SIGMA, B, run.z_grad, *betas_and_limits, estimate == "published"
        )
        close(got, want)
        close(flat_of(run.state.hooks[0].mean), moments[0])
        close(flat_of(run.state.hooks[0].variance), moments[1])
    assert np.ptp(moments[1]) > 0.03 * moments[1].mean()


def test_auto_dp_sgd_as_printed(monkeypatch: Patch) -> None:
    run = stepper(monkeypatch, METHODS["auto_dp_sgd"](SIGMA).transformation(B, KEY), start=98)
    for t in range(98, 102):
        g, mask = batch(t)
        got = run.step(tree_of(g), mask)
        step = oracle.auto_dp_sgd_as_printed_step
        close(got, step(g, mask, 1.0, auto_dp_sigma(t), B, run.z_grad))


def test_psasc_with_stored_momentum(monkeypatch: Patch) -> None:
    run = stepper(monkeypatch, METHODS["psasc_momentum_full_batch"](SIGMA).transformation(B, KEY))
    average = None
    for t in range(5):
        g, mask = batch(t)
        got = run.step(tree_of(g), mask)
        want, average = oracle.psasc_full_batch_momentum_step(
            g, average, 0.5, mask, 1.0, 0.01, 0.9, SIGMA, B, run.z_grad
        )
        close(got, want)
        averages = jax.tree.leaves(run.state.hooks[0].average)
        stored = [np.asarray(m).reshape(ROWS, -1) for m in averages]
        np.testing.assert_allclose(np.hstack(stored), average, FLOAT32, 1e-6)


def test_psasc_with_recomputed_momentum(monkeypatch: Patch) -> None:
    method = METHODS["psasc_momentum"](SIGMA)
    tx = method.transformation(B, KEY)

    def update(rows: Any, state: Any, params: Any, mask: Any) -> Any:
        grads = per_example_grads(quadratic, "vmap")(params, rows, mask=mask)
        return tx.update(grads, state, params)

    run = Stepper(monkeypatch, tx.init, update)
    a = np.random.default_rng(7).lognormal(0, 0.5, ROWS).astype(np.float32)
    iterates: list[np.ndarray] = []
    outer = np.zeros(D)
    for t in range(5):
        x, mask = batch(t)
        iterates = [*iterates, flat_of(run.params)][-3:]  # length 2, and the current one
        got = run.step({"x": tree_of(x), "a": a}, mask)
        want, outer = oracle.psasc_momentum_step(
            *(lambda w, x=x: a[:, None] * (w - x), iterates, 0.5, 0.1, outer, mask),
            *(1.0, 0.01, 0.9, SIGMA, B, run.z_grad),
        )
        close(got, want)
        close(B * flat_of(run.state.hooks[0].outer), outer)
        run.params = tree_of(flat_of(run.params) - 0.3 * got)


def test_the_draws_come_from_named_streams_and_land_on_the_grid() -> None:
    """Without the supplied draws: E(key, t), then the stream's name; each leaf from its own 0."""
    params = tree_of(np.zeros(D))
    tx = methods.andrew(SIGMA).transformation(B, KEY)
    update, state = jax.jit(tx.update)(tree_of(np.zeros((4, D))), tx.init(params), params)
    words = tuple(int(word) for word in np.asarray(jax.random.key_data(KEY)))
    step = random.folded(words, 0)
    stream = {n: random.folded(step, name_word(f"noise/{n}")) for n in ("gradient", "statistic")}
    draws = [random.normals(stream["gradient"], i, range(len(at))) for i, at in enumerate(LEAVES)]
    z_stat = random.normals(stream["statistic"], 0, range(1))
    zero = np.zeros((4, D)), np.ones(4), "abadi", "quantile", {"c": 1.0}
    sigmas = SIGMA, SIGMA, 2 * B / 20
    want, new = oracle.adaptive_step(*zero, *sigmas, B, np.concatenate(draws), z_stat, QUANTILE)
    std = float(state.released.sigma_gradient)
    unit = float(random.grid_unit(std))
    assert unit == 2.0**-5  # 0.98 / 16 is a little less than 1/16
    np.testing.assert_allclose(flat_of(update) * B, np.round(want * B / unit) * unit, rtol=1e-6)
    shift = float(random.grid_unit(B / 20)) / B  # the bit sum's grid moves b~ by half of this
    close(state.threshold.threshold, new["c"], 0.2 * shift)


def name_word(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
