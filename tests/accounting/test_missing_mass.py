"""What the noise's bounded support costs, and that every accountant counts it."""

import math
import time

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import methods, schedules
from dpjax.accounting import Ledger, calibrate, delta, epsilon, event, privacy_statement
from dpjax.accounting.bound import delta_of, epsilon_of, upper_epsilon_of
from dpjax.accounting.missing_mass import PARAMETERS, delta_left, missing_mass
from dpjax.noise import SUPPORT
from dpjax.sampling import FullBatch

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
ACCOUNTANTS = ("pld", "rdp", "tcdp", "gdp")


def gaussian(sigma, count=1):
    return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(sigma), count)


def poisson(rate, sigma, count=1):
    one = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(one, count)


def tail(x):
    """The normal tail, in high precision."""
    with mp.workdps(40):
        return float(mp.erfc(mp.mpf(x) / mp.sqrt(2)) / 2)


def exact(sigma):
    """The docstring's formula for one release."""
    some = tail(SUPPORT - 0.09) / (0.09 * sigma) ** 2
    far = 1.001 * (tail(SUPPORT - 1 / sigma) + some)
    return far + PARAMETERS * inner(1 / (sigma * PARAMETERS**0.5))


def inner(shift):
    """P(z > m - shift) for a small shift: the outermost radius alone, with room for float32."""
    return 2.0**-96 * math.acos(1 - shift / SUPPORT - 2.0**-20) / math.pi


def law(shift):
    """A bound on P(z > m - shift) for any shift."""
    return inner(shift) if shift <= 0.09 else 1.001 * tail(SUPPORT - shift)


@pytest.mark.parametrize("sigma", [0.15, 0.2, 0.5, 1.0, 30.0])
def test_the_formula(sigma):
    one = exact(sigma)
    assert missing_mass(gaussian(sigma), ADD) == pytest.approx(one, rel=1e-9, abs=0)
    assert missing_mass(gaussian(2 * sigma), REPLACE) == pytest.approx(one, rel=1e-9, abs=0)
    assert missing_mass(poisson(0.03, sigma, 700), ADD) == pytest.approx(21 * one, rel=1e-9, abs=0)
    fixed = dp_accounting.SampledWithoutReplacementDpEvent(
        100, 7, dp_accounting.GaussianDpEvent(2 * sigma)
    )
    assert missing_mass(fixed, REPLACE) == pytest.approx(0.07 * one, rel=1e-9, abs=0)
    search = RepeatAndSelectDpEvent(poisson(0.03, sigma, 700), 5.0, 1.0)
    assert missing_mass(search, ADD) == pytest.approx(105 * one, rel=1e-9, abs=0)
    assert missing_mass(dp_accounting.LaplaceDpEvent(sigma), ADD) == 0.0


def test_truncated_sampling_moves_two_examples():
    one = dp_accounting.TruncatedSubsampledGaussianDpEvent(3, 0.5, 2, 0.4)
    want = 0.5 * (exact(0.4) + 0.25 * exact(0.2))
    assert missing_mass(one, ADD) == pytest.approx(want, rel=1e-9, abs=0)


def test_unsampled_releases_are_not_merged():
    """100 Gaussians of sigma 2 are one of .2 to the accountants, but each has a support."""
    assert missing_mass(gaussian(2.0, 100), ADD) == pytest.approx(100 * exact(2.0), rel=1e-9, abs=0)
    assert missing_mass(gaussian(0.2), ADD) > 1e3 * missing_mass(gaussian(2.0, 100), ADD)


@settings(deadline=None, max_examples=200, derandomize=True, database=None)
@given(
    st.floats(0.12, 20.0),
    st.lists(st.tuples(st.floats(1e-6, 1.0), st.integers(0, 40)), min_size=1, max_size=4),
)
def test_no_way_to_move_the_coordinates_costs_more(sigma, groups):
    """Groups of 2^j coordinates, each with a share of the squared distance."""
    weights = np.array([weight for weight, _ in groups])
    numbers = 2.0 ** np.array([j for _, j in groups])
    squares = weights / weights.sum()  # of each group
    if numbers.sum() > PARAMETERS:
        numbers *= PARAMETERS / numbers.sum()
    cost = sum(
        n * law(math.sqrt(square / n) / sigma) for n, square in zip(numbers, squares, strict=True)
    )
    assert cost <= missing_mass(gaussian(sigma), ADD) * (1 + 1e-9)


@pytest.mark.parametrize("shift", [1e-6, 1e-3, 0.01, 0.03, 0.05, 0.09, 0.1, 0.15, 0.3, 0.5, 0.8])
def test_the_discrete_law_is_within_the_normal_tail(shift):
    """Radii from (i + 1/2) 2^-96 times the sine of a uniform angle, atom by atom."""
    with mp.workdps(60):
        end = mp.sqrt(2 * 97 * mp.log(2)) - mp.mpf(shift)
        atoms = int(mp.floor(mp.exp(-(end**2) / 2) * mp.mpf(2) ** 96 + mp.mpf(1) / 2))
        total = mp.mpf(0)
        for i in range(atoms):
            radius = mp.sqrt(-2 * mp.log((i + mp.mpf(1) / 2) / mp.mpf(2) ** 96))
            total += mp.acos(end / radius) / mp.pi
        exactly = float(total / mp.mpf(2) ** 96)
    assert 0 < exactly <= tail(SUPPORT - shift)
    assert tail(SUPPORT - shift) - exactly <= 2.0**-98
    if shift <= 0.09:
        assert atoms == 1
        assert exactly <= inner(shift) <= 1.001 * exactly + inner(0.0)


