"""The event of a mechanism: schedules, joint releases, samplers, relations, refusals."""

import itertools
import math
from dataclasses import dataclass

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import dpjax
from dpjax import methods, rules, schedules
from dpjax.accounting import (
    Event,
    Ledger,
    Steps,
    calibrate,
    delta,
    epsilon,
    event,
    largest_batch,
    max_steps,
    tuning,
)
from dpjax.accounting.events import noise_multipliers
from dpjax.accounting.gaussians import leaves
from dpjax.sampling import FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson
from tests import registry

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
POISSON, SIGMA, DELTA = Poisson.with_rate(0.01), 1.3, 1e-5
SOUND = [name for name in registry.METHODS if name != "auto_dp_sgd"]
ADAPTIVE = [name for name in SOUND if registry.METHODS[name](SIGMA).adaptive]
B = 64.0


def sampling_of(method):
    return FullBatch() if "full_batch" in method.name else POISSON


def expanded(runs):
    return [sigma for sigma, count in runs for _ in range(count)]


def sigmas_of(happened):
    """The noise multiplier of every step; each must be one Gaussian in at most one sampling."""
    runs = []
    for run in happened.events:
        assert type(run) is dp_accounting.SelfComposedDpEvent
        inner = getattr(run.event, "event", run.event)
        assert type(inner) in (
            dp_accounting.GaussianDpEvent,
            dp_accounting.TruncatedSubsampledGaussianDpEvent,
        )
        runs.append((inner.noise_multiplier, run.count))
    return expanded(runs)


def same_leaves(one, other):
    one, other = leaves(one), leaves(other)
    assert one.others == other.others == []
    for x, y in zip(one.gaussians, other.gaussians, strict=True):
        assert x.sampling == y.sampling
        np.testing.assert_array_equal(x.sigmas, y.sigmas)
        np.testing.assert_array_equal(x.counts, y.counts)


# Schedules.


@pytest.mark.parametrize("name", registry.SCHEDULES)
def test_runs_of_a_schedule(name):
    """Against a loop: the same values to a rounding, the same places where they change."""
    schedule, steps = registry.SCHEDULES[name], 130
    want = np.asarray([float(schedule(t)) for t in range(steps)])
    runs = noise_multipliers(methods.dp_sgd(schedule), steps)
    np.testing.assert_allclose(expanded(runs), want, rtol=2e-7)
    lengths = [len(list(same)) for _, same in itertools.groupby(want)]
    assert [count for _, count in runs] == lengths
    assert all(type(sigma) is float and type(count) is int for sigma, count in runs)
    assert sigmas_of(event(methods.dp_sgd(schedule), POISSON, steps)) == expanded(runs)


@pytest.mark.parametrize("name", ["table", "du_decay", "step_decay"])
def test_start_is_where_the_schedule_is_read_from(name):
    method = methods.dp_sgd(registry.SCHEDULES[name])
    whole = sigmas_of(event(method, POISSON, 40))
    assert sigmas_of(event(method, POISSON, 10, start=5)) == whole[5:15]
    assert sigmas_of(event(method, POISSON, 15, start=25)) == whole[25:] != whole[:15]


@pytest.mark.parametrize("name", ["table", "du_decay", "step_decay"])
@pytest.mark.parametrize("sampling", [POISSON, FullBatch(), FixedSize(5, 500)])
def test_two_parts_of_a_run_compose_to_the_run(name, sampling):
    method = methods.dp_sgd(registry.SCHEDULES[name])
    parts = [event(method, sampling, 17), event(method, sampling, 23, start=17)]
    same_leaves(dp_accounting.ComposedDpEvent(parts), event(method, sampling, 40))


def test_a_number_is_one_run_however_long():
    assert noise_multipliers(methods.dp_sgd(2), 10**9, start=10**9) == [(2.0, 10**9)]
    with pytest.raises(ValueError, match=r"2\^31"):
        event(methods.dp_sgd(2.0), POISSON, 2**31 - 1, start=1)


def test_the_sigma_that_runs_is_the_one_accounted():
    """float32, as it runs: 1.1 is not exactly 1.1."""
    assert noise_multipliers(methods.dp_sgd(1.1), 1) == [(float(np.float32(1.1)), 1)]


