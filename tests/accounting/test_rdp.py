"""Renyi divergences of whole schedules: dp-accounting's, and above the divergences themselves."""

import math

import dp_accounting
import numpy as np
import pytest
from absl import logging
from dp_accounting import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import methods
from dpjax.accounting.bound import epsilon_of
from dpjax.accounting.pld import pld_upper
from dpjax.accounting.rdp import (
    ORDERS,
    TAIL_ORDERS,
    rdp,
    rdp_delta,
    rdp_epsilon,
    rdp_fixed_size,
    rdp_poisson,
    truncation_mass,
)
from dpjax.accounting.tuning import grid_composition, liu_talwar, repeat_and_select
from dpjax.sampling import Poisson, TruncatedPoisson
from tests.accounting.recorded import (
    CONVERSION_ROWS,
    MNIST_DELTA,
    MNIST_Q,
    MNIST_STEPS,
    OPACUS_ORDERS,
    RDP_ROWS,
    ROWS,
)
from tests.oracles.accounting import (
    rdp_fixed_size_gaussian_bound,
    rdp_poisson_gaussian,
    rdp_to_epsilon,
)

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
MANY = 10**7  # examples: batches of fixed size come near any rate
RATES = (1e-6, 1e-4, 256 / 60_000, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999)
SIGMAS = np.array([0.15, 0.3, 0.5436, 0.8, 1.0, 1.5, 2.0, 4.0, 10.0, 50.0, 1000.0])
# A divergence of 1e-18 is a logarithm of 1 + 1e-18: rounding of 1e-16, either way.
TINY = 1e-14


@pytest.fixture(autouse=True)
def quiet():
    """dp-accounting logs every order whose series does not converge."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    yield
    logging.set_verbosity(before)


def poisson(q, sigma, count=1):
    one = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(float(sigma)))
    return dp_accounting.SelfComposedDpEvent(one, int(count))


def fixed(q, sigma, count=1):
    gaussian = dp_accounting.GaussianDpEvent(float(sigma))
    one = dp_accounting.SampledWithoutReplacementDpEvent(MANY, round(q * MANY), gaussian)
    return dp_accounting.SelfComposedDpEvent(one, int(count))


def theirs(happened, relation=ADD, orders=ORDERS):
    """dp-accounting's divergences; +inf for an order it leaves out."""
    return RdpAccountant(orders, relation).compose(happened).rdp


def assert_same(got, want, rtol=1e-9):
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    finite = np.isfinite(want)
    assert finite.any()
    np.testing.assert_allclose(got[finite], want[finite], rtol=rtol, atol=TINY)


# One release.


def test_the_orders_are_dp_accountings():
    assert list(RdpAccountant()._orders) == list(ORDERS)
    assert set(ORDERS) < set(TAIL_ORDERS)
    assert max(TAIL_ORDERS) == 1024
    assert np.all(np.diff(TAIL_ORDERS) > 0)


@pytest.mark.parametrize("q", RATES)
def test_poisson_is_dp_accountings(q):
    got = rdp_poisson(q, SIGMAS, ORDERS)
    assert got.shape == (SIGMAS.size, len(ORDERS))
    for sigma, row in zip(SIGMAS, got, strict=True):
        assert_same(row, theirs(poisson(q, sigma)))


def test_some_series_do_not_converge_here():
    """The arm of `assert_same` for infinite orders has something to compare."""
    assert np.isinf(rdp_poisson(0.5, SIGMAS, ORDERS)).any()


@pytest.mark.parametrize("q", [1e-4, 256 / 60_000, 0.1])
def test_fixed_size_is_dp_accountings(q):
    """Up to where both lose digits of their differences, which is tested below."""
    sigmas = np.array([0.3, 0.8, 1.5, 4.0, 4.0 if q == 0.1 else 50.0])
    got = rdp_fixed_size(round(q * MANY) / MANY, sigmas, ORDERS)
    for sigma, row in zip(sigmas, got, strict=True):
        assert_same(row, theirs(fixed(q, sigma), REPLACE))


def test_without_sampling_it_is_a_line():
    got = rdp_poisson(1.0, SIGMAS, ORDERS)
    np.testing.assert_allclose(got, np.asarray(ORDERS) / (2 * SIGMAS[:, None] ** 2), rtol=1e-15)


@pytest.mark.parametrize("q", [1e-4, 256 / 60_000, 0.1, 0.9])
@pytest.mark.parametrize("sigma", [0.4, 0.8, 1.5, 5.0])
def test_poisson_against_the_divergence_itself(q, sigma):
    """Equal at whole orders; at fractional ones the series without its signs is larger."""
    whole, between = (2.0, 3.0, 31.0), (1.2, 6.5)
    want = [rdp_poisson_gaussian(q, sigma, order) for order in whole]
    got = rdp_poisson(q, np.array([sigma]), whole)[0]
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=TINY)
    for order in between:
        exact = rdp_poisson_gaussian(q, sigma, order)
        assert rdp_poisson(q, np.array([sigma]), [order])[0, 0] >= exact * (1 - 1e-9) - TINY


