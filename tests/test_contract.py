"""Every rule, schedule, threshold and method of the registry against the shared contract."""

import json
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax._record import Record
from dpjax.testing import ContractViolation, check_rule, check_threshold
from tests import registry
from tests.marks import some


@pytest.mark.parametrize("name", registry.RULES)
def test_rule(name):
    check_rule(registry.RULES[name])


@pytest.mark.parametrize("name", registry.THRESHOLDS)
def test_threshold(name):
    check_threshold(registry.THRESHOLDS[name])


@pytest.mark.parametrize("name", registry.SCHEDULES)
def test_schedule(name):
    schedule = registry.SCHEDULES[name]
    assert type(schedule).from_plain(json.loads(json.dumps(schedule.to_plain()))) == schedule
    steps = np.arange(300)
    values = np.asarray([schedule(t) for t in steps])
    np.testing.assert_allclose(jax.jit(jax.vmap(schedule))(steps), values, rtol=1e-6)
    assert np.all(values > 0)
    assert schedule.largest() == pytest.approx(values.max(), rel=1e-6)


@pytest.mark.parametrize("name", registry.METHODS)
def test_method_is_one_type_and_survives_plain_data(name):
    method = registry.METHODS[name](1.0)
    assert isinstance(method, dpjax.Mechanism) == (name != "auto_dp_sgd")
    assert method.name == name
    assert Record.from_plain(json.loads(json.dumps(method.to_plain()))) == method
    assert hash(method) == hash(Record.from_plain(method.to_plain()))
    assert method.guarantee.private == (name != "auto_dp_sgd")


@pytest.mark.parametrize("name", registry.METHODS)
def test_method_trains_under_jit_and_scan_and_vmap(name):
    together, _ = trained(name)
    assert np.all(np.isfinite(together["w"]))
    assert len({float(b) for b in together["b"]}) == 3


FEW = ("dp_sgd", "dc_sgd_e", "andrew", "adaclip", "psasc_momentum", "auto_dp_sgd")


@pytest.mark.parametrize("name", some(registry.METHODS, FEW))
def test_one_of_several_is_as_if_alone_without_jit(name):
    together, alone = trained(name)
    np.testing.assert_allclose(together["w"][1], alone()["w"], rtol=2e-4, atol=2e-6)


def trained(name):
    """One script for all: five scanned steps, vmapped over three noise keys; and one without."""
    method = registry.METHODS[name](1.0)
    data = {"x": jax.random.normal(jax.random.key(1), (64, 3)), "y": jnp.arange(64) % 2 * 1.0}

    def loss_fn(params, example):
        return jnp.square(example["x"] @ params["w"] + params["b"] - example["y"])

    def train(key):
        params = {"w": jnp.zeros(3), "b": jnp.zeros(())}
        tx = optax.chain(method.transformation(64, key), optax.adam(1e-2))

        def step(carry, _):
            params, state = carry
            grads = dpjax.per_example_grads(loss_fn, "vmap", chunk=32)(params, data)
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), params["b"]

        (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), length=5)
        return params

    keys = jax.random.split(jax.random.key(0), 3)
    return jax.jit(jax.vmap(train))(keys), lambda: train(keys[1])


@dataclass(frozen=True)
class too_long(dpjax.rules.Rule):
    """Exceeds its bound by a millionth for long gradients."""

    def weight(self, norm, c):
        return dpjax.rules.ratio(c * 1.000001, jnp.maximum(norm, c))

    def bound(self, c):
        return c


@dataclass(frozen=True)
class leaky_statistic(dpjax.thresholds.Threshold):
    """Releases the norm itself, whatever its sensitivity says."""

    def sigma_statistic(self, sigma, expected_batch_size):
        return 5.0

    def init(self):
        return dpjax.thresholds.quantile(0.5).init()

    def statistic(self, norms, state):
        return norms[:, None]

    def update(self, state, noisy_sum, context):
        return state


@dataclass(frozen=True)
class nosy_statistic(leaky_statistic):
    """Compares every norm with the others'."""

    def statistic(self, norms, state):
        return (norms <= jnp.median(norms)).astype(jnp.float32)[:, None]


def test_the_checks_reject_what_is_broken():
    with pytest.raises(ContractViolation, match="depends on the others"):
        check_threshold(nosy_statistic())
    with pytest.raises(ContractViolation, match="beyond 1 by more than"):
        check_rule(too_long())
    with pytest.raises(ContractViolation, match="beyond the sensitivity"):
        check_threshold(leaky_statistic())


def test_a_name_cannot_be_taken_twice():
    with pytest.raises(TypeError, match="expected a new name"):

        @dataclass(frozen=True)
        class abadi(Record):
            pass