# What one step is.


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_joint_release_is_one_gaussian_in_one_poisson_event(name):
    method = registry.METHODS[name](SIGMA)
    (run,) = event(method, POISSON, 3).events
    assert run.count == 3
    assert type(run.event) is dp_accounting.PoissonSampledDpEvent
    assert run.event.event == dp_accounting.GaussianDpEvent(float(np.float32(SIGMA)))
    assert method.sigma_gradient(0, B) > 1.001 * SIGMA  # which is not what is accounted


@pytest.mark.parametrize("name", SOUND)
def test_groups_do_not_change_the_event(name):
    method = registry.METHODS[name](SIGMA)
    grouped = method.replace(groups="per_leaf")
    sampling = sampling_of(method)
    assert event(grouped, sampling, 50) == event(method, sampling, 50)
    assert event(method, sampling, 50) == event(method, sampling, 50)


def test_momentum_does_not_change_the_event():
    plain = methods.psasc(SIGMA)
    recomputed = methods.psasc_momentum(SIGMA, length=2)
    stored = methods.psasc_momentum_full_batch(SIGMA, dataset_size=64)
    assert event(recomputed, POISSON, 50) == event(plain, POISSON, 50)
    assert event(stored, FullBatch(), 50) == event(plain, FullBatch(), 50)


GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)
EVENTS = [
    (Poisson.with_rate(0.01), ADD, dp_accounting.PoissonSampledDpEvent(0.01, GAUSSIAN)),
    (Poisson.with_rate(1.0), ADD, GAUSSIAN),
    (
        TruncatedPoisson(3, 300, 5),
        ADD,
        dp_accounting.TruncatedSubsampledGaussianDpEvent(300, 0.01, 5, 2.0),
    ),
    (
        FixedSize(3, 300),  # RDP under replace-one: half of 2
        REPLACE,
        dp_accounting.SampledWithoutReplacementDpEvent(300, 3, dp_accounting.GaussianDpEvent(1.0)),
    ),
    (
        FixedSize(300, 300),
        REPLACE,
        dp_accounting.SampledWithoutReplacementDpEvent(
            300, 300, dp_accounting.GaussianDpEvent(1.0)
        ),
    ),
    (FullBatch(), ADD, GAUSSIAN),
]


@pytest.mark.parametrize(("sampling", "relation", "one"), EVENTS)
def test_event_and_relation_of_a_sampler(sampling, relation, one):
    happened = event(methods.dp_sgd(2.0), sampling, 7)
    assert isinstance(happened, Event)
    assert happened.events == [dp_accounting.SelfComposedDpEvent(one, 7)]
    assert type(happened.events[0].event) is type(one)
    assert happened.neighboring_relation is relation


def test_every_example_every_time_is_the_same_whoever_draws_it():
    method = methods.dp_sgd(2.0)
    for accountant in ("pld", "rdp", "tcdp", "gdp"):
        full = epsilon(method, FullBatch(), 5, DELTA, accountant)
        assert epsilon(method, Poisson.with_rate(1.0), 5, DELTA, accountant) == full
    for accountant in ("rdp", "tcdp"):
        full = epsilon(method, FullBatch(), 5, DELTA, accountant, relation="replace_one")
        assert epsilon(method, FixedSize(9, 9), 5, DELTA, accountant) == full


@pytest.mark.parametrize("name", ["replace_one", "add_or_remove_one"])
def test_a_relation_that_is_asked_for(name):
    as_enum = {"replace_one": REPLACE, "add_or_remove_one": ADD}[name]
    by_name = event(methods.dp_sgd(2.0), POISSON, 7, relation=name)
    assert by_name.neighboring_relation is as_enum
    assert by_name == event(methods.dp_sgd(2.0), POISSON, 7, relation=as_enum)
    assert sigmas_of(by_name) == [2.0] * 7  # PLD knows of both
    assert epsilon(methods.dp_sgd(2.0), POISSON, 7, DELTA, relation=name).relation == name