def test_at_fractional_orders_the_bound_is_no_equality():
    """14% too much at order 1.3: dp-accounting's, and safe."""
    got = rdp_poisson(0.01, np.array([0.5]), [1.3])[0, 0]
    assert 1.14 < got / rdp_poisson_gaussian(0.01, 0.5, 1.3) < 1.15


@pytest.mark.parametrize("q", [0.001, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 4.0])
def test_fixed_size_against_the_theorem(q, sigma):
    whole = [2, 3, 4, 5, 8, 13, 20]
    want = np.array([rdp_fixed_size_gaussian_bound(q, sigma, order) for order in whole])
    got = rdp_fixed_size(q, np.array([sigma]), whole)[0]
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=TINY)
    # log A = (order - 1) times the divergence is convex: its chord bounds it between.
    log_a = want * (np.array(whole) - 1)
    chord = rdp_fixed_size(q, np.array([sigma]), [2.5, 4.25])[0]
    np.testing.assert_allclose(chord[0], (log_a[0] + log_a[1]) / 2 / 1.5, rtol=1e-9, atol=TINY)
    np.testing.assert_allclose(
        chord[1], (0.75 * log_a[2] + 0.25 * log_a[3]) / 3.25, rtol=1e-9, atol=TINY
    )


@pytest.mark.parametrize(("q", "sigma"), [(0.3, 50.0), (0.5, 10.0), (0.9, 20.0), (0.9, 1e3)])
def test_fixed_size_errs_upwards_where_differences_lose_their_digits(q, sigma):
    """Much noise at a large rate: the differences' rounding is above what they should be."""
    orders = [2, 4, 8, 16, 24, 48, 64, 128]
    exact = np.array([rdp_fixed_size_gaussian_bound(q, sigma, order) for order in orders])
    ratio = rdp_fixed_size(q, np.array([sigma]), orders)[0] / exact
    assert ratio.min() > 1 - 1e-7
    assert ratio.max() > 1.01


def test_fixed_size_beyond_the_last_difference():
    orders = [256, 257, 300]
    want = [rdp_fixed_size_gaussian_bound(0.01, 2.0, order) for order in orders]
    np.testing.assert_allclose(rdp_fixed_size(0.01, np.array([2.0]), orders)[0], want, rtol=1e-9)


@pytest.mark.parametrize("q", [256 / 60_000, 0.1, 0.5])
def test_more_noise_has_a_smaller_divergence_and_orders_ascend(q):
    for divergence in (rdp_poisson, rdp_fixed_size):
        values = divergence(q, np.array([0.6, 1.0, 1.7, 3.0]), [2, 3, 5, 8, 16, 32])
        assert np.all(np.diff(values, axis=0) < 0)
        assert np.all(np.diff(values, axis=1) > 0)


# Schedules.


def schedule(steps, last=0.7):
    return 3.0 * (last / 3.0) ** (np.arange(steps) / (steps - 1))


@pytest.mark.parametrize(
    ("one", "divergence", "relation"),
    [(poisson, rdp_poisson, ADD), (fixed, rdp_fixed_size, REPLACE)],
)
def test_two_thousand_noise_multipliers(one, divergence, relation):
    """Rows do not depend on their neighbours; an event's divergence is the sum of the rows."""
    q, sigmas = 0.01, schedule(2_000)
    assert np.unique(sigmas).size == 2_000
    rows = divergence(q, sigmas, ORDERS)
    for place in np.linspace(0, 1_999, 20).astype(int):
        assert_same(rows[place], divergence(q, sigmas[[place]], ORDERS)[0], rtol=1e-12)
    happened = dp_accounting.ComposedDpEvent([one(q, sigma) for sigma in sigmas])
    np.testing.assert_allclose(rdp(happened, relation), rows.sum(axis=0), rtol=1e-11)


@pytest.mark.parametrize(("one", "relation"), [(poisson, ADD), (fixed, REPLACE)])
def test_a_schedule_is_dp_accountings_composition(one, relation):
    sigmas = schedule(2_000)[:: 100 if one is poisson else 400]
    happened = dp_accounting.ComposedDpEvent(
        [one(0.01, sigma, count) for count, sigma in enumerate(sigmas, start=1)]
    )
    accountant = RdpAccountant(ORDERS, relation).compose(happened)
    assert_same(rdp(happened, relation), accountant.rdp)
    got = rdp_epsilon(happened, relation, 1e-5)
    assert got == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert rdp_delta(happened, relation, 1.0) == pytest.approx(accountant.get_delta(1.0), rel=1e-9)


