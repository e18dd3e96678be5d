"""Any noise, rate, number of steps and delta: an epsilon that is >= 0 and grows, or a refusal."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax import accounting, methods
from dpjax.accounting import Budget, Ledger
from dpjax.sampling import FixedSize, FullBatch, Poisson, TruncatedPoisson
from tests.endurance.counting import count, examples
from tests.endurance.junk import any_float, any_integer, built, changed, plain

ALL = ("rdp", "tcdp", "gdp", "pld")
GIVEN = {
    "mechanism": methods.dp_sgd(1.0),
    "sampling": Poisson.with_rate(0.01),
    "steps": 100,
    "delta": 1e-5,
    "accountant": "rdp",
    "start": 0,
    "relation": None,
}


def check_bound(spent):
    assert not math.isnan(spent)
    assert spent >= 0
    assert 0 <= spent.lower <= spent


def log_uniform(low, high):
    return st.floats(math.log(low), math.log(high)).map(math.exp)


samplers = st.one_of(
    log_uniform(1e-6, 1.0).map(lambda rate: Poisson.with_rate(min(rate, 1.0))),
    st.just(FullBatch()),
    st.integers(1, 1000).map(lambda size: FixedSize(size, 1000)),
)


@examples(40)
@given(
    sigma=log_uniform(1e-2, 1e4),
    sampling=samplers,
    steps=st.lists(st.integers(1, 100_000), min_size=2, max_size=2).map(sorted),
    delta=log_uniform(1e-12, 0.5),
    accountant=st.sampled_from(("rdp", "rdp", "tcdp", "gdp")),
)
def test_epsilon_grows_with_the_steps(sigma, sampling, steps, delta, accountant):
    count("input", "accounting.epsilon")
    names = {"sampl", "accountant", "epsilon", "noise", "rate", "tcdp", "delta"}
    found = [
        built(
            accounting.epsilon,
            {**GIVEN, "mechanism": methods.dp_sgd(sigma), "sampling": sampling, "steps": number}
            | {"delta": delta, "accountant": accountant},
            names,
        )
        for number in steps
    ]
    if None not in found:
        check_bound(found[0])
        check_bound(found[1])
        assert found[0] <= found[1] * (1 + 1e-9)


@examples(5)
@given(
    sigma=log_uniform(0.5, 50.0),
    rate=log_uniform(1e-4, 0.3),
    steps=st.integers(1, 2000),
    delta=log_uniform(1e-9, 1e-2),
)
def test_pld_is_below_rdp(sigma, rate, steps, delta):
    """Two accountants that share no code beyond the event: the tight one is the smaller."""
    count("input", "accounting.epsilon, pld against rdp")
    given = (methods.dp_sgd(sigma), Poisson.with_rate(rate), steps, delta)
    tight, loose = (accounting.epsilon(*given, name) for name in ("pld", "rdp"))
    check_bound(tight)
    assert tight.lower <= loose * (1 + 1e-9)
    assert tight <= loose * 1.01 + 1e-3


@examples(100)
@given(arguments=changed(GIVEN))
def test_epsilon_and_event_of_any_arguments(arguments):
    count("input", "accounting.epsilon, any arguments")
    names = {*arguments, "noise_multiplier", "guarantee"}
    spent = built(accounting.epsilon, arguments, names)
    if spent is not None:
        check_bound(spent)
    others = {name: value for name, value in arguments.items() if name != "delta"}
    happened = built(accounting.event, others, names)
    assert happened is None or happened.events


@examples(5)
@given(
    epsilon=log_uniform(0.05, 50.0),
    rate=log_uniform(1e-3, 0.5),
    steps=st.integers(1, 5000),
    delta=log_uniform(1e-9, 1e-2),
)
def test_calibrated_noise_keeps_the_budget(epsilon, rate, steps, delta):
    count("input", "accounting.calibrate")
    sampling = Poisson.with_rate(rate)
    given = {"epsilon": epsilon, "delta": delta, "accountant": "rdp", "steps": steps}
    method = built(
        accounting.calibrate,
        {"mechanism": methods.dp_sgd(1.0), "sampling": sampling, **given},
        {"epsilon"},
    )
    if method is not None:
        spent = accounting.epsilon(method, sampling, steps, delta, "rdp")
        assert epsilon * (1 - 1e-3) <= spent <= epsilon


@examples(25)
@given(
    arguments=changed(
        {k: v for k, v in GIVEN.items() if k not in ("start", "relation")} | {"epsilon": 2.0}
    )
)
def test_calibrate_of_any_arguments(arguments):
    count("input", "accounting.calibrate, any arguments")
    found = built(accounting.calibrate, arguments, {*arguments, "noise_multiplier", "budget"})
    assert found is None or found.guarantee.private


@examples(60)
@given(
    sigma=any_float,
    rate=any_float,
    size=any_integer,
    steps=any_integer,
    delta=any_float,
    sampler=st.sampled_from(["poisson", "fixed", "truncated"]),
)
def test_ledgers_of_any_numbers(sigma, rate, size, steps, delta, sampler):
    """Through the records, as a ledger is read from a file."""
    count("input", "Ledger")

    def account(sigma, rate, size, steps, delta):
        made = {
            "poisson": lambda: Poisson.with_rate(rate),
            "fixed": lambda: FixedSize(size, 10**6),
            "truncated": lambda: TruncatedPoisson(rate, 10**6, size),
        }[sampler]()
        ledger = Ledger("d").add_steps(methods.dp_sgd(sigma), made, steps)
        return Budget(1.0, delta, "rdp").spent(Ledger.from_json(ledger.to_json()))

    names = {"noise_multiplier", "rate", "size", "steps", "delta", "accountant", "threshold"}
    names |= {"batch_size", "max_size"}
    spent = built(
        account, {"sigma": sigma, "rate": rate, "size": size, "steps": steps, "delta": delta}, names
    )
    assert spent is None or spent >= 0


@examples(100)
@given(table=plain)
def test_ledgers_of_any_json(table):
    count("input", "Ledger.from_json")
    whole = Ledger("d").add_steps(methods.dp_sgd(1.0), Poisson.with_rate(0.1), 3)
    for text in (json.dumps(table), json.dumps({**whole.to_plain(), "entries": table})):
        built(Ledger.from_json, {"text": text}, {""})


@pytest.mark.parametrize("accountant", ALL)
def test_noise_beyond_measure_costs_nothing_and_next_to_none_costs_all(accountant):
    calm = accounting.epsilon(methods.dp_sgd(1e12), Poisson.with_rate(0.01), 10, 1e-5, accountant)
    assert calm == pytest.approx(0, abs=1e-6)
    given = {**GIVEN, "mechanism": methods.dp_sgd(1e-3), "accountant": accountant}
    loud = built(accounting.epsilon, given, {"noise", "epsilon"})
    assert loud is None or loud > 1e3
