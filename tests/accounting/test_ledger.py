"""The ledger, its budget and its statement: composition, refusal, and what is said about it."""

import dataclasses
import json
import math
import re
from decimal import Decimal

import dp_accounting
import numpy as np
import pytest
from absl import logging
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from dpjax import methods, schedules
from dpjax.accounting import (
    Bound,
    Budget,
    BudgetExceededError,
    DeclaredQuery,
    GaussianQuery,
    LaplaceQuery,
    Ledger,
    Steps,
    max_steps,
    privacy_statement,
    published_together,
)
from dpjax.accounting.bound import rounded_up
from dpjax.accounting.statement import NOT_COUNTED
from dpjax.accounting.tuning import (
    Search,
    disjoint_split,
    grid_composition,
    liu_talwar,
    repeat_and_select,
)
from dpjax.papers.auto_dp_sgd import auto_dp_sgd
from dpjax.sampling import FixedSize, FullBatch, Poisson, TruncatedPoisson
from tests.oracles.accounting import epsilon_composed, epsilon_gaussian
from tests.registry import METHODS

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
RELATIONS = {"add_or_remove_one": ADD, "replace_one": REPLACE}
DELTA = 1e-5
SGD = methods.dp_sgd(2.0)
SAMPLED = Poisson.with_rate(0.01)
DECAY = methods.zhang_adaptive(4.0, steps_per_epoch=10, rate=0.5)  # 4, 2.83, 2, 1.41, ...
GAUSSIAN, LAPLACE = GaussianQuery("accuracy", 5.0, count=3), LaplaceQuery("count", 4.0)
DECLARED = DeclaredQuery("a synopsis", epsilon=0.25, delta=1e-6)
TUNINGS = {
    "liu_talwar": liu_talwar(3),
    "grid_composition": grid_composition(4),
    "repeat_and_select": repeat_and_select(5.0),
    "repeat_and_select_poisson": repeat_and_select(5.0, math.inf),
    "disjoint_split": disjoint_split(3, selection=0.3),
}


