"""More noise costs less, more of anything else costs more; and what is no number is refused."""

import math
import re
from typing import NamedTuple

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import methods, schedules
from dpjax.accounting import calibrate, delta, epsilon, largest_batch, max_steps
from dpjax.sampling import FixedSize, FullBatch, Poisson, TruncatedPoisson

SIZE = 2_000


class Case(NamedTuple):
    """An accountant of a sampler, where it is defined, and how often it can be asked."""

    accountant: str
    sampling: type
    relation: str
    least_sigma: float
    most_rate: float
    examples: int


CASES = [
    Case("pld", Poisson, "add_or_remove_one", 0.7, 0.5, 5),
    Case("pld", Poisson, "replace_one", 0.7, 0.5, 4),
    Case("pld", TruncatedPoisson, "add_or_remove_one", 0.7, 0.5, 4),
    Case("pld", FullBatch, "add_or_remove_one", 2.0, 1.0, 10),
    Case("rdp", Poisson, "add_or_remove_one", 0.7, 0.5, 10),
    Case("rdp", FixedSize, "replace_one", 1.5, 0.05, 8),
    Case("rdp", FullBatch, "replace_one", 2.0, 1.0, 30),
    Case("tcdp", Poisson, "add_or_remove_one", 2.3, 0.09, 50),
    Case("tcdp", FixedSize, "replace_one", 4.6, 0.09, 50),
    Case("gdp", Poisson, "add_or_remove_one", 0.7, 0.5, 50),
    Case("gdp", FullBatch, "add_or_remove_one", 0.7, 1.0, 50),
]
EVERY = pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c.accountant}, {c.sampling.__name__}, {c.relation}"
)


def sampler(case, rate):
    if case.sampling is FullBatch:
        return FullBatch()
    if case.sampling is FixedSize:
        return FixedSize(max(1, round(rate * SIZE)), SIZE)
    if case.sampling is TruncatedPoisson:
        return TruncatedPoisson(rate * SIZE, SIZE, min(SIZE, round(1.2 * rate * SIZE) + 20))
    return Poisson.with_rate(rate)


def spent(case, sigma, rate, steps, target):
    return epsilon(
        methods.dp_sgd(sigma),
        sampler(case, rate),
        steps,
        target,
        case.accountant,
        relation=case.relation,
    )


def runs(case):
    """Sigma, rate, steps and delta, with room above each for twice as much."""
    return (
        st.floats(case.least_sigma, 4 * case.least_sigma),
        st.floats(0.01, case.most_rate / 2),
        st.integers(1, 150),
        st.sampled_from([1e-6, 1e-5, 1e-4]),
    )


def for_many(case, check):
    """Runs a check on examples that are the same every time."""
    settings(deadline=None, max_examples=case.examples, derandomize=True, database=None)(
        given(*runs(case), st.floats(1.05, 2.0))(check)
    )()


@EVERY
def test_more_noise_costs_less(case):
    def check(sigma, rate, steps, target, factor):
        less = spent(case, sigma, rate, steps, target)
        assert math.isfinite(less)
        assert spent(case, factor * sigma, rate, steps, target) < less or less == 0

    for_many(case, check)


@EVERY
def test_more_steps_cost_more(case):
    def check(sigma, rate, steps, target, factor):
        few = spent(case, sigma, rate, steps, target)
        more = spent(case, sigma, rate, math.ceil(factor * steps), target)
        assert more > few or more == 0

    for_many(case, check)


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.sampling in (Poisson, FixedSize)],
    ids=lambda c: f"{c.accountant}, {c.sampling.__name__}, {c.relation}",
)
def test_larger_batches_cost_more(case):
    def check(sigma, rate, steps, target, factor):
        rate = max(rate, 0.02)  # a batch of 40 that grows by 2 at least
        small = spent(case, sigma, rate, steps, target)
        large = spent(case, sigma, factor * rate, steps, target)
        assert large > small or large == 0

    for_many(case, check)


@EVERY
def test_a_smaller_delta_costs_more(case):
    def check(sigma, rate, steps, target, factor):
        small = spent(case, sigma, rate, steps, target / factor)
        assert small > spent(case, sigma, rate, steps, target) or small == 0

    for_many(case, check)


@EVERY
def test_a_larger_epsilon_has_a_smaller_delta(case):
    def check(sigma, rate, steps, target, factor):
        run = (methods.dp_sgd(sigma), sampler(case, rate), steps)
        ask = {"accountant": case.accountant, "relation": case.relation}
        at = float(spent(case, sigma, rate, steps, target))
        near, far = delta(*run, at, **ask), delta(*run, factor * at, **ask)
        assert 0 <= far <= near <= 1
        assert far < near or at == 0

    for_many(case, check)


@settings(deadline=None, max_examples=6, derandomize=True, database=None)
@given(st.lists(st.floats(0.8, 4.0), min_size=2, max_size=6), st.integers(0, 5))
def test_more_noise_in_one_epoch_costs_less(sigmas, place):
    louder = [*sigmas]
    louder[place % len(sigmas)] *= 1.1
    before, after = (
        epsilon(
            methods.dp_sgd(schedules.table(tuple(values), steps_per_epoch=10)),
            Poisson.with_rate(0.02),
            10 * len(values),
            1e-5,
            "rdp",
        )
        for values in (sigmas, louder)
    )
    assert after < before


