"""From a budget to noise, steps and batch sizes: never above it, and close below."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import Mechanism, methods, rules, schedules
from dpjax.accounting import calibrate, epsilon, largest_batch, max_steps
from dpjax.accounting.calibration import TOLERANCE, largest_integer, smallest_noise
from dpjax.accounting.relation import SUPPORTED
from dpjax.momentum import stored
from dpjax.sampling import FixedSize, FullBatch, Poisson, TruncatedPoisson
from tests import registry
from tests.marks import some

DELTA, POISSON = 1e-5, Poisson.with_rate(0.01)
SAMPLERS = {
    Poisson: POISSON,
    TruncatedPoisson: TruncatedPoisson(5, 500, 40),
    FixedSize: FixedSize(5, 500),
    FullBatch: FullBatch(),
}
CELLS = [
    (sampling, relation.name.lower(), accountant)
    for kind, sampling in SAMPLERS.items()
    for relation, accountants in SUPPORTED[kind].items()
    for accountant in accountants
]
SOUND = [name for name in registry.METHODS if name != "auto_dp_sgd"]


def assert_spends(method, sampling, steps, budget, accountant, **ask):
    spent = epsilon(method, sampling, steps, DELTA, accountant, **ask)
    assert budget * (1 - 1e-3) <= spent.upper <= budget
    return spent


def test_the_tolerance_is_the_promised_one():
    assert TOLERANCE == 1e-3
    assert "at least 0.999 of it" in calibrate.__doc__


# Noise.


@pytest.mark.parametrize(("sampling", "relation", "accountant"), CELLS)
def test_a_number(sampling, relation, accountant):
    ask = {"relation": relation}
    method = methods.dp_sgd(1.0)
    found = calibrate(method, sampling, 50, 0.7, DELTA, accountant, **ask)
    assert_spends(found, sampling, 50, 0.7, accountant, **ask)
    assert type(found.noise_multiplier) is float


@pytest.mark.parametrize("guess", [1e-3, 0.5, 700.0])
def test_of_a_number_only_its_being_one_matters(guess):
    want = calibrate(methods.dp_sgd(1.0), POISSON, 100, 1.0, DELTA, "rdp")
    assert calibrate(methods.dp_sgd(guess), POISSON, 100, 1.0, DELTA, "rdp") == want


@pytest.mark.parametrize(
    ("budget", "accountant"),
    [(0.1, "rdp"), (10.0, "rdp"), (50.0, "rdp"), (0.01, "pld"), (5.0, "pld"), (50.0, "pld")],
)
def test_small_and_large_budgets(budget, accountant):
    found = calibrate(methods.dp_sgd(1.0), Poisson.with_rate(0.02), 30, budget, DELTA, accountant)
    assert_spends(found, Poisson.with_rate(0.02), 30, budget, accountant)


@pytest.mark.parametrize("name", some(registry.SCHEDULES, ["table", "step_decay"]))
def test_a_schedule_by_rdp(name):
    check_schedule(name, "rdp", steps=200)


@pytest.mark.parametrize("name", ["table", "step_decay"])
def test_a_schedule_by_pld(name):
    check_schedule(name, "pld", steps=60)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(registry.SCHEDULES) - {"table", "step_decay"}))
def test_every_schedule_by_pld(name):
    check_schedule(name, "pld", steps=200)


@pytest.mark.slow
def test_a_long_schedule_by_pld():
    """2,000 noise multipliers."""
    curve = registry.SCHEDULES["du_decay"].replace(steps=2_000)
    found = calibrate(methods.dp_sgd(curve), POISSON, 2_000, 2.0, DELTA)
    spent = assert_spends(found, POISSON, 2_000, 2.0, "pld")
    assert spent.lower > 1.95


def check_schedule(name, accountant, steps):
    curve = registry.SCHEDULES[name]
    found = calibrate(methods.dp_sgd(curve), POISSON, steps, 1.5, DELTA, accountant)
    assert_spends(found, POISSON, steps, 1.5, accountant)
    noise = found.noise_multiplier
    assert shape_of(noise) == shape_of(curve)  # with all of its parameters
    got, shape = (
        np.asarray([float(f(t)) for t in range(0, steps, steps // 10)]) for f in (noise, curve)
    )
    np.testing.assert_allclose(got, got[0] / shape[0] * shape, rtol=5e-7)
    again = calibrate(found, POISSON, steps, 1.5, DELTA, accountant)
    assert again == found
    other = calibrate(found, POISSON, steps, 1.0, DELTA, "rdp").noise_multiplier
    assert shape_of(other) == shape_of(curve)
    assert float(other(0)) > got[0] or accountant == "pld"


def shape_of(noise):
    """The curve without its level: its first value, or the factor of one that has none."""
    if isinstance(noise, schedules.scaled):
        return noise.schedule
    return noise if isinstance(noise, schedules.table) else noise.replace(init=None)


def test_a_bare_callable_is_a_schedule():
    def curve(t):
        return 2.0 / (1 + t / 50)

    found = calibrate(methods.dp_sgd(curve), POISSON, 40, 1.0, DELTA, "rdp")
    assert found.noise_multiplier.schedule is curve
    assert_spends(found, POISSON, 40, 1.0, "rdp")


def test_a_schedule_is_read_from_its_start():
    method = methods.dp_sgd(registry.SCHEDULES["du_decay"])
    early, late = (
        calibrate(method, POISSON, 50, 1.0, DELTA, "rdp", start=start) for start in (0, 50)
    )
    assert_spends(late, POISSON, 50, 1.0, "rdp", start=50)
    assert late.noise_multiplier.init > 1.2 * early.noise_multiplier.init


def test_orders_are_used():
    coarse = calibrate(methods.dp_sgd(1.0), POISSON, 100, 2.0, DELTA, "rdp", orders=[8.0])
    fine = calibrate(methods.dp_sgd(1.0), POISSON, 100, 2.0, DELTA, "rdp")
    assert_spends(coarse, POISSON, 100, 2.0, "rdp", orders=[8.0])
    assert coarse.noise_multiplier > fine.noise_multiplier


# What it is the noise of.


@pytest.mark.parametrize("name", SOUND)
def test_a_method_is_a_method_with_other_noise(name):
    method = registry.METHODS[name](1.0)
    sampling = FullBatch() if isinstance(method.momentum, stored) else POISSON
    found = calibrate(method, sampling, 60, 1.2, DELTA, "rdp")
    assert type(found) is Mechanism
    assert_spends(found, sampling, 60, 1.2, "rdp")
    noise = method.noise_multiplier
    assert found.replace(noise_multiplier=noise) == method
    assert method == registry.METHODS[name](1.0)


def test_a_mechanism_is_a_mechanism():
    mechanism = Mechanism(rules.abadi(), 1.0, 3.0)
    found = calibrate(mechanism, POISSON, 60, 1.2, DELTA, "rdp")
    assert type(found) is Mechanism
    method = calibrate(methods.dp_sgd(3.0), POISSON, 60, 1.2, DELTA, "rdp")
    assert found.noise_multiplier == method.noise_multiplier


def test_a_joint_release_keeps_the_noise_of_its_statistic():
    """The total is what DP-SGD has; the gradient's own noise makes up for the histogram."""
    found = calibrate(methods.dc_sgd_e(1.0, sigma_h=5.0), POISSON, 400, 1.0, DELTA, "rdp")
    plain = calibrate(methods.dp_sgd(1.0), POISSON, 400, 1.0, DELTA, "rdp")
    sigma = plain.noise_multiplier
    assert found.noise_multiplier == sigma
    assert found.threshold == methods.dc_sgd_e(1.0, sigma_h=5.0).threshold
    assert found.sigma_statistic() == 5.0
    own = float(found.sigma_gradient(0))
    assert own == pytest.approx((sigma**-2 - 5.0**-2) ** -0.5, rel=1e-6)