@pytest.fixture(autouse=True)
def quiet():
    """dp-accounting logs every order whose series does not converge."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    yield
    logging.set_verbosity(before)


def gaussian(sigma, count=1):
    return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(sigma), count)


def laplace(scale, count=1):
    return dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(scale), count)


def poisson(q, sigma, count=1):
    one = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(one, count)


def fixed(size, total, sigma, count=1):
    one = dp_accounting.SampledWithoutReplacementDpEvent(
        total, size, dp_accounting.GaussianDpEvent(sigma)
    )
    return dp_accounting.SelfComposedDpEvent(one, count)


def by_rdp(*events, relation=ADD, delta=DELTA):
    whole = dp_accounting.ComposedDpEvent(list(events))
    return RdpAccountant(None, relation).compose(whole).get_epsilon(delta)


def by_pld(*events, relation=ADD, delta=DELTA):
    whole = dp_accounting.ComposedDpEvent(list(events))
    return PLDAccountant(relation, 1e-4).compose(whole).get_epsilon(delta)


def decayed(t):
    """DECAY's noise multiplier by hand."""
    return 4.0 * math.sqrt(0.5) ** (t // 10)


# Epsilon is that of the composition.


def test_an_empty_ledger_has_spent_nothing():
    empty = Ledger("digits")
    for accountant in ("pld", "rdp", "tcdp", "gdp"):
        spent = empty.epsilon(DELTA, accountant)
        assert (spent, spent.lower, spent.guarantee) == (0.0, 0.0, True)
        assert empty.upper_epsilon(DELTA, accountant) == 0.0
    assert empty.relation is ADD


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_epsilon_is_that_of_the_composition(accountant):
    other = methods.auto_s(3.0)
    ledger = (
        Ledger("digits")
        .add_steps(SGD, SAMPLED, 300)
        .add(GAUSSIAN)
        .add_steps(other, Poisson.with_rate(0.05), 20)
        .add_steps(SGD, FullBatch(), 2)
    )
    events = (poisson(0.01, 2.0, 300), gaussian(5.0, 3), poisson(0.05, 3.0, 20), gaussian(2.0, 2))
    theirs = {"rdp": by_rdp, "pld": by_pld}[accountant](*events)
    spent = ledger.epsilon(DELTA, accountant)
    assert spent == pytest.approx(theirs, rel={"rdp": 1e-9, "pld": 2e-3}[accountant])
    assert (spent.accountant, spent.relation) == (accountant, "add_or_remove_one")
    assert ledger.upper_epsilon(DELTA, accountant) == spent
    if accountant == "pld":
        unsampled = (0.04 + 0.04 + 0.04 + 0.25 + 0.25) ** -0.5
        steps = [(0.01, 2.0, 300), (0.05, 3.0, 20), (1.0, unsampled, 1)]
        true = epsilon_composed(steps, DELTA)
        assert spent.lower <= true <= spent <= true * 1.001


def test_the_order_of_entries_does_not_matter():
    entries = (Steps(SGD, SAMPLED, 30), GAUSSIAN, DECLARED, Steps(SGD, FullBatch(), 1))
    there, back = (Ledger("digits", entries=order) for order in (entries, entries[::-1]))
    assert there.epsilon(DELTA, "rdp") == pytest.approx(back.epsilon(DELTA, "rdp"), rel=1e-12)


def test_more_entries_never_cost_less():
    ledger, before = Ledger("digits"), 0.0
    for entry in (Steps(SGD, SAMPLED, 10), GAUSSIAN, LAPLACE, DECLARED, Steps(SGD, SAMPLED, 1)):
        ledger = ledger.add(entry)
        after = ledger.epsilon(DELTA)
        assert after > before
        before = after


# Runs continue where they stopped.


def test_consecutive_steps_of_a_run_become_one_entry():
    ledger = Ledger("digits")
    for steps in (1, 2, 3):
        ledger = ledger.add_steps(SGD, SAMPLED, steps, run="a")
    assert ledger.entries == (Steps(SGD, SAMPLED, 6, run="a"),)
    wider = ledger.add_steps(SGD, Poisson.with_rate(0.02), run="a")
    assert wider.entries[1:] == (Steps(SGD, Poisson.with_rate(0.02), 1, 6, "a"),)
    again = ledger.add(Steps(SGD, SAMPLED, 6))
    assert len(again.entries) == 2
    assert again.epsilon(DELTA, "rdp") == pytest.approx(by_rdp(poisson(0.01, 2.0, 12)), rel=1e-9)


def test_a_schedule_continues_where_it_stopped():
    ledger = Ledger("digits")
    for steps in (7, 1, 12, 15):
        ledger = ledger.add_steps(DECAY, SAMPLED, steps, run="a")
    assert ledger.entries == (Steps(DECAY, SAMPLED, 35, run="a"),)
    events = [poisson(0.01, decayed(t), n) for t, n in ((0, 10), (10, 10), (20, 10), (30, 5))]
    assert ledger.epsilon(DELTA, "rdp") == pytest.approx(by_rdp(*events), rel=1e-5)
    # The same steps entered in two parts, and the arm that must differ: started anew.
    parts = Ledger("digits").add(Steps(DECAY, SAMPLED, 20)).add(Steps(DECAY, SAMPLED, 15, start=20))
    assert parts.epsilon(DELTA, "rdp") == pytest.approx(by_rdp(*events), rel=1e-5)
    anew = Ledger("digits").add(Steps(DECAY, SAMPLED, 20)).add(Steps(DECAY, SAMPLED, 15))
    assert anew.epsilon(DELTA, "rdp") < 0.8 * by_rdp(*events)
    # A later start is kept by what follows.
    later = Ledger("digits").add(Steps(DECAY, SAMPLED, 5, start=20, run="a"))
    later = later.add_steps(DECAY, SAMPLED, 10, run="a")
    assert later.entries == (Steps(DECAY, SAMPLED, 15, start=20, run="a"),)


@pytest.mark.parametrize("between", [GAUSSIAN, Steps(SGD, FullBatch(), 1), Steps(SGD, SAMPLED, 9)])
def test_a_schedule_continues_after_something_else(between):
    ledger = Ledger("digits").add_steps(DECAY, SAMPLED, 20, run="a").add(between)
    ledger = ledger.add_steps(DECAY, SAMPLED, 15, run="a")
    assert ledger.entries[2] == Steps(DECAY, SAMPLED, 15, start=20, run="a")


def test_a_schedule_continues_with_another_batch_size():
    ledger = Ledger("digits").add_steps(DECAY, SAMPLED, 20, run="a")
    ledger = ledger.add_steps(DECAY, Poisson.with_rate(0.02), 15, run="a")
    assert ledger.entries[1] == Steps(DECAY, Poisson.with_rate(0.02), 15, start=20, run="a")


def louder(t):
    """A noise multiplier that grows: the steps of a second run cost most when it begins anew."""
    return 0.6 + 3.4 * np.minimum(t / 199.0, 1.0)


def test_two_runs_are_no_long_one():
    """Two runs of 100 steps, sigma from .6 towards 4: by dp-accounting, step by step."""
    method = methods.dp_sgd(schedules.table(tuple(louder(np.arange(200.0))), steps_per_epoch=1))
    events = [poisson(0.01, louder(t), 2) for t in range(100)]
    want = by_rdp(*events)
    merged = by_rdp(*(poisson(0.01, louder(t)) for t in range(200)))
    assert merged < 0.95 * want  # what one long run would cost
    for ids in ((None, None), ("a", "b"), ("a", None), (None, "a")):
        ledger = Ledger("digits")
        for run in ids:
            ledger = ledger.add_steps(method, SAMPLED, 100, run)
        assert len(ledger.entries) == 2
        assert [entry.start for entry in ledger.entries] == [0, 0]
        assert ledger.epsilon(DELTA, "rdp") == pytest.approx(want, rel=1e-5)
    one = Ledger("digits").add_steps(method, SAMPLED, 100, "a").add_steps(method, SAMPLED, 100, "a")
    assert one.epsilon(DELTA, "rdp") == pytest.approx(merged, rel=1e-5)


@pytest.mark.parametrize("run", ["", " ", 3, True, b"a"])
def test_the_id_of_a_run_is_a_string(run):
    with pytest.raises(ValueError, match=r"run = .*expected the id of a run"):
        Ledger("digits").add_steps(SGD, SAMPLED, 1, run)


# Append-only and frozen.


def test_a_longer_ledger_leaves_the_old_one_alone():
    first = Ledger("digits").add_steps(SGD, SAMPLED, 5, "a")
    text, spent = first.to_json(), first.epsilon(DELTA, "rdp")
    longer = first.add_steps(SGD, SAMPLED, 5, "a").add(GAUSSIAN)
    assert (first.to_json(), first.epsilon(DELTA, "rdp")) == (text, spent)
    assert longer.entries[0].steps == 10
    assert first.entries[0].steps == 5


def test_a_ledger_cannot_be_changed():
    entries = [Steps(SGD, SAMPLED, 5)]
    ledger = Ledger("digits", entries=entries)
    entries.append(GAUSSIAN)
    assert ledger.entries == (Steps(SGD, SAMPLED, 5),)
    for record, field in ((ledger, "entries"), (ledger.entries[0], "steps"), (GAUSSIAN, "count")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field, ())
    assert hash(ledger) == hash(Ledger("digits", entries=(Steps(SGD, SAMPLED, 5),)))


@pytest.mark.parametrize("entry", [SGD, SAMPLED, 3, "steps", None, DECAY])
def test_foreign_entries_are_refused(entry):
    with pytest.raises(TypeError, match=r"entries\[0\] = .*: expected Steps, a query or a Search"):
        Ledger("digits").add(entry)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Steps(SGD, SAMPLED, 0),
        lambda: Steps(SGD, SAMPLED, 1.5),
        lambda: Steps(SGD, SAMPLED, 1, start=-1),
        lambda: Steps(SGD, 0.01, 1),
        lambda: Steps(1.0, SAMPLED, 1),
        lambda: Steps(auto_dp_sgd(1.0, steps_per_epoch=5, epochs=5), SAMPLED, 1),
        lambda: Steps(methods.dp_sgd(0.0), SAMPLED, 1),
        lambda: Ledger("digits").add_steps(SGD, SAMPLED, 5).add_steps(SGD, SAMPLED, -5),
        lambda: Ledger("digits").add_steps(SGD, SAMPLED, 5).add_steps(SGD, SAMPLED, 0),
        lambda: Ledger(""),
        lambda: Ledger("digits", unit=" "),
        lambda: Ledger(3),
        lambda: GaussianQuery("", 1.0),
        lambda: GaussianQuery("x", 0.0),
        lambda: GaussianQuery("x", math.nan),
        lambda: GaussianQuery("x", math.inf),
        lambda: LaplaceQuery("x", 1.0, count=0),
        lambda: DeclaredQuery("x", math.nan),
        lambda: DeclaredQuery("x", -1.0),
        lambda: DeclaredQuery("x", 1.0, delta=1.0),
        lambda: DeclaredQuery("x", 1.0, delta=-1e-9),
    ],
)
def test_what_cannot_be_accounted_cannot_be_entered(wrong):
    with pytest.raises((ValueError, TypeError), match=r"[Ee]xpected"):
        wrong()