@pytest.mark.parametrize("accountant", ["pld", "rdp", "tcdp", "gdp"])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_sigma_is_halved_for_rdp_under_replace_one_only(accountant, relation):
    happened = event(methods.dp_sgd(2.0), FullBatch(), 3, relation=relation, accountant=accountant)
    halved = accountant == "rdp" and relation == "replace_one"
    assert sigmas_of(happened) == [1.0 if halved else 2.0] * 3


# Figures.


def full_batch_epsilon(accountant, relation):
    return epsilon(methods.dp_sgd(2.0), FullBatch(), 1, DELTA, accountant, relation=relation)


def test_replace_one_means_the_same_to_rdp_and_pld():
    """TRAPS 1: dp-accounting's RDP gives 2.166 under either relation unless sigma is halved."""
    assert full_batch_epsilon("rdp", "add_or_remove_one") == pytest.approx(2.166, abs=1e-3)
    assert full_batch_epsilon("pld", "add_or_remove_one") == pytest.approx(1.993, abs=1e-3)
    tight = full_batch_epsilon("pld", "replace_one")
    assert tight == pytest.approx(4.377, abs=1e-3)
    for accountant in ("rdp", "tcdp"):
        assert full_batch_epsilon(accountant, "replace_one") >= tight
    assert full_batch_epsilon("gdp", "replace_one") == pytest.approx(tight, rel=1e-4)  # exact here
    trap = RdpAccountant(neighboring_relation=REPLACE).compose(GAUSSIAN).get_epsilon(DELTA)
    assert trap == pytest.approx(2.166, abs=1e-3)


def test_fixed_size_batches_of_mnist():
    """TRAPS 2: 14.10, and 2.01 without halving."""
    method, sampling = methods.dp_sgd(1.0), FixedSize(256, 60_000)
    assert epsilon(method, sampling, 2_000, DELTA, "rdp") == pytest.approx(14.10, abs=5e-3)
    one = dp_accounting.SampledWithoutReplacementDpEvent(
        60_000, 256, dp_accounting.GaussianDpEvent(1.0)
    )
    trap = RdpAccountant(neighboring_relation=REPLACE).compose(one, 2_000).get_epsilon(DELTA)
    assert trap == pytest.approx(2.01, abs=5e-3)


@pytest.mark.parametrize(
    ("accountant", "joint", "apart"), [("rdp", 1.071, 0.594), ("pld", 0.769, 0.449)]
)
def test_two_releases_from_one_batch(accountant, joint, apart):
    """TRAPS 3: gradient and histogram with noise 2 each; `apart` is what two events would say."""
    method = methods.dc_sgd_e(math.sqrt(2), sigma_h=2.0)
    assert float(method.sigma_gradient(0)) == pytest.approx(2.0)
    assert epsilon(method, Poisson.with_rate(0.1), 1, DELTA, accountant) == pytest.approx(
        joint, abs=1e-3
    )
    two = epsilon(methods.dp_sgd(2.0), Poisson.with_rate(0.1), 2, DELTA, accountant)
    assert two == pytest.approx(apart, abs=1e-3)


HANDED_OVER = [
    ("rdp", POISSON, "add_or_remove_one"),
    ("rdp", FullBatch(), "add_or_remove_one"),
    ("rdp", FullBatch(), "replace_one"),
    ("rdp", FixedSize(5, 500), "replace_one"),
    ("pld", Poisson.with_rate(0.1), "add_or_remove_one"),
    ("pld", Poisson.with_rate(0.1), "replace_one"),
    ("pld", TruncatedPoisson(30, 300, 40), "add_or_remove_one"),
    ("pld", TruncatedPoisson(30, 300, 40), "replace_one"),
    ("pld", FullBatch(), "add_or_remove_one"),
    ("pld", FullBatch(), "replace_one"),
]