def test_a_statistic_that_takes_too_much_of_the_budget():
    for sigma_h in (0.7, 1.0):
        method = methods.dc_sgd_e(0.5, sigma_h=sigma_h)
        with pytest.raises(ValueError, match=rf"budget needs.*sigma_S = {sigma_h:g} .*sigma_h"):
            calibrate(method, POISSON, 400, 0.5, DELTA, "rdp")


# Figures.


def sigma_of(dataset_size, epochs, budget, accountant):
    steps = math.ceil(epochs * dataset_size / 256)
    method, sampling = methods.dp_sgd(1.0), Poisson.with_rate(256 / dataset_size)
    found = calibrate(method, sampling, steps, budget, 1 / dataset_size, accountant)
    return found.noise_multiplier


@pytest.mark.parametrize(
    ("accountant", "budget", "sigma"),
    [
        ("rdp", 1.0, 1.12866),
        ("rdp", 2.0, 0.84140),
        ("rdp", 4.0, 0.66790),
        ("pld", 1.0, 1.02939),
        ("pld", 2.0, 0.77440),
        ("pld", 4.0, 0.62945),
    ],
)
def test_mnist(accountant, budget, sigma):
    """MECHANISMS 8."""
    assert sigma_of(60_000, 10, budget, accountant) == pytest.approx(sigma, rel=2e-4)