# JSON.


@pytest.mark.parametrize("name", METHODS)
def test_json_round_trip_of_every_method(name):
    method = METHODS[name](2.0)
    if not method.guarantee.private:
        with pytest.raises(TypeError, match=r"expected a dpjax\.Mechanism"):
            Ledger("digits").add_steps(method, SAMPLED, 5)
        return
    sampling = FullBatch() if name == "psasc_momentum_full_batch" else SAMPLED
    ledger = Ledger("digits", unit="one patient").add_steps(method, sampling, 25)
    back = Ledger.from_json(ledger.to_json())
    assert back == ledger
    assert back.to_json() == ledger.to_json()
    assert back.epsilon(DELTA, "rdp") == ledger.epsilon(DELTA, "rdp")


@pytest.mark.parametrize(
    "entry",
    [
        GAUSSIAN,
        LAPLACE,
        DECLARED,
        Steps(SGD, TruncatedPoisson(5, 500, 20), 3, start=4),
        Steps(SGD, FixedSize(5, 500), 3),
        Steps(SGD, SAMPLED, 3, start=4, run="1b2f"),
        *(Search(tuned, SGD, SAMPLED, 5) for tuned in TUNINGS.values()),
    ],
)
def test_json_round_trip_of_every_entry(entry):
    ledger = Ledger("digits").add(entry).add(GAUSSIAN)
    assert Ledger.from_json(ledger.to_json()) == ledger