@pytest.mark.parametrize("accountant", ["pld", "rdp", "gdp"])
@pytest.mark.parametrize("sampling", [Poisson.with_rate(0.01), FullBatch()])
def test_hardly_any_noise_is_not_free(accountant, sampling):
    assert epsilon(methods.dp_sgd(0.2), sampling, 10, 1e-5, accountant) > 15
    for hardly in (0.1, 0.01, 1e-6):
        with pytest.raises(ValueError, match=r"delta = 1e-05: .*expected more noise"):
            epsilon(methods.dp_sgd(hardly), sampling, 10, 1e-5, accountant)
        assert delta(methods.dp_sgd(hardly), sampling, 10, 1.0, accountant) > 1e-2


@pytest.mark.parametrize("accountant", ["pld", "rdp", "tcdp", "gdp"])
def test_a_lot_of_noise_costs_next_to_nothing(accountant):
    assert 0 <= epsilon(methods.dp_sgd(1e6), Poisson.with_rate(0.01), 10, 1e-5, accountant) < 1e-4


# What is no number.

NAN, INF = math.nan, math.inf
NO_NUMBERS = [NAN, INF, -1, True, "1", None]
POSITIVE = [*NO_NUMBERS, 0, 0.0]
FRACTION = [*NO_NUMBERS, 0, 1, 2, 1.0]
WHOLE = [*NO_NUMBERS, 0, 1.5, 2.0]
FROM_ZERO = [*NO_NUMBERS, 1.5]

RUN = {"mechanism": methods.dp_sgd(6.0), "sampling": Poisson.with_rate(0.01), "steps": 10}
BUDGET = {"epsilon": 1.0, "delta": 1e-5}
MORE = {"mechanism": RUN["mechanism"], **BUDGET}
BAD = {
    epsilon: (
        {**RUN, "delta": 1e-5},
        {"delta": FRACTION, "steps": WHOLE, "start": FROM_ZERO},
    ),
    delta: ({**RUN, "epsilon": 0.01}, {"epsilon": NO_NUMBERS, "steps": WHOLE, "start": FROM_ZERO}),
    calibrate: (
        {**RUN, **BUDGET},
        {"epsilon": POSITIVE, "delta": FRACTION, "steps": WHOLE, "start": FROM_ZERO},
    ),
    max_steps: (
        {**MORE, "sampling": RUN["sampling"]},
        {"epsilon": POSITIVE, "delta": FRACTION, "start": FROM_ZERO, "most": WHOLE},
    ),
    largest_batch: (
        {**MORE, "dataset_size": 1_000, "steps": 10},
        {
            "epsilon": POSITIVE,
            "delta": FRACTION,
            "dataset_size": WHOLE,
            "steps": WHOLE,
            "start": FROM_ZERO,
        },
    ),
}
HOSTILE = [
    (function, field, bad)
    for function, (_, fields) in BAD.items()
    for field, values in fields.items()
    for bad in values
]


@pytest.mark.parametrize(
    ("function", "field", "bad"),
    HOSTILE,
    ids=[f"{function.__name__}, {field} = {bad!r}" for function, field, bad in HOSTILE],
)
def test_what_is_no_number_is_refused(function, field, bad):
    arguments = {**BAD[function][0], field: bad}
    for accountant in ("pld", "rdp", "tcdp", "gdp"):
        with pytest.raises((ValueError, TypeError), match=f"{field} = {re.escape(repr(bad))}"):
            function(**arguments, accountant=accountant)


@pytest.mark.parametrize("function", BAD, ids=lambda function: function.__name__)
def test_the_rest_of_the_arguments_is_fine(function):
    """So that each refusal above is of the field it names."""
    for accountant in ("pld", "rdp", "gdp"):
        assert function(**BAD[function][0], accountant=accountant)


@pytest.mark.parametrize("bad", [[], [1.0], [0.5], [NAN], [2.0, NAN], [INF]])
@pytest.mark.parametrize("function", [epsilon, delta, calibrate])
def test_orders_are_numbers_above_one(function, bad):
    with pytest.raises(ValueError, match=r"orders = .*expected finite numbers > 1"):
        function(**BAD[function][0], accountant="rdp", orders=bad)


@pytest.mark.parametrize("accountant", ["pld", "tcdp", "gdp"])
@pytest.mark.parametrize("function", [epsilon, delta, calibrate])
def test_orders_are_for_rdp(function, accountant):
    with pytest.raises(ValueError, match=f"orders with accountant = '{accountant}'"):
        function(**BAD[function][0], accountant=accountant, orders=[2.0])


@pytest.mark.parametrize("function", BAD, ids=lambda function: function.__name__)
def test_an_accountant_that_is_none(function):
    for bad in ("pdl", None, 3):
        with pytest.raises(ValueError, match=f"accountant = {bad!r}"):
            function(**BAD[function][0], accountant=bad)


@pytest.mark.parametrize("bad", [NAN, INF, -1.0])
def test_a_noise_multiplier_that_is_none(bad):
    with pytest.raises(ValueError, match="noise_multiplier = "):
        methods.dp_sgd(bad)


@pytest.mark.parametrize("bad", [NAN, INF, 0.0])
@pytest.mark.parametrize("function", [epsilon, delta, max_steps, largest_batch])
def test_a_curve_that_is_none(function, bad):
    """TRAPS 4: NaN and inf cost nothing, to dp-accounting's RDP."""
    curve = methods.dp_sgd(lambda t: jnp.where(t == 300, bad, 6.0))
    arguments = {**BAD[function][0], "mechanism": curve, "start": 300}
    for accountant in ("pld", "rdp", "tcdp", "gdp"):
        with pytest.raises(ValueError, match=r"noise_multiplier = .* at step 300"):
            function(**arguments, accountant=accountant)