@pytest.mark.parametrize(("accountant", "sampling", "relation"), HANDED_OVER)
def test_dp_accounting_reads_the_event(accountant, sampling, relation):
    """Its own accountants, given the event and its relation, say what `epsilon` says."""
    method = methods.dp_sgd(schedules.table((6.0, 4.0), steps_per_epoch=6))
    happened = event(method, sampling, 10, relation=relation, accountant=accountant)
    theirs = {"rdp": RdpAccountant, "pld": PLDAccountant}[accountant]
    theirs = theirs(neighboring_relation=happened.neighboring_relation)
    want = theirs.compose(happened).get_epsilon(DELTA)
    got = epsilon(method, sampling, 10, DELTA, accountant, relation=relation)
    assert got == pytest.approx(want, rel=1e-6 if accountant == "rdp" else 1e-4)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_dp_accounting_lies_in_the_bracket(relation):
    """Also where the mesh is coarse: little noise and few steps."""
    method = methods.dp_sgd(schedules.table((1.5, 1.0), steps_per_epoch=6))
    happened = event(method, POISSON, 10, relation=relation)
    want = PLDAccountant(happened.neighboring_relation).compose(happened).get_epsilon(DELTA)
    got = epsilon(method, POISSON, 10, DELTA, relation=relation)
    assert got.lower <= want * (1 + 1e-4)
    assert want * (1 - 1e-4) <= got <= want * (1 + 5e-3)


# Refusals.


def test_no_guarantee_no_event():
    with pytest.raises(TypeError, match=r"auto_dp_sgd_as_printed.*: expected a dpjax\.Mechanism"):
        event(registry.METHODS["auto_dp_sgd"](SIGMA), POISSON, 10)
    with pytest.raises(ValueError, match=r"No guarantee.*noise_multiplier > 0"):
        event(methods.dp_sgd(0.0), POISSON, 10)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_a_curve_is_read_at_every_step(bad):
    """300 is none of the steps at which a bare callable is probed before."""
    method = methods.dp_sgd(lambda t: jnp.where(t == 300, bad, 1.0))
    for start, steps in ((0, 301), (295, 10), (300, 1)):
        with pytest.raises(ValueError, match=r"noise_multiplier = .* at step 300"):
            event(method, POISSON, steps, start)
    assert sigmas_of(event(method, POISSON, 300)) == [1.0] * 300
    assert sigmas_of(event(method, POISSON, 9, start=301)) == [1.0] * 9


@pytest.mark.parametrize(("peak", "refused"), [(4.34, True), (4.32, False)])
def test_the_split_is_checked_at_every_step(peak, refused):
    """sqrt(3)/2 sigma_H is 4.330 for the sigma_H of 5 that goes with a sigma of 1."""
    method = methods.dc_sgd_e(lambda t: jnp.where(t == 300, peak, 1.0))
    assert method.sigma_statistic() == 5.0
    if refused:
        with pytest.raises(ValueError, match=r"at step 300: .* 4\.33013.*sigma_S"):
            event(method, POISSON, 400)
    else:
        assert sigmas_of(event(method, POISSON, 400))[300] == pytest.approx(peak)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, math.nan, "3", None])
@pytest.mark.parametrize("field", ["steps", "start"])
def test_counts_are_whole_numbers(field, bad):
    if (field, bad) == ("start", 0):
        bad = -2
    with pytest.raises((TypeError, ValueError), match=f"{field} = .*expected an integer >="):
        event(methods.dp_sgd(1.0), POISSON, **{"steps": 3, field: bad})


@pytest.mark.parametrize("sampling", [POISSON, Poisson.with_rate(1.0), FixedSize(64, 64)])
def test_stored_momentum_is_for_full_batches(sampling):
    with pytest.raises(ValueError, match=r"sampling = .*stored per example: expected FullBatch"):
        event(registry.METHODS["psasc_momentum_full_batch"](SIGMA), sampling, 10)


@pytest.mark.parametrize("sampling", [POISSON, Poisson.with_rate(1.0), FixedSize(64, 64)])
def test_so_is_its_mechanism_wherever_it_is_accounted(sampling):
    """The mechanism alone was taken for one that is amplified by sampling."""
    bare = registry.METHODS["psasc_momentum_full_batch"](SIGMA)
    assert bare.full_batch
    assert bare == type(bare).from_plain(bare.to_plain())
    search = tuning.grid_composition(2)
    for account in (
        lambda: event(bare, sampling, 10),
        lambda: epsilon(bare, sampling, 10, DELTA, "rdp"),
        lambda: delta(bare, sampling, 10, 1.0, "rdp"),
        lambda: calibrate(bare, sampling, 10, 1.0, DELTA, "rdp"),
        lambda: max_steps(bare, sampling, 1.0, DELTA, "rdp"),
        lambda: Steps(bare, sampling, 10),
        lambda: Ledger("digits").add_steps(bare, sampling, 10),
        lambda: search.plan(bare, sampling, 10, 1.0, DELTA),
        lambda: tuning.Search(search, bare, sampling, 10),
    ):
        with pytest.raises(ValueError, match=r"stored per example: expected FullBatch"):
            account()
    with pytest.raises(ValueError, match=r"stored per example: expected FullBatch"):
        largest_batch(bare, 1000, 10, 1.0, DELTA)
    assert epsilon(bare, FullBatch(), 10, DELTA, "rdp") > 0