def test_a_bare_callable_is_accounted_but_not_written():
    method = methods.dp_sgd(lambda t: 2.0 / (1 + 0 * t))
    ledger = Ledger("digits").add_steps(method, SAMPLED, 5)
    assert ledger.epsilon(DELTA, "rdp") == pytest.approx(by_rdp(poisson(0.01, 2.0, 5)), rel=1e-9)
    with pytest.raises(
        TypeError, match=r"noise_multiplier = .*bare callable.*table\.from_callable"
    ):
        ledger.to_json()
    table = schedules.table.from_callable(method.noise_multiplier, 5)
    written = Ledger("digits").add_steps(methods.dp_sgd(table), SAMPLED, 5)
    assert Ledger.from_json(written.to_json()).epsilon(DELTA, "rdp") == ledger.epsilon(DELTA, "rdp")


def test_numpy_numbers_can_be_written():
    ledger = Ledger("digits").add(Steps(SGD, SAMPLED, np.int64(5), start=np.int64(1)))
    assert Ledger.from_json(ledger.to_json()) == ledger


def changed(path, value):
    """A ledger's JSON with one value changed, or one field more."""
    ledger = Ledger("digits").add_steps(SGD, SAMPLED, 5).add(DECLARED).add(GAUSSIAN)
    at = plain = ledger.to_plain()
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(plain)