def test_the_outermost_atom_leaves_the_support():
    """Why Q(m) is not taken off: a density's loss vanishes with the shift, an atom's does not."""
    density = tail(SUPPORT - 1e-9) - tail(SUPPORT)
    assert inner(1e-9) > 1e3 * density
    assert missing_mass(gaussian(1e9), ADD) >= PARAMETERS * inner(0.0)


def test_a_million_steps_at_1e_12():
    assert missing_mass(gaussian(1.0, 10**6), ADD) < 1e-2 * 1e-12


# Every accountant counts it.

LOUD = gaussian(0.2)  # F = Q(6.6) = 2.1e-11


@pytest.mark.parametrize("accountant", ["pld", "rdp", "gdp"])
def test_epsilon_is_taken_at_what_is_left(accountant):
    missing = missing_mass(LOUD, ADD)
    target = 4 * missing
    bound = epsilon_of(LOUD, ADD, target, accountant)
    assert upper_epsilon_of(LOUD, ADD, target, accountant) == bound
    assert f"{missing:.2g} of delta pays for the bounded support" in bound.note
    assert bound.guarantee
    # At three quarters of delta, by the same accountant where the mass does not show.
    back = delta_of(LOUD, ADD, float(bound), accountant)
    assert back == pytest.approx(target, rel=2e-3, abs=0)
    assert "bounded support" in back.note
    if accountant == "gdp":
        with mp.workdps(40):
            e, mu = mp.mpf(float(bound)), mp.mpf(5)
            ideal = mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu)
        assert float(ideal) == pytest.approx(3 * missing, rel=1e-6, abs=0)


def test_the_lower_bound_is_at_the_whole_delta():
    missing = missing_mass(LOUD, ADD)
    bound = epsilon_of(LOUD, ADD, 2.001 * missing, "pld")
    ideal = epsilon_of(gaussian(0.2), ADD, 2.001 * missing, "pld").lower
    assert bound.lower <= ideal * (1 + 1e-12) < bound


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_an_ordinary_delta_does_not_notice(accountant):
    bound = epsilon_of(poisson(0.01, 6.0, 1000), ADD, 1e-5, accountant)
    assert "bounded" not in bound.note


@pytest.mark.parametrize("accountant", ["pld", "rdp", "gdp"])
@pytest.mark.parametrize("happened", [LOUD, poisson(0.5, 0.18, 9), gaussian(5.0, 10**6)])
def test_a_delta_that_it_would_dominate_is_refused_and_the_advice_works(happened, accountant):
    missing = missing_mass(happened, ADD)
    small = 1.9 * missing
    for ask in (epsilon_of, upper_epsilon_of):
        with pytest.raises(ValueError, match=rf"delta = {small:g}: .*{missing:.2g} here") as error:
            ask(happened, ADD, small, accountant)
    words = str(error.value)
    assert words.count(". ") == 0
    above = float(words.rsplit(" ", 1)[1])
    assert upper_epsilon_of(happened, ADD, 1.01 * above, accountant) > 0
    if "more noise" in words:
        louder = gaussian(100.0, 10) if happened is not LOUD else gaussian(100.0)
        assert upper_epsilon_of(louder, ADD, small, accountant) >= 0
    else:
        assert happened == gaussian(5.0, 10**6)  # where no noise is enough
        with pytest.raises(ValueError, match="expected a delta above"):
            upper_epsilon_of(gaussian(1e6, 10**6), ADD, small, accountant)


def test_rdps_events_are_halved_already():
    _, halved = delta_left(gaussian(0.2), REPLACE, 1e-10, "rdp")
    with pytest.raises(ValueError, match="delta = 1e-10"):
        delta_left(gaussian(0.2), REPLACE, 1e-10, "pld")
    _, whole = delta_left(gaussian(0.4), REPLACE, 1e-10, "pld")
    assert halved == whole != ""


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_calibration_is_on_the_safe_side(accountant):
    """A budget whose best noise has a support that shows."""
    budget, target = 40.0, 1e-10
    found = calibrate(methods.dp_sgd(1.0), FullBatch(), 1, budget, target, accountant)
    sigma = found.noise_multiplier
    assert missing_mass(gaussian(sigma), ADD) > 1e-3 * target
    spent = epsilon(found, FullBatch(), 1, target, accountant)
    assert 0.999 * budget <= spent <= budget
    assert delta(found, FullBatch(), 1, budget, accountant) <= target * (1 + 1e-9)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_budget_that_only_refused_noise_would_spend(accountant):
    """The advice, a smaller epsilon, works."""
    ask = (methods.dp_sgd(1.0), FullBatch(), 1)
    with pytest.raises(ValueError, match=r"ends at 11\.6 .*; expected a smaller epsilon"):
        calibrate(*ask, 100.0, 1e-10, accountant)
    assert calibrate(*ask, 40.0, 1e-10, accountant)


def test_a_long_schedule_is_quick():
    curve = schedules.table(tuple(np.geomspace(4.0, 0.5, 2000)), steps_per_epoch=1)
    happened = event(methods.dp_sgd(curve), FullBatch(), 2000)
    want = sum(exact(float(np.float32(s))) for s in np.geomspace(4.0, 0.5, 2000))
    start = time.perf_counter()
    assert missing_mass(happened, ADD) == pytest.approx(want, rel=1e-5, abs=0)
    assert time.perf_counter() - start < 0.5


def test_the_statement_says_it():
    method = methods.dp_sgd(0.2)
    said = privacy_statement(Ledger("digits").add_steps(method, FullBatch()), 1e-10)
    assert "-differentially private." in said
    assert "of delta pays for the bounded support of the noise" in said
    assert "bounded" not in privacy_statement(Ledger("digits").add_steps(method, FullBatch()), 1e-5)
