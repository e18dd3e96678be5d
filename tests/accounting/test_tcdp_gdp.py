"""Truncated concentrated and Gaussian DP."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import stats

from dpjax import methods, schedules
from dpjax.accounting import delta, epsilon
from dpjax.accounting.gdp import APPROXIMATION, gdp_delta, gdp_epsilon, gdp_mu
from dpjax.accounting.tcdp import NOT_PROVEN, TCdp, tcdp, tcdp_delta, tcdp_epsilon
from dpjax.sampling import FixedSize, FullBatch, Poisson, TruncatedPoisson
from tests.oracles.accounting import epsilon_composed, epsilon_gaussian, rdp_poisson_gaussian

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
DELTA = 1e-5


def gaussian(sigma, count=1):
    return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(sigma), count)


def poisson(q, sigma, count=1):
    one = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(one, count)


def fixed(size, dataset_size, sigma, count=1):
    one = dp_accounting.SampledWithoutReplacementDpEvent(
        dataset_size, size, dp_accounting.GaussianDpEvent(sigma)
    )
    return dp_accounting.SelfComposedDpEvent(one, count)


def both(*events):
    return dp_accounting.ComposedDpEvent(list(events))


def as_close(guarantee):
    return pytest.approx(guarantee, rel=1e-12)


# tCDP: the lemmas.


def test_a_gaussian():
    """rho = (change / sigma)^2 / 2; replace-one changes the sum by two bounds."""
    assert tcdp(gaussian(2.0), ADD) == as_close((0.125, math.inf))
    assert tcdp(gaussian(2.0), REPLACE) == as_close((0.5, math.inf))
    assert tcdp(gaussian(2.0, 6), ADD) == as_close((0.75, math.inf))


def test_sampling():
    """sigma 5: rho = .02, so 13 e-4 * .02 = 2.6e-5 and log(100) / .08 = 57.56."""
    assert tcdp(poisson(0.01, 5.0), ADD) == as_close((2.6e-5, math.log(100) / 0.08))
    # replace-one, sigma 10: the same rho.
    assert tcdp(fixed(5, 500, 10.0), REPLACE) == as_close((2.6e-5, math.log(100) / 0.08))


def test_composition_adds_rho_and_takes_the_smallest_omega():
    one, other = tcdp(poisson(0.01, 5.0), ADD), tcdp(poisson(0.01, 4.0), ADD)
    whole = tcdp(both(poisson(0.01, 5.0, 30), poisson(0.01, 4.0, 7), gaussian(9.0)), ADD)
    assert whole.rho == pytest.approx(30 * one.rho + 7 * other.rho + 1 / 162, rel=1e-12)
    assert whole.omega == pytest.approx(other.omega, rel=1e-12)
    assert other.omega < one.omega


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (poisson(0.01, 2.23), ADD),  # rho = .1005
        (poisson(0.11, 5.0), ADD),
        (fixed(5, 500, 4.4), REPLACE),  # rho = 2 / 4.4^2 = .1033
        (fixed(60, 500, 20.0), REPLACE),
        (both(poisson(0.01, 9.0, 100), poisson(0.01, 1.0)), ADD),  # one step is enough
    ],
)
def test_outside_the_lemma_there_is_no_number(event, relation):
    with pytest.raises(ValueError, match=r"lemma needs rho <= 0.1 and rate <= 0.1.*'pld' or 'rdp'"):
        tcdp(event, relation)


def test_the_edges_of_the_lemma():
    assert tcdp(poisson(0.1, math.sqrt(5.001)), ADD).rho > 0  # rho = .09998
    assert tcdp(poisson(0.1, 50.0), ADD).rho > 0
    # log(1/q) >= 3 rho (2 + log2(1/rho)) follows: .1 asks for 1.6, and log(10) is 2.3.
    rho = np.geomspace(1e-9, 0.1, 200)
    assert np.all(3 * rho * (2 + np.log2(1 / rho)) < math.log(10))


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.LaplaceDpEvent(1.0),
        dp_accounting.TruncatedSubsampledGaussianDpEvent(500, 0.01, 9, 5.0),
    ],
)
def test_no_lemma_no_number(event):
    with pytest.raises(ValueError, match=r"tCDP has no lemma for it; expected '(rdp|pld)'"):
        tcdp(event, ADD)


@pytest.mark.parametrize(
    "guarantee",
    [
        TCdp(0.02, math.inf),
        TCdp(0.02, 40.0),
        TCdp(0.02, 10.0),
        TCdp(1e-4, 57.0),
        TCdp(3.0, 5.0),
        TCdp(3.0, 1.5),
        TCdp(1e-3, 1.1),
    ],
)
@pytest.mark.parametrize("target", [1e-2, 1e-5, 1e-9])
def test_the_conversion_is_the_best_order(guarantee, target):
    """min over 1 < alpha <= omega of rho alpha + log(1/delta) / (alpha - 1), by trying them all."""
    rho, omega = guarantee
    orders = 1 + np.geomspace(1e-3, min(omega - 1, 1e5), 400_001)
    want = np.min(rho * orders + math.log(1 / target) / (orders - 1))
    assert tcdp_epsilon(guarantee, target) == pytest.approx(want, rel=1e-8)


def test_both_branches_of_the_conversion_are_met():
    room = math.log(1e5)
    free, held = TCdp(0.02, 40.0), TCdp(0.02, 10.0)
    assert room <= (free.omega - 1) ** 2 * free.rho
    assert tcdp_epsilon(free, 1e-5) == as_close(0.02 + 2 * math.sqrt(0.02 * room))
    assert room > (held.omega - 1) ** 2 * held.rho
    assert tcdp_epsilon(held, 1e-5) == as_close(0.2 + room / 9)


@pytest.mark.parametrize(("rho", "omega"), [(0.02, math.inf), (0.02, 40.0), (0.02, 10.0)])
@pytest.mark.parametrize("target", [1e-2, 1e-5])
def test_delta_undoes_epsilon(rho, omega, target):
    guarantee = TCdp(rho, omega)
    assert tcdp_delta(guarantee, tcdp_epsilon(guarantee, target)) == pytest.approx(target, rel=1e-6)
    assert tcdp_delta(guarantee, 0.0) == 1.0


@pytest.mark.parametrize("omega", [1.0, 0.4, math.nan])
def test_no_order_no_epsilon(omega):
    with pytest.raises(ValueError, match="no epsilon follows; expected an omega > 1"):
        tcdp_epsilon(TCdp(0.02, omega), DELTA)
    assert tcdp_delta(TCdp(0.02, omega), 3.0) == 1.0


# tCDP: what it is worth.


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 3.0, 500), (0.1, 4.0, 50), (1e-3, 9, 9)])
def test_tcdp_is_above_the_truth(q, sigma, steps):
    spent = epsilon(methods.dp_sgd(sigma), Poisson.with_rate(q), steps, DELTA, "tcdp")
    assert spent > epsilon_composed([(q, sigma, steps)], DELTA)
    tight = epsilon(methods.dp_sgd(sigma), Poisson.with_rate(q), steps, DELTA, "pld")
    assert spent > tight.lower
    assert delta(methods.dp_sgd(sigma), Poisson.with_rate(q), steps, float(tight), "tcdp") > DELTA


def test_tcdp_of_fixed_size_is_above_rdps():
    """Both are bounds; the lemma's constant of 13 makes this one the larger."""
    run = (methods.dp_sgd(6.0), FixedSize(5, 500), 300, DELTA)
    assert epsilon(*run, "tcdp") > epsilon(*run, "rdp")