SIGMA = ("entries", 0, "mechanism", "noise_multiplier")
HOSTILE = {
    "unknown_kind": changed(["entries", 0, "kind"], "os.system"),
    "no_kind": changed(["entries", 0, "kind"], None),
    "kind_of_wrong_type": changed(["entries", 0, "kind"], ["Steps"]),
    "other_top": json.dumps(SGD.to_plain()),
    "unknown_field": changed(["entries", 0, "secret"], 1),
    "dunder_field": changed(["entries", 0, "__class__"], "Steps"),
    "foreign_entry": changed(["entries", 0], SGD.to_plain()),
    "ledger_in_ledger": changed(["entries", 0], Ledger("digits").to_plain()),
    "entry_a_number": changed(["entries", 0], 3),
    "entries_a_number": changed(["entries"], 3),
    "entries_a_string": changed(["entries"], "Steps"),
    "steps_nan": changed(["entries", 0, "steps"], math.nan),
    "steps_infinite": changed(["entries", 0, "steps"], math.inf),
    "steps_a_fraction": changed(["entries", 0, "steps"], 0.5),
    "steps_a_bool": changed(["entries", 0, "steps"], True),
    "steps_a_string": changed(["entries", 0, "steps"], "5"),
    "steps_negative": changed(["entries", 0, "steps"], -5),
    "steps_huge": changed(["entries", 0, "steps"], 10**30),
    "start_negative": changed(["entries", 0, "start"], -1),
    "rate_nan": changed(["entries", 0, "sampling", "rate"], math.nan),
    "rate_zero": changed(["entries", 0, "sampling", "rate"], 0.0),
    "rate_missing": changed(["entries", 0, "sampling"], {"kind": "Poisson"}),
    "sigma_nan": changed(SIGMA, math.nan),
    "sigma_infinite": changed(SIGMA, math.inf),
    "sigma_zero": changed(SIGMA, 0.0),
    "sigma_a_rule": changed(SIGMA, {"kind": "abadi"}),
    "epsilon_nan": changed(["entries", 1, "epsilon"], math.nan),
    "epsilon_infinite": changed(["entries", 1, "epsilon"], -math.inf),
    "epsilon_zero": changed(["entries", 1, "epsilon"], 0.0),
    "delta_nan": changed(["entries", 1, "delta"], math.nan),
    "query_sigma_infinite": changed(["entries", 2, "noise_multiplier"], math.inf),
    "count_zero": changed(["entries", 2, "count"], 0),
    "no_name": changed(["dataset"], None),
    "null": "null",
    "no_json": "{",
    "number": "1e5",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused(name):
    with pytest.raises((ValueError, TypeError)):
        Ledger.from_json(HOSTILE[name])


def test_the_hostile_files_differ_from_a_good_one():
    good = changed(["unit"], "one example")
    assert Ledger.from_json(good).epsilon(DELTA) > 0
    assert all(text != good for text in HOSTILE.values())


@pytest.mark.parametrize(("open_", "close"), [("[", "]"), ('{"kind":', "}")])
def test_huge_nesting_is_refused(open_, close):
    """By an exception of Python's own, at worst: no crash."""
    deep = open_ * 200_000 + "1" + close * 200_000
    text = changed(["entries"], "deep").replace('"deep"', deep)
    with pytest.raises((ValueError, TypeError, RecursionError)):
        Ledger.from_json(text)


# Samplers and relations mixed.


def test_full_batches_join_fixed_sizes_under_replace_one():
    ledger = (
        Ledger("digits")
        .add_steps(SGD, FullBatch(), 2)
        .add_steps(SGD, FixedSize(10, 1000), 30)
        .add(GAUSSIAN)
    )
    assert ledger.relation is REPLACE
    spent = ledger.epsilon(DELTA, "rdp")
    halved = (gaussian(1.0, 2), fixed(10, 1000, 1.0, 30), gaussian(2.5, 3))
    assert spent.relation == "replace_one"
    assert spent == pytest.approx(by_rdp(*halved, relation=REPLACE), rel=1e-9)
    with pytest.raises(ValueError, match=r"'rdp' with FixedSize under add_or_remove_one"):
        ledger.epsilon(DELTA, "rdp", relation="add_or_remove_one")


def test_a_relation_can_be_asked_for():
    ledger = Ledger("digits").add_steps(SGD, FullBatch(), 2).add(GAUSSIAN)
    mu = math.sqrt(2 / 2.0**2 + 3 / 5.0**2)
    for relation, change in (("add_or_remove_one", 1), ("replace_one", 2)):
        true = epsilon_gaussian(change * mu, DELTA)
        spent = ledger.epsilon(DELTA, relation=relation)
        assert spent.lower <= true <= spent <= 1.001 * true
        assert spent.relation == relation
        assert ledger.epsilon(DELTA, "rdp", relation=relation) >= true
        assert ledger.epsilon(DELTA, "gdp", relation=relation) == pytest.approx(true, rel=1e-6)
    with pytest.raises(ValueError, match="did you mean 'replace_one'"):
        ledger.epsilon(DELTA, relation="replace")


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_poisson_with_a_fixed_size_is_refused(accountant):
    ledger = Ledger("digits").add_steps(SGD, SAMPLED, 3).add_steps(SGD, FixedSize(10, 1000), 3)
    with pytest.raises(ValueError, match="no bound is known; expected '") as error:
        ledger.epsilon(DELTA, accountant)
    # What the message names works for that sampler alone.
    sampler = re.search(r"with (\w+) under", str(error.value))[1]
    alone = Ledger("digits", entries=ledger.entries[sampler == "FixedSize" :][:1])
    for other, relation in re.findall(r"'(\w+)' under (\w+)", str(error.value)):
        if other in ("pld", "rdp"):
            assert alone.epsilon(DELTA, other, relation=relation) > 0


def test_an_unknown_accountant_or_delta_is_refused():
    ledger = Ledger("digits").add(GAUSSIAN)
    with pytest.raises(ValueError, match="did you mean 'pld'"):
        ledger.epsilon(DELTA, "plt")
    for delta in (0.0, 1.0, math.nan, -1e-5):
        with pytest.raises(ValueError, match="delta = "):
            ledger.epsilon(delta)
        with pytest.raises(ValueError, match="delta = "):
            Ledger("digits").epsilon(delta)
    assert ledger.epsilon(1e-14) == pytest.approx(epsilon_gaussian(3**0.5 / 5, 1e-14), rel=1e-3)
    with pytest.raises(ValueError, match=r"delta = 1e-21: .*expected a delta above"):
        ledger.epsilon(1e-21)


# Queries.


@pytest.mark.parametrize("relation", RELATIONS)
def test_gaussian_queries(relation):
    ledger = Ledger("digits").add(GAUSSIAN)
    change = 2 if relation == "replace_one" else 1
    true = epsilon_gaussian(change * math.sqrt(3) / 5.0, DELTA)
    tight = ledger.epsilon(DELTA, "pld", relation=relation)
    assert tight.lower <= true <= tight <= 1.001 * true
    assert tight == pytest.approx(by_pld(gaussian(5.0, 3), relation=RELATIONS[relation]), rel=1e-3)
    renyi = ledger.epsilon(DELTA, "rdp", relation=relation)
    halved = gaussian(5.0 / change, 3)
    assert renyi == pytest.approx(by_rdp(halved, relation=RELATIONS[relation]), rel=1e-9)
    assert renyi > true


@pytest.mark.parametrize("relation", RELATIONS)
def test_laplace_queries(relation):
    scale, change = 4.0, 2 if relation == "replace_one" else 1
    ledger = Ledger("digits").add(LaplaceQuery("count", scale, count=2))
    halved = laplace(scale / change, 2)
    tight = ledger.epsilon(DELTA, "pld", relation=relation)
    assert tight == pytest.approx(by_pld(halved), rel=5e-3)
    assert tight <= 2 * change / scale * 1.005  # pure: epsilons add up
    assert ledger.epsilon(DELTA, "rdp", relation=relation) == pytest.approx(
        by_rdp(halved), rel=1e-9
    )
    one = Ledger("digits").add(LaplaceQuery("count", scale))
    # A Laplace release has delta(eps) = 1 - exp((eps - eps_0) / 2).
    eps_0 = change / scale
    true = eps_0 + 2 * math.log1p(-DELTA)
    assert true <= one.epsilon(DELTA, relation=relation) <= 1.005 * eps_0


def test_queries_without_a_figure_are_refused():
    ledger = Ledger("digits").add(LAPLACE)
    for accountant in ("gdp", "tcdp"):
        with pytest.raises(ValueError, match="expected 'rdp'"):
            ledger.epsilon(DELTA, accountant)


def test_laplace_with_sampled_steps():
    ledger = Ledger("digits").add_steps(SGD, SAMPLED, 100).add(LAPLACE)
    events = (poisson(0.01, 2.0, 100), laplace(4.0))
    assert ledger.epsilon(DELTA) == pytest.approx(by_pld(*events), rel=2e-3)
    assert ledger.epsilon(DELTA).lower == 0.0
    assert ledger.epsilon(DELTA, "rdp") == pytest.approx(by_rdp(*events), rel=1e-9)


def test_declared_queries_add_up():
    declared = (DECLARED, DeclaredQuery("pure", 0.5), DeclaredQuery("other", 0.125, 2e-6))
    ledger = Ledger("digits", entries=declared)
    assert ledger.epsilon(DELTA) == ledger.upper_epsilon(DELTA) == pytest.approx(0.875)
    with_steps = ledger.add_steps(SGD, SAMPLED, 100)
    rest = by_rdp(poisson(0.01, 2.0, 100), delta=DELTA - 3e-6)
    spent = with_steps.epsilon(DELTA, "rdp")
    assert spent == pytest.approx(0.875 + rest, rel=1e-9)
    assert with_steps.upper_epsilon(DELTA, "rdp") == spent
    assert with_steps.epsilon(DELTA).lower == 0.0


@pytest.mark.parametrize("delta", [1e-6, 5e-7])
def test_declared_queries_may_exhaust_delta(delta):
    ledger = Ledger("digits").add_steps(SGD, SAMPLED, 3).add(DECLARED)
    for spent in (ledger.epsilon, ledger.upper_epsilon):
        with pytest.raises(
            ValueError, match=rf"delta = {delta:g}: expected more than 1e-06, .*declared"
        ):
            spent(delta)


# Searches.


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("grid_composition", lambda run: dp_accounting.SelfComposedDpEvent(run, 4)),
        ("repeat_and_select", lambda run: dp_accounting.dp_event.RepeatAndSelectDpEvent(run, 5, 1)),
        (
            "repeat_and_select_poisson",
            lambda run: dp_accounting.dp_event.RepeatAndSelectDpEvent(run, 5, math.inf),
        ),
    ],
)
def test_searches_that_compose(name, whole):
    search = Search(TUNINGS[name], SGD, SAMPLED, 50, GaussianQuery("score", 9.0))
    ledger = Ledger("digits").add(search).add_steps(SGD, SAMPLED, 20)
    run = dp_accounting.ComposedDpEvent([poisson(0.01, 2.0, 50), gaussian(9.0)])
    want = by_rdp(whole(run), poisson(0.01, 2.0, 20))
    assert ledger.epsilon(DELTA, "rdp") == pytest.approx(want, rel=1e-9)
    if name == "grid_composition":
        steps = [(0.01, 2.0, 220), (1.0, 9.0 / 2, 1)]
        true = epsilon_composed(steps, DELTA)
        assert true <= ledger.epsilon(DELTA) <= 1.001 * true
    else:
        with pytest.raises(ValueError, match="expected accountant 'rdp'"):
            ledger.epsilon(DELTA)