def test_other_events_are_left_to_dp_accounting():
    laplace, gaussian = dp_accounting.LaplaceDpEvent(4.0), dp_accounting.GaussianDpEvent(3.0)
    parts = [poisson(0.01, 1.0, 50), laplace, dp_accounting.SelfComposedDpEvent(laplace, 2)]
    happened = dp_accounting.ComposedDpEvent([*parts, gaussian, dp_accounting.NoOpDpEvent()])
    assert_same(rdp(happened, ADD), theirs(happened))
    alone = rdp(dp_accounting.LaplaceDpEvent(4.0), ADD, [2.0])[0]
    want = np.log(2 / 3 * np.exp(0.25) + 1 / 3 * np.exp(-0.5))  # Mironov 2017, table 2
    assert alone == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(("one", "relation"), [(poisson, REPLACE), (fixed, ADD)])
def test_no_bound_no_number(one, relation):
    with pytest.raises(ValueError, match=f"under {relation.name.lower()}: RDP has no bound"):
        rdp(one(0.01, 1.0), relation)


# Figures of other libraries.


def rows(library, accountant):
    return [row for row in ROWS if (row.library, row.accountant) == (library, accountant)]


def recorded_event(row):
    pairs = row.sigma if isinstance(row.sigma, tuple) else ((row.sigma, row.steps),)
    return dp_accounting.ComposedDpEvent([poisson(row.q, sigma, n) for sigma, n in pairs])


def epsilon_at(happened, delta, orders):
    """Epsilon and the order that gives it, by the oracle's conversion."""
    values = rdp(happened, ADD, orders)
    each = [rdp_to_epsilon([a], [value], delta) for a, value in zip(orders, values, strict=True)]
    return min(each), orders[int(np.argmin(each))]


@pytest.mark.parametrize("row", rows("opacus", "rdp"))
def test_opacus(row):
    """At its own orders, equal where the best order is a whole one.

    Opacus sums the series with its signs; without them the worst row (best order 2.7) has 1.4e-3
    more.
    """
    happened = recorded_event(row)
    got = rdp_epsilon(happened, ADD, row.delta, OPACUS_ORDERS)
    value, best = epsilon_at(happened, row.delta, OPACUS_ORDERS)
    assert got == pytest.approx(value, rel=1e-12)
    assert got >= row.epsilon - row.tolerance
    slack = row.tolerance if float(best).is_integer() else 1.4e-3 * row.epsilon
    assert got <= row.epsilon + slack


def test_some_recorded_row_has_a_whole_best_order():
    best = {
        float(epsilon_at(recorded_event(row), row.delta, OPACUS_ORDERS)[1])
        for row in rows("opacus", "rdp")
    }
    assert {13.0, 15.0} < best


@pytest.mark.parametrize("row", rows("opacus", "prv") + rows("prv-accountant", "prv"))
def test_it_is_above_the_tight_figures(row):
    assert rdp_epsilon(recorded_event(row), ADD, row.delta) > row.lower


@pytest.mark.parametrize("row", rows("dp-accounting", "pld") + rows("dp-accounting", "rdp"))
def test_dp_accountings_own_figures(row):
    """The RDP figure is for finer orders; epsilon is flat around the best one."""
    orders = np.arange(1.001, 100, 0.01) if row.accountant == "rdp" else ORDERS
    got = rdp_epsilon(recorded_event(row), ADD, row.delta, orders)
    assert got >= row.epsilon - row.tolerance
    if row.accountant == "rdp":
        assert got == pytest.approx(row.epsilon, abs=1e-6)


@pytest.mark.parametrize("row", RDP_ROWS)
def test_dp_accountings_divergences(row):
    got = rdp(poisson(row.q, row.sigma, row.steps), ADD, [row.order])[0]
    assert got == pytest.approx(row.rdp, rel=row.tolerance)
    exact = row.steps * rdp_poisson_gaussian(row.q, row.sigma, row.order)
    assert got >= exact * (1 - 1e-9)
    if not row.bound:
        assert got == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("row", CONVERSION_ROWS)
def test_the_conversion(row):
    assert rdp_to_epsilon(row.orders, row.rdp, row.delta) == pytest.approx(
        row.epsilon, abs=row.tolerance
    )
    happened = poisson(0.01, 1.3, 400)
    values = rdp(happened, ADD, row.orders)
    want = rdp_to_epsilon(row.orders, values, row.delta)
    assert rdp_epsilon(happened, ADD, row.delta, row.orders) == pytest.approx(want, rel=1e-12)