@pytest.mark.parametrize("q", [1e-3, 0.01, 0.1])
@pytest.mark.parametrize("sigma", [math.sqrt(5.001), 3.0, 6.0])
def test_the_lemma_holds_under_poisson_sampling(q, sigma):
    """Numerically, up to omega: the divergence itself is below 13 q^2 rho alpha, by far."""
    rho, omega = tcdp(poisson(q, sigma), ADD)
    for order in (1.1, 2.0, 3.3, min(omega, 12.0), omega):
        exact = rdp_poisson_gaussian(q, sigma, order)
        assert exact <= rho * order
        assert exact < 0.1 * rho * order  # as the note says
    # A lemma without its factor of 13 would not hold.
    assert rdp_poisson_gaussian(q, sigma, min(omega, 12.0)) > rho / 13 * min(omega, 12.0) * 0.99


@pytest.mark.parametrize(
    ("sampling", "guarantee", "note"),
    [
        (Poisson.with_rate(0.01), False, NOT_PROVEN),
        (FixedSize(5, 500), True, ""),
        (FullBatch(), True, ""),
    ],
)
def test_the_label_of_tcdp(sampling, guarantee, note):
    method = methods.dp_sgd(6.0)
    for number in (
        epsilon(method, sampling, 20, DELTA, "tcdp"),
        delta(method, sampling, 20, 1.0, "tcdp"),
    ):
        # At so large an epsilon the noise's bounded support shows in delta.
        assert (number.guarantee, number.note.split("; 1.2e-21 of")[0]) == (guarantee, note)
        assert (number.accountant, number.lower) == ("tcdp", 0.0)
    assert "not proven" in NOT_PROVEN


def test_a_schedule_outside_the_lemma_names_its_step():
    method = methods.dp_sgd(schedules.table((5.0, 2.0), steps_per_epoch=10))
    assert epsilon(method, Poisson.with_rate(0.01), 10, DELTA, "tcdp") > 0
    with pytest.raises(ValueError, match=r"noise_multiplier = 2, rate = 0.01.*rho = 0.125"):
        epsilon(method, Poisson.with_rate(0.01), 11, DELTA, "tcdp")