@pytest.mark.parametrize("name", ["liu_talwar", "disjoint_split"])
def test_searches_with_a_guarantee_of_their_own(name):
    """Basic composition: the search and the rest share delta."""
    search = Search(TUNINGS[name], SGD, SAMPLED, 50)
    ledger = Ledger("digits").add(search).add_steps(SGD, SAMPLED, 20).add(DECLARED)
    spent = ledger.epsilon(DELTA, "rdp")
    share = (DELTA - 1e-6) / 2
    want = search.epsilon(share) + by_rdp(poisson(0.01, 2.0, 20), delta=share) + 0.25
    assert spent == pytest.approx(want, rel=1e-6)
    fixed_run = ledger.add_steps(SGD, FixedSize(10, 1000), 1)
    with pytest.raises(ValueError, match="in a ledger under replace_one: expected a guarantee"):
        fixed_run.epsilon(DELTA, "rdp")


@pytest.mark.parametrize("name", ["liu_talwar", "disjoint_split"])
def test_a_search_alone_costs_what_it_was_planned_for(name):
    search = TUNINGS[name].plan(SGD, SAMPLED, 50, epsilon=2.0, delta=DELTA)
    assert Budget(2.0, DELTA, "rdp").admit(Ledger("digits"), search).entries == (search,)


# Together.


def test_published_together():
    runs = [Ledger("digits").add_steps(methods.dp_sgd(sigma), SAMPLED, 100) for sigma in (1.5, 2.0)]
    cost = published_together([*runs, runs[0]], DELTA, "rdp")
    want = [by_rdp(poisson(0.01, sigma, 100)) for sigma in (1.5, 2.0, 1.5)]
    assert cost.each == pytest.approx(want, rel=1e-9)
    want = by_rdp(poisson(0.01, 1.5, 200), poisson(0.01, 2.0, 100))
    assert cost.all_published == pytest.approx(want, rel=1e-9)
    assert all(isinstance(bound, Bound) for bound in (*cost.each, cost.all_published))
    alone = published_together(runs[:1], DELTA)
    assert alone.each == (alone.all_published,) == (runs[0].epsilon(DELTA),)


def test_schedules_of_runs_published_together_each_start_anew():
    run = Ledger("digits").add_steps(DECAY, SAMPLED, 20)
    both = published_together([run, run], DELTA, "rdp").all_published
    want = by_rdp(poisson(0.01, decayed(0), 20), poisson(0.01, decayed(10), 20))
    assert both == pytest.approx(want, rel=1e-5)