def test_whole_orders_alone_lose():
    """TRAPS 6: MNIST at sigma .5436 has its best order at 2.7."""
    happened = poisson(MNIST_Q, 0.5436, MNIST_STEPS)
    whole = [order for order in ORDERS if float(order).is_integer()]
    assert rdp_epsilon(happened, ADD, MNIST_DELTA, whole) == pytest.approx(8.69, abs=5e-3)
    assert rdp_epsilon(happened, ADD, MNIST_DELTA) == pytest.approx(8.00, abs=5e-3)
    assert epsilon_at(happened, MNIST_DELTA, ORDERS)[1] == 2.7


def test_a_tiny_delta_needs_orders_past_63():
    happened = poisson(256 / 50_000, 4.0, 3_907)
    near, far = (rdp_epsilon(happened, ADD, 1e-17, orders) for orders in (ORDERS, TAIL_ORDERS))
    assert epsilon_at(happened, 1e-17, TAIL_ORDERS)[1] > 63
    assert far < 0.99 * near


# Truncated Poisson sampling: Poisson's divergence, and the probability of a full batch in delta.


def truncated(size, rate, most, sigma, count):
    one = dp_accounting.TruncatedSubsampledGaussianDpEvent(size, rate, most, sigma)
    return dp_accounting.SelfComposedDpEvent(one, count)


def test_truncation_costs_its_probability():
    """Exact tails of the binomial, by their terms."""
    size, rate, most = 60, 0.05, 14
    full = math.fsum(
        math.comb(size - 1, k) * rate**k * (1 - rate) ** (size - 1 - k) for k in range(most, size)
    )
    happened = truncated(size, rate, most, 1.5, 20)
    assert truncation_mass(happened) == pytest.approx(20 * full, rel=1e-9, abs=0)
    plain = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(1.5)), 20
    )
    target = 3 * 20 * full
    want = rdp_epsilon(plain, ADD, target - 20 * full)
    assert rdp_epsilon(happened, ADD, target) == pytest.approx(want, rel=1e-12, abs=0)
    assert want > rdp_epsilon(plain, ADD, target)
    back = rdp_delta(happened, ADD, want)
    assert back == pytest.approx(rdp_delta(plain, ADD, want) + 20 * full, rel=1e-12, abs=0)


@settings(deadline=None, max_examples=12, derandomize=True, database=None)
@given(st.floats(0.7, 3.0), st.floats(0.01, 0.1), st.integers(1, 200), st.floats(4.5, 9.0))
def test_the_bound_is_above_the_tight_one(sigma, rate, count, deviations):
    """PLD composes the truncated mixture itself."""
    size = 1000
    most = math.ceil(size * rate + deviations * math.sqrt(size * rate)) + 5
    happened = truncated(size, rate, most, sigma, count)
    target = max(1e-6, 4 * truncation_mass(happened))
    assert pld_upper(happened, ADD, target) <= rdp_epsilon(happened, ADD, target)


def test_a_truncation_that_takes_the_delta_is_refused_and_the_advice_works():
    happened = truncated(1000, 0.05, 60, 1.0, 100)
    with pytest.raises(ValueError, match=r"delta = 1e-05 with .*larger max_size, .*'pld'"):
        epsilon_of(happened, ADD, 1e-5, "rdp")
    assert 0 < epsilon_of(happened, ADD, 1e-5, "pld") < math.inf
    assert 0 < epsilon_of(truncated(1000, 0.05, 120, 1.0, 100), ADD, 1e-5, "rdp") < math.inf
    assert rdp_delta(happened, ADD, 1.0) == 1.0


def test_a_random_number_of_truncated_runs_is_refused_and_the_advice_works():
    run, plain = TruncatedPoisson(50, 1000, 120), Poisson.with_rate(0.05)
    ask = {"steps": 50, "epsilon": 2.0, "delta": 1e-5}
    with pytest.raises(ValueError, match="expected Poisson sampling, or grid_composition"):
        repeat_and_select(5.0).plan(methods.dp_sgd(1.0), run, **ask)
    assert repeat_and_select(5.0).plan(methods.dp_sgd(1.0), plain, **ask)
    assert grid_composition(5).plan(methods.dp_sgd(1.0), run, **ask)
    assert liu_talwar(5).plan(methods.dp_sgd(1.0), TruncatedPoisson(50, 1000, 250), **ask)


def test_a_large_truncated_run():
    """100,000 steps at a delta of 1.1e-10, where RDP gives about twice what PLD gives."""
    size = 13 * 10**12 // 1024
    happened = truncated(size, 517_989 / size, 2**19, 0.614, 100_000)
    spent = rdp_epsilon(happened, ADD, 1.1e-10)
    assert 1.7 < spent < 3.5