# GDP.


def test_mu_of_poisson_sampling():
    """mu = q sqrt(T (e^(1/sigma^2) - 1))."""
    mu, exact = gdp_mu(poisson(0.01, 2.0, 400), ADD)
    assert mu == as_close(0.01 * math.sqrt(400 * (math.e**0.25 - 1)))
    assert not exact


def test_mu_adds_up_in_squares():
    event = both(poisson(0.01, 2.0, 400), poisson(0.02, 1.0, 30), gaussian(10.0, 4))
    want = 4e-2 * (math.e**0.25 - 1) + 1.2e-2 * (math.e - 1) + 0.04
    mu, exact = gdp_mu(event, ADD)
    assert mu == as_close(math.sqrt(want))
    assert not exact


@pytest.mark.parametrize(("relation", "change"), [(ADD, 1), (REPLACE, 2)])
def test_mu_without_sampling(relation, change):
    mu, exact = gdp_mu(both(gaussian(2.0, 3), gaussian(4.0)), relation)
    assert mu == as_close(change * math.sqrt(3 / 4 + 1 / 16))
    assert exact


@pytest.mark.parametrize("mu", [0.05, 1.0, 7.0])
def test_epsilon_and_delta_of_mu(mu):
    for target in (1e-2, 1e-5, 1e-10):
        want = epsilon_gaussian(mu, target)
        assert gdp_epsilon(mu, target) == pytest.approx(want, rel=1e-6, abs=1e-9)
    for spent in (0.0, 0.1, 2.0):
        a, b = stats.norm.cdf([mu / 2 - spent / mu, -mu / 2 - spent / mu])
        assert gdp_delta(mu, spent) == pytest.approx(a - math.exp(spent) * b, rel=1e-7, abs=1e-15)


def test_extreme_mu():
    assert (gdp_epsilon(0.0, DELTA), gdp_delta(0.0, 1.0)) == (0.0, 0.0)
    assert (gdp_epsilon(math.inf, DELTA), gdp_delta(math.inf, 1.0)) == (math.inf, 1.0)
    assert gdp_mu(poisson(0.01, 0.02), ADD)[0] == math.inf  # e^2500: no warning, no zero


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (poisson(0.01, 1.0), REPLACE),
        (fixed(5, 500, 1.0), REPLACE),
        (dp_accounting.TruncatedSubsampledGaussianDpEvent(500, 0.01, 9, 5.0), ADD),
        (dp_accounting.LaplaceDpEvent(1.0), ADD),
    ],
)
def test_no_figure(event, relation):
    with pytest.raises(ValueError, match="GDP has no figure for it; expected"):
        gdp_mu(event, relation)


@pytest.mark.parametrize("noise", [3.0, schedules.table((5.0, 2.5), steps_per_epoch=4)])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_gdp_is_exact_for_full_batches(noise, relation):
    run = (methods.dp_sgd(noise), FullBatch(), 9)
    spent = epsilon(*run, DELTA, "gdp", relation=relation)
    assert (spent.guarantee, spent.note) == (True, "")
    tight = epsilon(*run, DELTA, "pld", relation=relation)
    assert spent == pytest.approx(tight, rel=1e-4)
    assert tight.lower <= spent <= tight
    back = delta(*run, float(spent), "gdp", relation=relation)
    assert (back.guarantee, back.note) == (True, "")
    assert back == pytest.approx(DELTA, rel=1e-4)


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 0.8, 500), (256 / 60_000, 0.7, 2_344)])
def test_gdp_is_too_small_under_poisson_sampling(q, sigma, steps):
    """TRAPS 10: below the lower bound of what is true, and labelled."""
    run = (methods.dp_sgd(sigma), Poisson.with_rate(q), steps)
    spent = epsilon(*run, DELTA, "gdp")
    assert spent < epsilon(*run, DELTA, "pld").lower
    assert spent < epsilon_composed([(q, sigma, steps)], DELTA)
    for number in (spent, delta(*run, 1.0, "gdp")):
        assert (number.guarantee, number.note) == (False, APPROXIMATION)
    assert "no guarantee" in APPROXIMATION


def test_numbers_with_a_guarantee_have_no_note():
    for sampling, accountant in [
        (Poisson.with_rate(0.01), "pld"),
        (Poisson.with_rate(0.01), "rdp"),
        (TruncatedPoisson(5, 500, 20), "pld"),
        (FixedSize(5, 500), "rdp"),
    ]:
        spent = epsilon(methods.dp_sgd(2.0), sampling, 10, DELTA, accountant)
        assert (spent.guarantee, spent.note) == (True, "")