def test_ledgers_of_other_data_are_not_added_up():
    one = Ledger("digits").add(GAUSSIAN)
    for other in (Ledger("letters"), Ledger("digits", unit="one patient")):
        with pytest.raises(ValueError, match="expected one data set and unit"):
            published_together([one, other], DELTA)
    with pytest.raises(ValueError, match="expected at least one"):
        published_together([], DELTA)


# The budget.


@pytest.mark.parametrize(("method", "accountant"), [(SGD, "rdp"), (SGD, "pld"), (DECAY, "rdp")])
def test_the_step_too_many_is_refused_and_not_one_before(method, accountant):
    limit = Budget(1.0, DELTA, accountant)
    most = max_steps(method, Poisson.with_rate(0.02), 1.0, DELTA, accountant)
    spent = Ledger("digits").add_steps(method, Poisson.with_rate(0.02), most - 1, "a")
    assert limit.steps_left(spent, method, Poisson.with_rate(0.02), run="a") == 1
    full = limit.admit(spent, Steps(method, Poisson.with_rate(0.02), 1, start=most - 1, run="a"))
    assert limit.spent(full) == full.upper_epsilon(DELTA, accountant) <= 1.0
    assert limit.steps_left(full, method, Poisson.with_rate(0.02), run="a") == 0
    assert (
        limit.admit_steps(spent, method, Poisson.with_rate(0.02), 1, "a").entries[0].steps == most
    )
    over = Steps(method, Poisson.with_rate(0.02), 1, start=most)
    with pytest.raises(BudgetExceededError, match="1 more steps: expected at most 1 in all"):
        limit.admit(full, over)
    if method is SGD and accountant == "rdp":
        each = [by_rdp(poisson(0.02, 2.0, n)) for n in (most, most + 1)]
        assert each[0] <= 1.0 < each[1]


def test_a_budget_counts_everything_in_the_ledger():
    limit = Budget(3.0, DELTA, "rdp")
    most = limit.steps_left(Ledger("digits"), SGD, SAMPLED)
    for before in (GAUSSIAN, LAPLACE, DECLARED, Search(grid_composition(2), SGD, SAMPLED, 20)):
        ledger = Ledger("digits").add(before)
        left = limit.steps_left(ledger, SGD, SAMPLED)
        assert 0 < left < most
        admitted = limit.admit(ledger, Steps(SGD, SAMPLED, left))
        with pytest.raises(BudgetExceededError):
            limit.admit(ledger, Steps(SGD, SAMPLED, left + 1))
        with pytest.raises(BudgetExceededError, match="accuracy"):
            limit.admit(admitted, GAUSSIAN)


def test_a_refused_entry_leaves_the_ledger_as_it_was():
    ledger = Ledger("digits").add(DECLARED)
    with pytest.raises(BudgetExceededError, match=r"epsilon = 0\.5 at delta = 1e-05"):
        Budget(0.4, DELTA).admit(ledger, DeclaredQuery("more", 0.25))
    assert ledger.entries == (DECLARED,)
    assert issubclass(BudgetExceededError, ValueError)


def test_what_cannot_be_counted_is_not_admitted(monkeypatch):
    for cost in (math.nan, math.inf):
        monkeypatch.setattr(Ledger, "upper_epsilon", lambda *_, cost=cost: cost)
        limit = Budget(1.0, DELTA)
        with pytest.raises(BudgetExceededError):
            limit.admit(Ledger("digits"), GAUSSIAN)
        assert limit.steps_left(Ledger("digits"), SGD, SAMPLED) == 0


@pytest.mark.parametrize(
    "arguments",
    [(0.0, DELTA), (math.nan, DELTA), (math.inf, DELTA), (1.0, 0.0), (1.0, math.nan), (1.0, 1.0)],
)
def test_a_budget_out_of_range_is_refused(arguments):
    with pytest.raises(ValueError, match="expected"):
        Budget(*arguments)
    with pytest.raises(ValueError, match="did you mean 'pld'"):
        Budget(1.0, DELTA, "plds")


def test_a_budget_round_trips():
    limit = Budget(1.0, DELTA, "rdp")
    assert Budget.from_plain(json.loads(json.dumps(limit.to_plain()))) == limit


# The statement.


def claimed(text):
    """The epsilon of a statement, as it is written."""
    return Decimal(re.search(r"is \(([^,]+), [^)]+\)-differentially private", text)[1])