def test_cifar():
    """MECHANISMS 7: one run, by RDP."""
    assert sigma_of(50_000, 20, 2.0, "rdp") == pytest.approx(0.966, abs=5e-4)


# No noise will do.


def test_below_what_the_accountant_tells():
    with pytest.raises(ValueError, match=r"epsilon = 0.0001 at delta = 1e-05 over 400 steps: no"):
        calibrate(methods.dp_sgd(1.0), POISSON, 400, 1e-4, DELTA, "rdp")
    found = calibrate(methods.dp_sgd(1.0), POISSON, 400, 1e-4, DELTA, "pld")
    assert_spends(found, POISSON, 400, 1e-4, "pld")


@pytest.mark.parametrize(
    ("sampling", "budget", "why"),
    [(POISSON, 20.0, "rho = 0.1"), (Poisson.with_rate(0.2), 2.0, "rate = 0.2")],
)
def test_outside_tcdps_lemma(sampling, budget, why):
    with pytest.raises(ValueError, match=r"no noise multiplier.*lemma needs rho <= 0.1") as error:
        calibrate(methods.dp_sgd(1.0), sampling, 400, budget, DELTA, "tcdp")
    assert why in str(error.value)


def test_what_the_accountants_do_not_do():
    with pytest.raises(ValueError, match=r"accountant = 'gdp' with TruncatedPoisson"):
        calibrate(methods.dp_sgd(1.0), SAMPLERS[TruncatedPoisson], 10, 1.0, DELTA, "gdp")
    with pytest.raises(
        ValueError, match=r"delta = 1e-23: the noise ends .*a larger epsilon or del"
    ):
        calibrate(methods.dp_sgd(1.0), POISSON, 10, 1.0, 1e-23)
    with pytest.raises(ValueError, match=r"sampling = .*stored per example: expected FullBatch"):
        calibrate(registry.METHODS["psasc_momentum_full_batch"](1.0), POISSON, 9, 1.0, DELTA)
    with pytest.raises(TypeError, match=r"mechanism = .*expected a dpjax.Mechanism"):
        calibrate("dp_sgd", POISSON, 10, 1.0, DELTA)
    with pytest.raises(TypeError, match=r"expected a dpjax\.Mechanism"):
        calibrate(registry.METHODS["auto_dp_sgd"](1.0), POISSON, 10, 1.0, DELTA)


# Steps and batch sizes.


@pytest.mark.parametrize(
    ("noise", "accountant"),
    [
        (1.0, "pld"),
        (1.0, "rdp"),
        (5.0, "tcdp"),
        (1.0, "gdp"),
        (registry.SCHEDULES["table"], "rdp"),
    ],
)
def test_as_many_steps_as_fit(noise, accountant):
    method = methods.dp_sgd(noise)
    n = max_steps(method, POISSON, 1.2, DELTA, accountant)
    assert type(n) is int
    assert n > 1
    assert epsilon(method, POISSON, n, DELTA, accountant).upper <= 1.2
    assert epsilon(method, POISSON, n + 1, DELTA, accountant).upper > 1.2


def test_steps_from_a_start_and_under_a_relation():
    method = methods.dp_sgd(schedules.table((1.0, 1.3), steps_per_epoch=40))
    few, many = (max_steps(method, POISSON, 0.9, DELTA, "rdp", start=t) for t in (0, 40))
    assert many > few
    assert epsilon(method, POISSON, many, DELTA, "rdp", start=40) <= 0.9
    assert epsilon(method, POISSON, many + 1, DELTA, "rdp", start=40) > 0.9
    add, replace = (
        max_steps(methods.dp_sgd(9.0), FullBatch(), 1.0, DELTA, "rdp", relation=relation)
        for relation in ("add_or_remove_one", "replace_one")
    )
    assert 3.5 * replace < add


