"""A run is the same run however it is written: repeated, listed, or in parts (TRAPS 5)."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, NeighboringRelation, SelfComposedDpEvent

from dpjax import methods, schedules
from dpjax.accounting import event
from dpjax.accounting.bound import delta_of, epsilon_of
from dpjax.sampling import FixedSize, FullBatch, Poisson, TruncatedPoisson

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
DELTA, COUNT = 1e-5, 7  # odd: parts differ

GAUSSIAN = dp_accounting.GaussianDpEvent(6.0)
POISSON = dp_accounting.PoissonSampledDpEvent(0.05, GAUSSIAN)
TRUNCATED = dp_accounting.TruncatedSubsampledGaussianDpEvent(500, 0.05, 30, 2.0)
FIXED = dp_accounting.SampledWithoutReplacementDpEvent(500, 5, GAUSSIAN)
LAPLACE = dp_accounting.LaplaceDpEvent(10.0)
MIXED = ComposedDpEvent(
    [
        SelfComposedDpEvent(POISSON, 3),
        dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(4.0)),
        GAUSSIAN,
    ]
)
WITH_LAPLACE = ComposedDpEvent([POISSON, LAPLACE])

CASES = [
    *(("gaussian", GAUSSIAN, ADD, name) for name in ("pld", "rdp", "tcdp", "gdp")),
    *(("gaussian", GAUSSIAN, REPLACE, name) for name in ("pld", "rdp", "tcdp", "gdp")),
    *(("poisson", POISSON, ADD, name) for name in ("pld", "rdp", "tcdp", "gdp")),
    ("poisson", POISSON, REPLACE, "pld"),
    *(("truncated", TRUNCATED, relation, "pld") for relation in (ADD, REPLACE)),
    *(("fixed size", FIXED, REPLACE, name) for name in ("rdp", "tcdp")),
    *(("laplace", LAPLACE, ADD, name) for name in ("pld", "rdp")),
    *(("mixed", MIXED, ADD, name) for name in ("pld", "rdp", "tcdp", "gdp")),
    ("mixed", MIXED, REPLACE, "pld"),
    *(("with laplace", WITH_LAPLACE, ADD, name) for name in ("pld", "rdp")),
]
EVERY = pytest.mark.parametrize(
    ("one", "relation", "accountant"),
    [case[1:] for case in CASES],
    ids=[f"{name}, {relation.name.lower()}, {who}" for name, _, relation, who in CASES],
)


def ways(one):
    """The same 7 releases, written in other words."""
    half = SelfComposedDpEvent(one, COUNT // 2)
    return {
        "listed": ComposedDpEvent([one] * COUNT),
        "two parts": ComposedDpEvent([half, SelfComposedDpEvent(one, COUNT - COUNT // 2)]),
        "nested": ComposedDpEvent([SelfComposedDpEvent(half, 2), ComposedDpEvent([one])]),
        "with nothing": ComposedDpEvent(
            [SelfComposedDpEvent(one, COUNT), dp_accounting.NoOpDpEvent()]
        ),
    }


@EVERY
def test_the_same_run_costs_the_same(one, relation, accountant):
    # dp-accounting cuts a tail of 1e-11 off at every composition with a Laplace loss.
    rel = 1e-6 if (one, accountant) == (WITH_LAPLACE, "pld") else 1e-9
    whole = SelfComposedDpEvent(one, COUNT)
    spent = epsilon_of(whole, relation, DELTA, accountant)
    left = delta_of(whole, relation, float(spent), accountant)
    assert 0 < spent < math.inf
    for happened in ways(one).values():
        assert epsilon_of(happened, relation, DELTA, accountant) == pytest.approx(spent, rel=rel)
        back = delta_of(happened, relation, float(spent), accountant)
        assert back == pytest.approx(left, rel=10 * rel)


@EVERY
def test_another_count_costs_otherwise(one, relation, accountant):
    """The comparison above can fail."""
    spent, more = (
        epsilon_of(SelfComposedDpEvent(one, n), relation, DELTA, accountant)
        for n in (COUNT, COUNT + 1)
    )
    assert more > spent * (1 + 1e-4)


RUNS = [
    (Poisson.with_rate(0.05), "add_or_remove_one", ("pld", "rdp", "tcdp", "gdp")),
    (Poisson.with_rate(0.05), "replace_one", ("pld",)),
    (TruncatedPoisson(25, 500, 40), "add_or_remove_one", ("pld",)),
    (TruncatedPoisson(25, 500, 40), "replace_one", ("pld",)),
    (FixedSize(5, 500), "replace_one", ("rdp", "tcdp")),
    (FullBatch(), "add_or_remove_one", ("pld", "rdp", "tcdp", "gdp")),
    (FullBatch(), "replace_one", ("pld", "rdp", "tcdp", "gdp")),
]


@pytest.mark.parametrize("noise", [6.0, schedules.du_decay(init=9.0, rho=0.6, steps=25)])
@pytest.mark.parametrize(
    ("sampling", "relation", "accountant"),
    [(sampling, relation, name) for sampling, relation, names in RUNS for name in names],
)
def test_a_run_in_two_events(noise, sampling, relation, accountant):
    """Stopped after 10 of 25 steps and resumed; also step by step, forwards and backwards.

    A curve that is read in parts may differ in the last bit of its float32.
    """
    rel = 1e-9 if noise == 6.0 else 1e-6
    ask = {"relation": relation, "accountant": accountant}
    method = methods.dp_sgd(noise)
    whole = event(method, sampling, 25, **ask)
    spent = epsilon_of(whole, whole.neighboring_relation, DELTA, accountant)
    parts = [event(method, sampling, 10, **ask), event(method, sampling, 15, 10, **ask)]
    steps = [event(method, sampling, 1, t, **ask) for t in range(25)]
    for happened in (parts, steps, steps[::-1]):
        got = epsilon_of(ComposedDpEvent(happened), whole.neighboring_relation, DELTA, accountant)
        assert got == pytest.approx(spent, rel=rel)
    first = epsilon_of(parts[0], whole.neighboring_relation, DELTA, accountant)
    assert first < 0.99 * spent


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_two_releases_in_a_row_are_no_sum_of_epsilons(accountant):
    one = epsilon_of(POISSON, ADD, DELTA, accountant)
    two = epsilon_of(SelfComposedDpEvent(POISSON, 2), ADD, DELTA, accountant)
    assert one < two < 2 * one


@pytest.mark.parametrize("accountant", ["pld", "rdp", "tcdp", "gdp"])
def test_numpy_numbers_are_numbers(accountant):
    """dp-accounting passes over a Gaussian whose multiplier is an int or a NumPy scalar."""
    plain = epsilon_of(SelfComposedDpEvent(POISSON, 9), ADD, DELTA, accountant)
    for six in (6, np.float32(6), np.int64(6)):
        one = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(six))
        happened = ComposedDpEvent(
            [SelfComposedDpEvent(one, np.int64(4)), SelfComposedDpEvent(POISSON, 5)]
        )
        assert epsilon_of(happened, ADD, DELTA, accountant) == pytest.approx(plain, rel=1e-9)
