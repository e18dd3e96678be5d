"""Every rule against the float64 oracle, and the identities that tie the rules together."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import rules
from tests.oracles import rules as oracle
from tests.registry import RULES

NORMS = np.concatenate([[0.0], np.logspace(-30, 30, 601)])
THRESHOLDS = (1e-3, 0.1, 1.0, 7.5, 1e3)
FLOAT32 = 1e-6
FLOAT64 = 1e-14


def params_of(name: str) -> dict[str, float]:
    """The oracle's parameters; it calls NSGD's constant r, the library's record gamma."""
    fields = dataclasses.asdict(RULES[name])
    return {"r": fields["gamma"]} if name == "nsgd" else fields


def off_edges(name: str, norms: np.ndarray) -> np.ndarray:
    """Leaves out norms on a jump: float32 and float64 may fall on different sides of it."""
    if name != "global_clip":
        return norms
    z = params_of(name)["z"]
    return norms[np.abs(norms / z - 1) > 1e-5]


@pytest.mark.parametrize("c", THRESHOLDS)
@pytest.mark.parametrize("name", RULES)
def test_weight_follows_the_oracle(name: str, c: float) -> None:
    norms = off_edges(name, NORMS).astype(np.float32)
    got = RULES[name].weight(jnp.asarray(norms), c)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, oracle.weight(name, norms, c, **params_of(name)), FLOAT32)


@pytest.mark.parametrize("name", RULES)
def test_weight_follows_the_oracle_in_float64(name: str) -> None:
    norms = off_edges(name, NORMS)
    with jax.enable_x64(True):
        for c in THRESHOLDS:
            got = RULES[name].weight(jnp.asarray(norms), c)
            assert got.dtype == jnp.float64
            want = oracle.weight(name, norms, c, **params_of(name))
            np.testing.assert_allclose(got, want, FLOAT64)


@pytest.mark.parametrize("name", RULES)
def test_weight_takes_a_traced_threshold_for_each_group(name: str) -> None:
    rng = np.random.default_rng(0)
    norms = off_edges(name, rng.lognormal(0, 3, 40))[:30].reshape(10, 3).astype(np.float32)
    cs = np.array([0.1, 1.0, 7.5], np.float32)
    got = jax.jit(RULES[name].weight)(jnp.asarray(norms), jnp.asarray(cs))
    for column, c in enumerate(cs):
        want = oracle.weight(name, norms[:, column], float(c), **params_of(name))
        np.testing.assert_allclose(got[:, column], want, FLOAT32)


@pytest.mark.parametrize("c", THRESHOLDS)
@pytest.mark.parametrize("name", RULES)
def test_bound_is_the_oracles_and_is_the_least_upper_one(name: str, c: float) -> None:
    bound = RULES[name].bound(c)
    assert bound == pytest.approx(oracle.bound(name, c, **params_of(name)), rel=1e-12)
    z = params_of(name).get("z", 1.0)
    with jax.enable_x64(True):
        norms = jnp.asarray(np.concatenate([NORMS, z * (1 - np.logspace(-12, 0, 13))]))
        lengths = np.asarray(RULES[name].weight(norms, c) * norms)
    assert lengths.max() <= bound * (1 + 1e-14)
    assert lengths.max() >= bound * (1 - 1e-9)


@pytest.mark.parametrize("name", RULES)
def test_norms_without_a_weight_get_zero(name: str) -> None:
    weights = RULES[name].weight(jnp.array([jnp.inf, jnp.nan], jnp.float32), 1.0)
    assert weights.tolist() == [0.0, 0.0]


def test_auto_v_drops_what_is_below_the_normal_range() -> None:
    tiny = np.finfo(np.float32).tiny
    norms = np.array([0.0, tiny / 2, tiny, 2 * tiny], np.float32)
    got = rules.auto_v().weight(jnp.asarray(norms), 1e-3)
    np.testing.assert_allclose(got, oracle.weight("auto_v", norms, 1e-3), FLOAT32)
    assert got[1] == 0 < got[2]


@pytest.mark.parametrize("c", [0.1, 1.0, 12.0])
@pytest.mark.parametrize(("r", "s"), [(0.01, 0.9), (0.1, 0.6), (0.5, 0.1), (3.0, 0.25), (2.0, 1.0)])
def test_psasc_is_psac_of_a_scaled_gradient(r: float, s: float, c: float) -> None:
    """psasc(r, s)(g; c) = psac(s r)(s g; c / s): the contributions agree, and so do the bounds."""
    scaled, plain = rules.psasc(r=r, s=s), rules.psac(r=s * r)
    assert scaled.bound(c) == plain.bound(c / s)
    with jax.enable_x64(True):
        norms = jnp.asarray(NORMS)
        left = scaled.weight(norms, c) * norms
        right = plain.weight(s * norms, c / s) * (s * norms)
        np.testing.assert_allclose(left, right, FLOAT64)


@pytest.mark.parametrize(("r", "s"), [(0.01, 0.9), (0.1, 0.6), (0.5, 0.1), (1.0, 1.0), (0.25, 0.5)])
def test_psasc_weighs_most_at_its_turning_point(r: float, s: float) -> None:
    assert s * r <= 1
    c = 1.7
    turn = math.sqrt(r / s) - r
    rule = rules.psasc(r=r, s=s)
    with jax.enable_x64(True):
        weights = np.asarray(rule.weight(jnp.asarray(NORMS), c))
        largest = float(rule.weight(jnp.asarray(turn), c))
        aside = np.asarray(rule.weight(jnp.asarray([turn + 1e-3, abs(turn - 1e-3)]), c))
    assert largest == pytest.approx(c / (2 * math.sqrt(s * r) - s * r), rel=1e-13)
    assert weights.max() <= largest * (1 + 1e-14)
    assert (aside < largest).all()


@pytest.mark.parametrize("c", THRESHOLDS)
@pytest.mark.parametrize("r", [1e-4, 0.01, 2.0])
def test_psac_weight_tends_to_c_for_vanishing_gradients(r: float, c: float) -> None:
    vanishing = jnp.array([0.0, 1e-30, r * 1e-8], jnp.float32)
    np.testing.assert_allclose(rules.psac(r=r).weight(vanishing, c), c, 1e-6)


@pytest.mark.parametrize("s", [0.2, 0.9])
def test_psasc_weight_over_its_bound_tends_to_s(s: float) -> None:
    """Against the paper's words: relative to the noise, s < 1 weighs small gradients less."""
    rule = rules.psasc(r=0.1, s=s)
    assert float(rule.weight(jnp.float32(1e-20), 3.0)) / rule.bound(3.0) == pytest.approx(s)


@pytest.mark.parametrize("r", [0.01, 0.05, 1.0])
def test_nsgd_is_auto_s(r: float) -> None:
    assert rules.nsgd(r=r) == rules.auto_s(gamma=r)
    norms = NORMS.astype(np.float32)
    got = rules.nsgd(r=r).weight(jnp.asarray(norms), 1.3)
    np.testing.assert_allclose(got, oracle.weight("nsgd", norms, 1.3, r=r), FLOAT32)
    np.testing.assert_allclose(got, oracle.weight("auto_s", norms, 1.3, gamma=r), FLOAT32)


@pytest.mark.parametrize("z", [0.2, 1.0, 9.0])
def test_global_adapt_is_abadi_of_z_rescaled(z: float) -> None:
    norms = jnp.asarray(NORMS, jnp.float32)
    scaled = rules.global_adapt(scale=0.7).weight(norms, z)
    np.testing.assert_allclose(scaled, 0.7 / z * rules.abadi().weight(norms, z), FLOAT32)