@pytest.mark.parametrize(
    ("sampling", "accountant", "relation", "words"),
    [
        (Poisson.with_rate(0.01), "pld", "add or remove one", "Poisson sampling at rate 0.01"),
        (Poisson.with_rate(0.01), "rdp", "add or remove one", "Poisson sampling at rate 0.01"),
        (TruncatedPoisson(5, 500, 20), "pld", "add or remove one", "to 20 of 500"),
        (FixedSize(5, 500), "rdp", "replace one", "batches of 5 of 500, without replacement"),
        (FullBatch(), "pld", "add or remove one", "without amplification"),
    ],
)
def test_a_statement_says_what_its_number_means(sampling, accountant, relation, words):
    ledger = Ledger("digits", unit="one patient's scan").add_steps(SGD, sampling, 40)
    text = privacy_statement(ledger, DELTA, accountant)
    spent = ledger.epsilon(DELTA, accountant)
    exact = Decimal(float(spent))
    assert exact * (1 - Decimal(2) ** -49) <= claimed(text) <= exact * Decimal("1.001")
    assert "digits" in text
    assert "**Protected unit:** one patient's scan." in text
    assert f"**Relation:** {relation}" in text
    assert words in text
    assert {"pld": "privacy loss distributions", "rdp": "Renyi"}[accountant] in text
    assert "40 steps of dp_sgd" in text
    assert "noise multiplier 2" in text
    assert "1e-05" in text
    assert all(item in text for item in NOT_COUNTED)
    assert "upper bound" in text


def test_a_statement_lists_every_entry():
    searches = [Search(tuned, SGD, SAMPLED, 5) for tuned in TUNINGS.values()]
    scored = Search(grid_composition(2), methods.dc_sgd_e(2.0), SAMPLED, 5, GAUSSIAN)
    entries = (Steps(SGD, SAMPLED, 7), GAUSSIAN, LAPLACE, DECLARED, *searches, scored)
    text = privacy_statement(Ledger("digits", entries=entries), DELTA, "rdp", ["the weather"])
    for i in range(1, len(entries) + 1):
        assert f"\n{i}. " in text
    for words in ("accuracy", "a synopsis", "liu_talwar", "scored by accuracy", "- the weather"):
        assert words in text
    assert "without private data" in text
    assert NOT_COUNTED[0] not in text
    assert "(nothing)" in privacy_statement(Ledger("digits"), DELTA)


@pytest.mark.parametrize(("accountant", "words"), [("gdp", "no guarantee"), ("tcdp", "not proven")])
def test_an_approximation_is_called_one(accountant, words):
    ledger = Ledger("digits").add_steps(methods.dp_sgd(8.0), SAMPLED, 100)
    spent = ledger.epsilon(DELTA, accountant)
    assert not spent.guarantee
    text = privacy_statement(ledger, DELTA, accountant)
    assert words in spent.note
    assert words in text
    assert "-differentially private" not in text
    # Without sampling both are exact, or proven.
    exact = Ledger("digits").add_steps(SGD, FullBatch(), 2)
    assert exact.epsilon(DELTA, accountant).guarantee
    assert "-differentially private" in privacy_statement(exact, DELTA, accountant)


def test_an_approximation_is_not_called_an_upper_bound():
    ledger = Ledger("digits").add_steps(SGD, SAMPLED, 100)
    assert "upper bound" not in privacy_statement(ledger, DELTA, "gdp")


def test_the_central_limit_figure_is_below_the_truth_here():
    """Why it is labelled: many steps at little noise."""
    true = epsilon_composed([(0.01, 0.6, 1000)], DELTA)
    ledger = Ledger("digits").add_steps(methods.dp_sgd(0.6), SAMPLED, 1000)
    assert ledger.epsilon(DELTA, "gdp") < true <= ledger.epsilon(DELTA)


# A number in print is never smaller than it is.

# The documented hair of room, by which 2e-6 in binary may exceed 2e-6 in print.
HAIR = Decimal(2) ** -49


@given(st.floats(1e-300, 1e300), st.integers(1, 8))
def test_rounded_up_is_never_below(value, digits):
    shown = Decimal(rounded_up(value, digits))
    exact = Decimal(value)
    assert shown >= exact * (1 - HAIR)
    unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    assert shown < exact + unit
    assert len(shown.normalize().as_tuple().digits) <= digits


@given(st.integers(1, 9999), st.integers(-8, 4))
def test_rounded_up_leaves_short_numbers_alone(digits, power):
    written = Decimal(digits).scaleb(power)
    assert Decimal(rounded_up(float(written))) == written


def test_rounded_up_beyond_numbers():
    shown = [rounded_up(value) for value in (0.0, math.inf, math.nan)]
    assert shown == ["0", "inf", "nan"]


def test_the_lower_bound_in_print_is_never_above(monkeypatch):
    spent = Bound(1.0068)
    spent.lower, spent.accountant, spent.relation = 1.0065, "pld", "add_or_remove_one"
    spent.guarantee, spent.note = True, ""
    monkeypatch.setattr(Ledger, "epsilon", lambda *_: spent)
    text = privacy_statement(Ledger("digits").add(GAUSSIAN), DELTA)
    assert float(re.search(r"at least ([0-9.]+[0-9])", text)[1]) <= spent.lower


def test_delta_in_print_is_never_smaller():
    delta = 1.0000004e-5
    text = privacy_statement(Ledger("digits").add(GAUSSIAN), delta)
    written = re.search(r"is \([^,]+, ([^)]+)\)-differentially private", text)[1]
    assert Decimal(written) >= Decimal(delta) * (1 - HAIR)
