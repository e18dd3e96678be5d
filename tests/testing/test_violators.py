"""What breaks its contract in a corner is found, by the checks and when a mechanism is made."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax._interpreter import traced
from dpjax.testing import ContractViolation, check_rule, check_threshold, hostile_norms
from tests import registry
from tests.testing import violators

RULES = {**violators.RULES, **violators.NARROW_RULES}
THRESHOLDS = {**violators.THRESHOLDS, **violators.NARROW_THRESHOLDS}


@pytest.mark.parametrize("name", RULES)
def test_rules(name):
    with pytest.raises(ContractViolation, match=type(RULES[name]).__name__):
        check_rule(RULES[name])


@pytest.mark.parametrize("name", THRESHOLDS)
def test_thresholds(name):
    with pytest.raises(ContractViolation, match=type(THRESHOLDS[name]).__name__):
        check_threshold(THRESHOLDS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_rules_whatever_the_seed(name):
    for seed in range(1, 20):
        with pytest.raises(ContractViolation):
            check_rule(RULES[name], seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", THRESHOLDS)
def test_thresholds_whatever_the_seed(name):
    for seed in range(1, 20):
        with pytest.raises(ContractViolation):
            check_threshold(THRESHOLDS[name], seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.RULES)
def test_sound_rules_whatever_the_seed(name):
    for seed in range(1, 21):
        check_rule(registry.RULES[name], seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.THRESHOLDS)
def test_sound_thresholds_whatever_the_seed(name):
    for seed in range(1, 21):
        check_threshold(registry.THRESHOLDS[name], seed=seed)


def test_what_is_reported_is_simple():
    with pytest.raises(ContractViolation, match="at norm 2 and threshold 2, beyond 2 "):
        check_rule(violators.too_large_for_thresholds(), seed=5)
    with pytest.raises(ContractViolation, match=r"at norm 1\.30\d+ and threshold 1, beyond 1 "):
        check_rule(violators.too_large_beside_c(), seed=5)


def test_without_hypothesis_the_checks_find_the_same(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ContractViolation, match=r"at norm 1\.30\d+ and threshold 1, beyond 1 "):
        check_rule(violators.too_large_beside_c())
    check_rule(dpjax.rules.abadi())


@pytest.mark.parametrize("name", violators.RULES)
def test_a_mechanism_refuses_a_rule_that_is_seen_to_be_broken(name):
    rule = violators.RULES[name]
    with pytest.raises(ValueError, match=type(rule).__name__):
        dpjax.Mechanism(rule, 0.7, 1.0)


@pytest.mark.parametrize("name", ["norms in 1.30-1.31", "norms in 1.30-1.31 C", "C in 1.5-2.5"])
def test_a_mechanism_refuses_a_threshold_that_is_seen_to_be_broken(name):
    threshold = violators.THRESHOLDS[name]
    with pytest.raises(ValueError, match=type(threshold).__name__):
        dpjax.Mechanism(dpjax.rules.abadi(), threshold, 1.0)


def test_a_rule_is_tried_at_the_thresholds_in_use():
    rule = violators.too_large_for_thresholds(low=0.3333, high=0.3334)
    dpjax.Mechanism(rule, 1.0, 1.0)
    with pytest.raises(ContractViolation, match=r"at norm .*, c 0\.33333"):
        dpjax.Mechanism(rule, 0.33333, 1.0)


def test_a_mechanism_may_be_made_under_a_trace_and_starts_no_device():
    code = """
import jax, jax._src.xla_bridge as bridge, dpjax
from tests.testing import violators
dpjax.Mechanism(violators.looks_at_the_batch(above=10**6), 1.0, 1.0)
assert not bridge.backends_are_initialized()
make = lambda x: dpjax.Mechanism(violators.looks_at_the_batch(above=10**7), 1.0, 1.0) and x
assert jax.jit(make)(1.0) == 1.0
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("name", registry.RULES)
def test_the_interpreter_computes_what_jax_computes(name):
    norms = hostile_norms()
    weight = registry.RULES[name].weight
    found = traced(weight, norms, np.float32(0))(norms, np.float32(0.7))
    np.testing.assert_allclose(found, jax.jit(weight)(norms, np.float32(0.7)), rtol=1e-6, atol=0)


def test_the_interpreter_leaves_to_jax_what_it_does_not_know():
    def function(x, n):
        looped = jax.lax.fori_loop(0, 3, lambda _, y: jnp.sort(y * x)[::-1], x)
        return {"looped": looped, "index": x.astype(jnp.int32), "bins": jax.nn.one_hot(n, 4)}

    x = np.array([-1.5, 2.5, np.nan, np.inf, -np.inf, 3e9], np.float32)
    n = np.array([0, 3, 5], np.int32)
    found, expected = traced(function, x, n)(x, n), jax.jit(function)(x, n)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