@dataclass(frozen=True)
class every_other(Sampling):
    """A sampler of somebody else's, of which no accounting is known."""


@pytest.mark.parametrize("sampling", [every_other(), "poisson", 0.01, None, Poisson])
def test_an_unknown_sampler(sampling):
    for function in (event, lambda *args: epsilon(*args, DELTA)):
        with pytest.raises(TypeError, match=r"sampling = .*Poisson, TruncatedPoisson, FixedSize"):
            function(methods.dp_sgd(1.0), sampling, 10)


def test_an_unknown_mechanism():
    for bad in ("dp_sgd", rules.abadi(), methods.dp_sgd, None):
        with pytest.raises(TypeError, match=r"mechanism = .*expected a dpjax.Mechanism"):
            event(bad, POISSON, 10)


@pytest.mark.parametrize(
    ("field", "bad", "meant"),
    [
        ("accountant", "pdl", "pld"),
        ("accountant", "rdb", "rdp"),
        ("accountant", "tcpd", "tcdp"),
        ("relation", "replace-one", "replace_one"),
        ("relation", "add_or_remove", "add_or_remove_one"),
    ],
)
def test_an_unknown_name_has_a_nearest_one(field, bad, meant):
    with pytest.raises(ValueError, match=f"{field} = '{bad}': did you mean '{meant}'"):
        event(methods.dp_sgd(1.0), POISSON, 10, **{field: bad})
    with pytest.raises(ValueError, match=f"{field} = '{bad}': did you mean '{meant}'"):
        epsilon(methods.dp_sgd(1.0), POISSON, 10, DELTA, **{field: bad})


def test_a_relation_that_is_no_relation_here():
    for bad in (3, NeighboringRelation.REPLACE_SPECIAL):
        with pytest.raises(ValueError, match="expected add_or_remove_one or replace_one"):
            event(methods.dp_sgd(1.0), POISSON, 10, relation=bad)


def test_a_traced_noise_multiplier_cannot_be_read():
    def steps_of(sigma):
        mechanism = dpjax.Mechanism(rules.abadi(), 1.0, lambda t: sigma / (1 + t))
        return len(event(mechanism, POISSON, 5).events)

    with pytest.raises(ValueError, match=r"noise_multiplier = .*depends on a traced value"):
        jax.jit(steps_of)(1.0)
    with pytest.raises(TypeError, match=r"noise_multiplier = .*expected a real number"):
        jax.jit(methods.dp_sgd)(1.0)
    assert steps_of(1.0) == 5
    assert jax.jit(lambda x: x * steps_of(1.0))(1.0) == 5.0  # public ones are read while tracing


@pytest.mark.parametrize("bad", [0.01, 0.999, 0.0, -3, math.nan])
def test_a_batch_size_below_one_is_refused(bad):
    """A rate given for B would make updates hundreds of times too large."""
    key = jax.random.key(0)
    plain, adaptive = methods.dp_sgd(1.0), registry.METHODS["dc_sgd_e"](SIGMA)
    for ask in (
        lambda: dpjax.privatize(plain, bad, key),
        lambda: plain.transformation(bad, key),
        lambda: methods.adaclip(1.0).transformation(bad, key),
        lambda: adaptive.sigma_statistic(bad),
        lambda: adaptive.sigma_gradient(0, bad),
    ):
        with pytest.raises(ValueError, match=r"(sampling|expected_batch_size) = .*expected"):
            ask()
    assert dpjax.privatize(plain, 1, key)