@pytest.mark.parametrize("accountant", ["pld", "rdp", "gdp"])
def test_as_large_a_batch_as_fits(accountant):
    method, size, steps = methods.dp_sgd(1.0), 500, 20
    batch = largest_batch(method, size, steps, 1.2, DELTA, accountant)
    assert type(batch) is int
    assert 1 < batch < size
    assert epsilon(method, Poisson.with_rate(batch / size), steps, DELTA, accountant).upper <= 1.2
    assert (
        epsilon(method, Poisson.with_rate((batch + 1) / size), steps, DELTA, accountant).upper > 1.2
    )


def test_a_batch_for_a_schedule():
    method = methods.dp_sgd(registry.SCHEDULES["table"])
    batch = largest_batch(method, 3_000, 40, 1.2, DELTA, "rdp", start=5)
    assert epsilon(method, Poisson.with_rate(batch / 3_000), 40, DELTA, "rdp", start=5) <= 1.2
    assert epsilon(method, Poisson.with_rate((batch + 1) / 3_000), 40, DELTA, "rdp", start=5) > 1.2


def test_a_batch_inside_tcdps_lemma():
    """All of 1,000 would be outside; the lemma ends at 100."""
    assert largest_batch(methods.dp_sgd(6.0), 1_000, 10, 1.0, DELTA, "tcdp") == 100


def test_nothing_fits():
    loud = methods.dp_sgd(0.3)
    for accountant in ("pld", "rdp", "gdp"):
        assert max_steps(loud, POISSON, 0.1, DELTA, accountant) == 0
        assert largest_batch(loud, 1_000, 1_000, 0.1, DELTA, accountant) == 0


def test_everything_fits():
    quiet = methods.dp_sgd(60.0)
    assert max_steps(quiet, POISSON, 1.0, DELTA, "rdp", most=1_000) == 1_000
    assert largest_batch(quiet, 1_000, 10, 1.0, DELTA, "rdp") == 1_000


def test_calibrated_noise_lasts_as_long_as_asked_for():
    found = calibrate(methods.dp_sgd(1.0), POISSON, 700, 2.0, DELTA, "rdp")
    assert 700 <= max_steps(found, POISSON, 2.0, DELTA, "rdp") <= 702


# The searches.


@settings(deadline=None, max_examples=200, derandomize=True, database=None)
@given(st.floats(1e-3, 1e3), st.floats(0.2, 4.0), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_a_power_law(where, power, target, off):
    """Whatever it is, and however far off the first guess."""

    def cost(noise):
        return target * (noise / where) ** -power

    found = smallest_noise(cost, target, where * off, 1e-3)
    assert target * (1 - 1e-3) <= cost(found) <= target


@settings(deadline=None, max_examples=100, derandomize=True, database=None)
@given(st.floats(0.1, 10), st.floats(0.05, 20), st.floats(0.01, 5))
def test_a_cost_that_is_infinite_below_some_noise(edge, start, target):
    """Inside the reach of the other side it is found, else there is none."""

    def cost(noise):
        return 1 / noise if noise > edge else math.inf

    found = smallest_noise(cost, target, start, 1e-3)
    if target < 0.99 / edge:
        assert target * (1 - 1e-3) <= cost(found) <= target
    elif target > 1.01 / edge:
        assert found is None


def test_a_cost_that_jumps_over_the_target():
    assert smallest_noise(lambda noise: 2.0 if noise < 1 else 0.5, 1.0, 3.0, 1e-3) is None
    assert smallest_noise(lambda noise: 2.0, 1.0, 3.0, 1e-3) is None
    assert smallest_noise(lambda noise: 0.0, 1.0, 3.0, 1e-3) is None


@settings(deadline=None, max_examples=200, derandomize=True, database=None)
@given(st.integers(0, 5_000), st.integers(1, 5_000))
def test_the_largest_integer(last, most):
    assert largest_integer(lambda n: n <= last, most) == min(last, most)
