"""The price of tuning: printed figures, closed forms, dp-accounting, and the draws themselves."""

import inspect
import json
import math

import dp_accounting
import jax
import numpy as np
import pytest
from absl import logging
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from dpjax import methods
from dpjax.accounting import (
    TAIL_ORDERS,
    GaussianQuery,
    LaplaceQuery,
    Ledger,
    calibrate,
    epsilon,
    tuning,
)
from dpjax.accounting.missing_mass import missing_mass
from dpjax.accounting.tuning import (
    Found,
    Search,
    Tuning,
    disjoint_split,
    grid_composition,
    liu_talwar,
    repeat_and_select,
)
from dpjax.papers.auto_dp_sgd import auto_dp_sgd
from dpjax.sampling import FixedSize, FullBatch, Poisson
from tests.oracles.accounting import (
    epsilon_composed,
    rdp_poisson_gaussian,
    rdp_to_epsilon,
    repeat_and_select_geometric,
)

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
N, B = 50_000, 256
STEPS = math.ceil(20 * N / B)
CIFAR, DELTA, EPSILON, G = Poisson.with_rate(B / N), 1 / N, 2.0, 10
SHAPES = (0.0, 0.5, 1.0, 2.0, math.inf)
TUNINGS = {
    "liu_talwar": liu_talwar(G),
    "liu_talwar_gamma": liu_talwar(3, gamma=0.2, delta_2=1e-12),
    "grid_composition": grid_composition(4),
    "disjoint_split": disjoint_split(3, selection=0.5),
    **{f"repeat_and_select_{shape:g}": repeat_and_select(6.0, shape) for shape in SHAPES},
}
RDP_TUNINGS = {name: t for name, t in TUNINGS.items() if name != "disjoint_split"}
SCORING = GaussianQuery("right answers on held-out examples", noise_multiplier=8.0)
SMALL = (Poisson.with_rate(0.01), 50)
# A test at this level fails by chance once in a million runs; the keys are fixed besides.
LEVEL = 1e-6


@pytest.fixture(autouse=True)
def quiet():
    """dp-accounting logs every order whose series does not converge."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    yield
    logging.set_verbosity(before)


def poisson(q, sigma, count):
    one = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(one, count)


def theirs(happened, delta, relation=ADD, orders=None):
    """Epsilon by dp-accounting's own accountant."""
    return RdpAccountant(orders, relation).compose(happened).get_epsilon(delta)


def theirs_in_part(happened, delta, **kwargs):
    """The same at what the noise's bounded support leaves of a tiny delta."""
    return theirs(happened, delta - missing_mass(happened, ADD), **kwargs)


def sigma_of(search):
    return search.mechanism.noise_multiplier


# The figures of the reference check, each to its printed digits.


@pytest.mark.parametrize(
    ("tuned", "printed"),
    [
        (liu_talwar(G), "4.02"),
        (grid_composition(G), "2.22"),
        (repeat_and_select(2 * G), "1.65"),
        (None, "0.966"),
    ],
)
def test_reference_check(tuned, printed):
    method = methods.dp_sgd(1.0)
    if tuned is None:
        found = calibrate(method, CIFAR, STEPS, EPSILON, DELTA, "rdp").noise_multiplier
    else:
        found = sigma_of(tuned.plan(method, CIFAR, STEPS, EPSILON, DELTA))
    digits = len(printed.split(".")[1])
    assert f"{found:.{digits}f}" == printed


@pytest.mark.parametrize(
    ("whole", "printed"),
    [
        (lambda run: dp_accounting.SelfComposedDpEvent(run, G), 2.22),
        (lambda run: RepeatAndSelectDpEvent(run, 2.0 * G, 1.0), 1.65),
        (lambda run: run, 0.966),
    ],
)
def test_the_printed_figures_spend_the_budget_by_dp_accounting(whole, printed):
    """Half a printed digit either way spends more and less: the figures are not ours alone."""
    half = 0.5 * 10.0 ** -len(str(printed).split(".")[1])
    spent = [
        theirs(whole(poisson(B / N, printed + side, STEPS)), DELTA) for side in (-half, 0.0, half)
    ]
    assert spent[0] > EPSILON > spent[2]
    assert spent[1] == pytest.approx(EPSILON, rel=0.01)


# Liu and Talwar.


def test_liu_talwar_per_run_by_hand():
    rounds = 2 * G * math.log(1e20)
    delta_1 = ((DELTA - 1e-20) / (3 * rounds)) ** 2 / 2
    epsilon_1 = (EPSILON - 3 * math.sqrt(2 * delta_1)) / 3
    assert liu_talwar(G).per_run(EPSILON, DELTA) == pytest.approx((epsilon_1, delta_1), rel=1e-12)
    assert delta_1 == pytest.approx(2.6e-17, rel=0.02)
    # And forwards: what the theorem makes of (eps_1, delta_1) is the budget.
    root = 3 * math.sqrt(2 * delta_1)
    assert (3 * epsilon_1 + root, root * rounds + 1e-20) == pytest.approx((EPSILON, DELTA))


def test_liu_talwar_total_is_three_runs_at_its_small_delta():
    run = poisson(B / N, 4.02, STEPS)
    delta_1 = ((DELTA - 1e-20) / (3 * 2 * G * math.log(1e20))) ** 2 / 2
    want = 3 * theirs_in_part(run, delta_1, orders=TAIL_ORDERS) + 3 * math.sqrt(2 * delta_1)
    assert liu_talwar(G).total(run, ADD, DELTA) == pytest.approx(want, rel=1e-9)
    assert want == pytest.approx(EPSILON, rel=0.01)
    # The default orders end too early for this delta; a run's PLD at delta would be no bound.
    assert 3 * theirs(run, delta_1) > want
    assert 3 * epsilon_composed([(B / N, 4.02, STEPS)], DELTA) < 0.6 * want


def test_liu_talwar_refuses_a_budget_below_its_own_cost():
    tuned = liu_talwar(1, gamma=1.0, delta_2=1e-3)
    with pytest.raises(ValueError, match=r"epsilon = 0.01: expected more than 0.0"):
        tuned.per_run(0.01, 0.5)
    with pytest.raises(ValueError, match=r"delta = 0.0001: expected more than delta_2 = 0.001"):
        tuned.per_run(1.0, 1e-4)


def test_liu_talwar_misses_a_candidate_with_probability_about_a_third():
    gamma = 1 / (2 * G)
    rounds = np.arange(1, 5000)
    by_sum = float(np.sum(gamma * (1 - gamma) ** (rounds - 1) * (1 - 1 / G) ** rounds))
    assert by_sum == pytest.approx(0.31, abs=0.005)
    rng = np.random.default_rng(0)
    draws = [liu_talwar(G).trials(rng, G) for _ in range(4000)]
    missed = sum(3 not in draw for draw in draws)
    assert stats.binomtest(missed, len(draws), by_sum).pvalue > LEVEL
    # The arm that must reject: each of G candidates once and in turn 2 G times, without luck.
    assert stats.binomtest(missed, len(draws), (1 - 1 / G) ** (2 * G)).pvalue < LEVEL
    lengths = np.array([len(draw) for draw in draws])
    assert lengths.mean() == pytest.approx(2 * G, abs=5 * lengths.std() / math.sqrt(len(draws)))
    chosen = np.bincount(np.concatenate(draws), minlength=G)
    assert stats.chisquare(chosen).pvalue > LEVEL


def test_liu_talwar_rounds_are_geometric_and_cut():
    tuned = liu_talwar(2, gamma=0.1, delta_2=0.2)
    most = math.floor(math.log(1 / 0.2) / 0.1)
    assert tuned.rounds == pytest.approx(math.log(5) / 0.1)
    rng = np.random.default_rng(1)
    lengths = np.array([len(tuned.trials(rng, 2)) for _ in range(4000)])
    assert (lengths.min(), lengths.max()) == (1, most)
    pmf = 0.1 * 0.9 ** np.arange(most)
    pmf[-1] += 0.9**most
    observed = np.bincount(lengths, minlength=most + 1)[1:]
    assert stats.chisquare(observed, lengths.size * pmf).pvalue > LEVEL
    uncut = 0.1 * 0.9 ** np.arange(most)
    assert stats.chisquare(observed, lengths.size * uncut / uncut.sum()).pvalue < LEVEL


# Papernot and Steinke.


def gamma_of(eta, mean):
    """The stopping probability at which the truncated negative binomial has this mean."""
    low, high = 1e-9, 1 - 1e-9
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if mean_of(eta, middle) > mean else (low, middle)
    return low


def mean_of(eta, gamma):
    if eta == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return eta * (1 - gamma) / (gamma * (1 - gamma**eta))


def pmf_of(eta, mean, largest=600):
    """P(K = 0, 1, ...), from the definitions 13 and theorem 6 of the paper, by its gammas."""
    k = np.arange(largest + 1)
    if eta == math.inf:
        return stats.poisson.pmf(k, mean)
    gamma = gamma_of(eta, mean)
    if eta == 0:
        return np.concatenate([[0.0], (1 - gamma) ** k[1:] / (k[1:] * math.log(1 / gamma))])
    # Conditioned on K > 0; SciPy's counts failures before `eta` successes.
    return np.where(k > 0, stats.nbinom.pmf(k, eta, gamma), 0.0) / (1 - gamma**eta)


def pooled(counts, pmf, draws, least=10.0):
    """Neighbouring values together, until each cell expects enough for the chi-square test."""
    expected = draws * np.append(pmf, max(0.0, 1 - pmf.sum()))
    observed = np.append(counts, 0)
    cells, o, e = [], 0.0, 0.0
    for seen, due in zip(observed, expected, strict=True):
        o, e = o + seen, e + due
        if e >= least:
            cells.append((o, e))
            o, e = 0.0, 0.0
    cells[-1] = (cells[-1][0] + o, cells[-1][1] + e)
    return np.array(cells).T


def fit(lengths, eta, mean):
    counts = np.bincount(lengths, minlength=601)
    assert counts.size == 601
    observed, expected = pooled(counts, pmf_of(eta, mean), lengths.size)
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


@pytest.mark.parametrize("shape", SHAPES)
def test_the_number_of_runs_has_its_distribution(shape):
    mean, draws = 8.0, 6000
    pmf = pmf_of(shape, mean)
    assert (pmf.sum(), pmf @ np.arange(pmf.size)) == pytest.approx((1.0, mean), rel=1e-6)
    rng = np.random.default_rng(2)
    tuned = repeat_and_select(mean, shape)
    trials = [tuned.trials(rng, 3) for _ in range(draws)]
    lengths = np.array([len(trial) for trial in trials])
    assert fit(lengths, shape, mean) > LEVEL
    for wrong in set(SHAPES) - {shape}:
        assert fit(lengths, wrong, mean) < LEVEL
    deviation = math.sqrt(pmf @ (np.arange(pmf.size) - mean) ** 2 / draws)
    assert lengths.mean() == pytest.approx(mean, abs=5 * deviation)
    assert (lengths.min() == 0) == (shape == math.inf)
    assert stats.chisquare(np.bincount([i for trial in trials for i in trial])).pvalue > LEVEL


def test_one_run_when_the_mean_is_one():
    rng = np.random.default_rng(0)
    for shape in SHAPES[:-1]:
        assert {len(repeat_and_select(1.0, shape).trials(rng, 5)) for _ in range(100)} == {1}


def test_many_runs_of_a_large_shape_can_be_drawn():
    assert len(repeat_and_select(1000.0, 1e5).trials(np.random.default_rng(0), 3)) > 500


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.0, 3.7, 20.0])
def test_repeat_and_select_costs_what_dp_accounting_says(shape, mean):
    tuned = repeat_and_select(mean, shape)
    search = Search(tuned, methods.dp_sgd(2.0), *SMALL)
    run = poisson(0.01, 2.0, 50)
    want = theirs(RepeatAndSelectDpEvent(run, mean, shape), 1e-5)
    assert search.epsilon(1e-5) == pytest.approx(want, rel=1e-9)
    assert tuned.total(run, ADD, 1e-5) == pytest.approx(want, rel=1e-9)


def test_repeat_and_select_costs_what_the_theorem_says():
    """At whole orders, against the divergences themselves in high precision."""
    orders = np.array([2, 3, 4, 6, 8, 11, 16, 22, 32])
    one = np.array([rdp_poisson_gaussian(0.01, 2.0, int(order)) for order in orders])
    divergences = repeat_and_select_geometric(orders, 50 * one, mean=20.0)
    want = rdp_to_epsilon(orders, divergences, 1e-5)
    run = poisson(0.01, 2.0, 50)
    happened = repeat_and_select(20.0).event(run)
    assert theirs(happened, 1e-5, orders=orders) == pytest.approx(want, rel=1e-6)
    # More orders can only help, and not by much.
    assert 0.8 * want < repeat_and_select(20.0).total(run, ADD, 1e-5) <= want * (1 + 1e-6)


def test_a_poisson_number_of_runs_may_be_none():
    search = Search(repeat_and_select(1.0, math.inf), methods.dp_sgd(2.0), *SMALL)
    founds = [search.run(scored, "abc", jax.random.key(i), 1e-5) for i in range(12)]
    none = [found for found in founds if found.candidate is None]
    assert 0 < len(none) < len(founds)
    assert none[0][:3] == (None, None, None)
    assert none[0].epsilon == founds[0].epsilon == search.epsilon(1e-5)


def scored(candidate, mechanism, key):
    del mechanism
    return ord(candidate), key


# The grid.


@pytest.mark.parametrize("candidates", [1, 5])
def test_the_grid_costs_its_composition(candidates):
    search = Search(grid_composition(candidates), methods.dp_sgd(1.5), *SMALL)
    want = theirs(poisson(0.01, 1.5, 50 * candidates), 1e-5)
    assert search.epsilon(1e-5) == pytest.approx(want, rel=1e-9)


def test_the_grid_under_replace_one_halves_the_noise():
    search = Search(grid_composition(3), methods.dp_sgd(4.0), FixedSize(10, 1000), 20, SCORING)
    one = dp_accounting.SampledWithoutReplacementDpEvent(
        1000, 10, dp_accounting.GaussianDpEvent(2.0)
    )
    run = dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(one, 20), dp_accounting.GaussianDpEvent(4.0)]
    )
    spent = search.epsilon(1e-5)
    want = theirs(dp_accounting.SelfComposedDpEvent(run, 3), 1e-5, REPLACE)
    assert spent == pytest.approx(want, rel=1e-9)
    assert spent.relation == "replace_one"


# The disjoint split.


@pytest.mark.parametrize(("candidates", "size"), [(1, 2), (2, 10), (5, 101), (9, 1000)])
def test_parts_are_disjoint_and_cover(candidates, size):
    parts = disjoint_split(candidates, 1.0).parts(jax.random.key(1), size)
    assert len(parts) == candidates + 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(size))
    mean = size / (candidates + 1)  # each row draws its part
    assert all(abs(len(part) - mean) < 5 * mean**0.5 for part in parts)
    again = disjoint_split(candidates, 1.0).parts(jax.random.key(1), size)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_parts_are_shuffled_and_need_enough_rows():
    tuned = disjoint_split(1, 1.0)
    one, other = (tuned.parts(jax.random.key(i), 100)[0].tolist() for i in range(2))
    assert sorted(one) != sorted(other)
    assert sorted(one) != list(range(50))
    with pytest.raises(ValueError, match="dataset_size = 1: expected an integer >= 2"):
        tuned.parts(jax.random.key(0), 1)


def chosen_of(selection, errors, draws=4000):
    tuned = disjoint_split(len(errors), selection)
    rng = np.random.default_rng(3)
    picks = [tuned.best(rng, [-float(z) for z in errors]) for _ in range(draws)]
    return np.bincount(picks, minlength=len(errors))


def exponential(selection, errors):
    weights = np.exp(-selection * np.asarray(errors, float) / 2)
    return weights / weights.sum()


@pytest.mark.parametrize("errors", [(3, 5, 4), (0, 0, 0, 0), (1000, 1001, 1003)])
def test_the_choice_is_the_exponential_mechanism(errors):
    picked = chosen_of(0.8, errors)
    shifted = np.asarray(errors) - min(errors)
    assert stats.chisquare(picked, 4000 * exponential(0.8, shifted)).pvalue > LEVEL
    if max(errors) > min(errors):  # without the half, and against the better ones
        for wrong in (exponential(1.6, shifted), exponential(0.8, -shifted)):
            assert stats.chisquare(picked, 4000 * wrong).pvalue < LEVEL


class Recorder:
    """Stands for a generator, and keeps the probabilities it is handed."""

    def choice(self, size, p):
        assert len(p) == size
        self.p = np.asarray(p)
        return 0


def probabilities(tuned, errors):
    recorder = Recorder()
    tuned.best(recorder, [-float(z) for z in errors])
    return recorder.p


def worst_ratio(selection, least, most):
    """Largest |log ratio| of a choice's probabilities over all neighbouring error vectors."""
    tuned = disjoint_split(3, selection)
    worst = 0.0
    for errors in np.ndindex(4, 4, 4):
        p = probabilities(tuned, errors)
        for change in np.ndindex(*(most - least + 1,) * 3):
            other = np.array(errors) + least + np.array(change)
            if other.min() >= 0:
                worst = max(worst, np.abs(np.log(p / probabilities(tuned, other))).max())
    return worst


def test_the_choice_is_differentially_private():
    """One example changes each number of errors by at most one; exactly, for all neighbours."""
    for selection in (0.1, 1.0):
        worst = worst_ratio(selection, -1, 1)  # a replaced example
        assert 0.5 * selection < worst <= selection * (1 + 1e-9)
    assert worst_ratio(1.0, 0, 1) <= 1.0  # an added one
    # The arm that must reject: were scores to change by two, it would not hold.
    assert worst_ratio(1.0, -2, 2) > 1.0


def test_the_split_costs_the_larger_of_run_and_choice():
    run = epsilon_composed([(0.01, 2.0, 50)], 1e-5)
    for selection in (0.5 * run, 2.0 * run):
        search = Search(disjoint_split(3, selection), methods.dp_sgd(2.0), *SMALL)
        assert search.epsilon(1e-5) == pytest.approx(max(run, selection), rel=1e-3)
        assert search.epsilon(1e-5) >= max(run, selection)


def test_the_split_refuses_what_it_cannot_use():
    tuned, method = disjoint_split(2, 1.0), methods.dp_sgd(1.0)
    with pytest.raises(ValueError, match=r"selection = 1: expected at most 0\.5"):
        tuned.plan(method, *SMALL, epsilon=0.5, delta=1e-5)
    with pytest.raises(ValueError, match=r"scoring = .*: expected None"):
        tuned.plan(method, *SMALL, epsilon=2.0, delta=1e-5, scoring=SCORING)
    for scores in ([-1.5, -2.0], [1.0, -2.0]):
        with pytest.raises(ValueError, match="expected minus the number of errors"):
            tuned.best(np.random.default_rng(0), scores)


def test_the_split_does_not_release_the_errors_on_private_data():
    search = Search(disjoint_split(2, 1.0), methods.dp_sgd(2.0), *SMALL)
    found = search.run(lambda c, m, k: (-float(c), "model"), [17, 30], jax.random.key(0), 1e-5)
    assert found.score is None


def test_one_more_row_changes_one_part_only():
    """Parallel composition under add-or-remove-one: the other parts keep their distribution."""
    tuned = disjoint_split(4, 1.0)
    for size in (60, 70, 80):
        before, after = (tuned.parts(jax.random.key(0), n) for n in (size, size + 1))
        same = sum(set(a) == set(b) for a, b in zip(before, after, strict=True))
        assert same >= 4


@pytest.mark.parametrize(
    "name", ["liu_talwar", "grid_composition", "repeat_and_select_1", "disjoint_split"]
)
def test_a_search_says_what_the_bounded_support_of_the_noise_costs(name):
    """As a run does: `tests/accounting/test_missing_mass.py` has the numbers."""
    tuned, delta = TUNINGS[name], 0.1 if name == "liu_talwar" else 1e-9
    quiet, loud = (
        Search(tuned, methods.dp_sgd(sigma), *SMALL).epsilon(delta) for sigma in (2.0, 0.2)
    )
    assert quiet.note == ""
    assert "pays for the bounded support of the noise" in loud.note
    assert ("at its delta_1 = 6.5e-10" in loud.note) == (name == "liu_talwar")
    ledger = Ledger("data", entries=(Search(tuned, methods.dp_sgd(0.2), *SMALL),))
    assert ledger.epsilon(delta, "rdp").note == loud.note


# A score from private data is paid for.


@pytest.mark.parametrize(
    ("scoring", "released"),
    [
        (SCORING, dp_accounting.GaussianDpEvent(8.0)),
        (LaplaceQuery("errors", 5.0, count=2), [dp_accounting.LaplaceDpEvent(5.0)] * 2),
    ],
)
@pytest.mark.parametrize("name", RDP_TUNINGS)
def test_scoring_is_part_of_a_run(name, scoring, released):
    tuned, method = TUNINGS[name], methods.dp_sgd(2.0)
    released = released if isinstance(released, list) else [released]
    run = dp_accounting.ComposedDpEvent([poisson(0.01, 2.0, 50), *released])
    spent = Search(tuned, method, *SMALL, scoring).epsilon(1e-5)
    assert spent == pytest.approx(whole_cost(tuned, run), rel=1e-9)
    assert spent > Search(tuned, method, *SMALL).epsilon(1e-5)


def whole_cost(tuned, run, delta=1e-5):
    """Epsilon of a search at delta, by dp-accounting and closed forms."""
    if isinstance(tuned, grid_composition):
        return theirs(dp_accounting.SelfComposedDpEvent(run, tuned.candidates), delta)
    if isinstance(tuned, repeat_and_select):
        return theirs(RepeatAndSelectDpEvent(run, tuned.mean, tuned.shape), delta)
    gamma = tuned.gamma or 1 / (2 * tuned.candidates)
    rounds = math.log(1 / tuned.delta_2) / gamma
    delta_1 = ((delta - tuned.delta_2) / (3 * rounds)) ** 2 / 2
    return 3 * theirs_in_part(run, delta_1, orders=TAIL_ORDERS) + 3 * math.sqrt(2 * delta_1)


# Plans.


@pytest.mark.parametrize("name", TUNINGS)
def test_a_plan_spends_its_budget_and_no_more(name):
    search = TUNINGS[name].plan(methods.dp_sgd(123.0), *SMALL, epsilon=1.5, delta=1e-5)
    assert isinstance(search, Search)
    assert (search.tuning, search.sampling, search.steps) == (TUNINGS[name], *SMALL)
    assert 1.5 * (1 - 1e-3) <= search.epsilon(1e-5) <= 1.5
    if name in RDP_TUNINGS:
        want = whole_cost(TUNINGS[name], poisson(0.01, float(np.float32(sigma_of(search))), 50))
        assert 1.5 * (1 - 1e-3) <= want <= 1.5 * (1 + 1e-9)


@pytest.mark.parametrize("sampling", [FullBatch(), FixedSize(10, 1000)])
def test_a_plan_for_other_samplers(sampling):
    search = grid_composition(2).plan(methods.dp_sgd(1.0), sampling, 5, 3.0, 1e-5, SCORING)
    assert 3.0 * (1 - 1e-3) <= search.epsilon(1e-5) <= 3.0
    assert search.scoring == SCORING


def test_a_plan_pays_for_scoring_with_noise():
    tuned = repeat_and_select(5.0)
    plain, with_scores = (
        tuned.plan(methods.dp_sgd(1.0), *SMALL, epsilon=2.0, delta=1e-5, scoring=scoring)
        for scoring in (None, SCORING)
    )
    assert sigma_of(with_scores) > sigma_of(plain)


def test_a_plan_keeps_the_shape_of_a_schedule_and_the_method():
    method = methods.zhang_adaptive(2.0, steps_per_epoch=10, rate=0.5)
    search = grid_composition(3).plan(method, *SMALL, epsilon=2.0, delta=1e-5)
    noise = sigma_of(search)
    assert noise.replace(init=2.0) == method.noise_multiplier
    assert search.mechanism.replace(noise_multiplier=method.noise_multiplier) == method
    curve = [float(noise(t)) for t in range(0, 50, 10)]  # each for ten steps
    run = dp_accounting.ComposedDpEvent([poisson(0.01, sigma, 10) for sigma in curve])
    want = theirs(dp_accounting.SelfComposedDpEvent(run, 3), 1e-5)
    assert 2.0 * (1 - 1e-3) <= want <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize("method", [methods.dc_sgd_e(1.0), methods.psasc_momentum(1.0, length=2)])
def test_a_plan_of_other_methods(method):
    search = grid_composition(2).plan(method, *SMALL, epsilon=2.0, delta=1e-5)
    assert search.mechanism.replace(noise_multiplier=1.0) == method
    assert 2.0 * (1 - 1e-3) <= search.epsilon(1e-5) <= 2.0


def test_a_search_refuses_what_is_none():
    method, tuned = methods.dp_sgd(1.0), grid_composition(2)
    for arguments in (
        ("grid", method, *SMALL),
        (tuned, method, 0.01, 50),
        (tuned, 1.0, *SMALL),
        (tuned, method, *SMALL, 3.0),
    ):
        with pytest.raises(TypeError, match="expected a"):
            Search(*arguments)
    with pytest.raises(TypeError, match=r"expected a dpjax\.Mechanism"):
        Search(tuned, auto_dp_sgd(1.0, steps_per_epoch=10, epochs=10), *SMALL)
    with pytest.raises(ValueError, match="steps = 0"):
        Search(tuned, method, Poisson.with_rate(0.01), 0)


@pytest.mark.parametrize("way", ["plan", "Search"])
def test_a_search_refuses_a_sampler_that_the_method_does_not_run_with(way):
    method, tuned = methods.psasc_momentum_full_batch(1.0, dataset_size=64), grid_composition(2)
    calls = {
        "plan": lambda: tuned.plan(method, *SMALL, epsilon=2.0, delta=1e-5),
        "Search": lambda: Search(tuned, method, *SMALL),
    }
    with pytest.raises(ValueError, match="stored per example"):
        calls[way]()


# Running a search.


class Trainer:
    """Stands for training: writes down what it was given."""

    def __init__(self, score):
        self.score, self.calls = score, []

    def __call__(self, candidate, mechanism, key):
        self.calls.append((candidate, mechanism, tuple(jax.random.key_data(key).tolist())))
        return self.score(candidate), f"model of {candidate}"


@pytest.mark.parametrize("name", TUNINGS)
def test_each_run_gets_its_own_key_and_the_planned_mechanism(name):
    tuned = TUNINGS[name]
    search = Search(tuned, methods.dp_sgd(2.0), *SMALL)
    candidates = list(range(getattr(tuned, "candidates", 4)))
    train = Trainer(lambda candidate: -candidate)
    found = search.run(train, candidates, jax.random.key(5), 1e-5)
    assert isinstance(found, Found)
    assert all(mechanism == search.mechanism for _, mechanism, _ in train.calls)
    keys = [key for _, _, key in train.calls]
    root = tuple(jax.random.key_data(jax.random.key(5)).tolist())
    assert len({*keys, root}) == len(keys) + 1
    assert {call[0] for call in train.calls} <= set(candidates)
    assert found.output == f"model of {found.candidate}"
    assert found.epsilon == search.epsilon(1e-5)
    if name != "disjoint_split":  # which draws, and is tested above
        assert found.candidate == min(call[0] for call in train.calls)
    if name in ("grid_composition", "disjoint_split"):
        assert [call[0] for call in train.calls] == candidates


@pytest.mark.parametrize("name", TUNINGS)
def test_a_search_is_its_key(name):
    tuned = TUNINGS[name]
    search = Search(tuned, methods.dp_sgd(2.0), *SMALL)
    candidates = list(range(getattr(tuned, "candidates", 4)))

    def transcript(seed):
        train = Trainer(lambda candidate: -candidate)
        found = search.run(train, candidates, jax.random.key(seed), 1e-5)
        return train.calls, found

    assert transcript(7) == transcript(7)
    assert transcript(7)[0] != transcript(8)[0]


def test_the_best_score_wins_and_nan_loses():
    search = Search(grid_composition(5), methods.dp_sgd(2.0), *SMALL)
    scores = [math.nan, -math.inf, 0.25, math.nan, 0.125]
    found = search.run(Trainer(lambda i: scores[i]), range(5), jax.random.key(0), 1e-5)
    assert (found.candidate, found.score, found.output) == (2, 0.25, "model of 2")
    found = search.run(Trainer(lambda i: math.nan), range(5), jax.random.key(0), 1e-5)
    assert found.candidate in range(5)
    assert math.isnan(found.score)


@pytest.mark.parametrize("name", ["liu_talwar", "grid_composition", "disjoint_split"])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_another_number_of_candidates_is_refused(name, wrong):
    planned = TUNINGS[name].candidates
    search = Search(TUNINGS[name], methods.dp_sgd(2.0), *SMALL)
    train = Trainer(float)
    with pytest.raises(ValueError, match=f"candidates: expected {planned}, as planned"):
        search.run(train, range(planned + wrong), jax.random.key(0), 1e-5)
    assert not train.calls


def test_a_found_model_says_nothing_else():
    """Not the losing runs, not their number."""
    assert Found._fields == ("candidate", "score", "output", "epsilon")


# Plain data.


@pytest.mark.parametrize("scoring", [None, SCORING, LaplaceQuery("errors", 3.0)])
@pytest.mark.parametrize("name", TUNINGS)
def test_round_trips(name, scoring):
    tuned = TUNINGS[name]
    assert type(tuned).from_plain(json.loads(json.dumps(tuned.to_plain()))) == tuned
    search = Search(tuned, methods.dc_sgd_e(2.0), *SMALL, scoring)
    back = Search.from_plain(json.loads(json.dumps(search.to_plain())))
    assert back == search
    assert hash(back) == hash(search)
    assert back.epsilon(1e-5) == search.epsilon(1e-5)


def test_every_tuning_is_tested_here():
    public = {name for name in tuning.__all__ if inspect.isclass(getattr(tuning, name))}
    kinds = {name for name in public if issubclass(getattr(tuning, name), Tuning)} - {"Tuning"}
    assert {type(t).__name__ for t in TUNINGS.values()} == kinds


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: liu_talwar(0),
        lambda: liu_talwar(2, gamma=0.0),
        lambda: liu_talwar(2, gamma=1.5),
        lambda: liu_talwar(2, delta_2=math.nan),
        lambda: grid_composition(0),
        lambda: repeat_and_select(0.5),
        lambda: repeat_and_select(math.nan),
        lambda: repeat_and_select(math.inf),
        lambda: repeat_and_select(2.0, -1.0),
        lambda: repeat_and_select(2.0, math.nan),
        lambda: disjoint_split(0, 1.0),
        lambda: disjoint_split(2, 0.0),
        lambda: disjoint_split(2, math.nan),
    ],
)
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        wrong()


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
@pytest.mark.parametrize("name", TUNINGS)
def test_a_delta_out_of_range_is_refused(name, delta):
    with pytest.raises(ValueError, match=r"delta = .*: expected"):
        Search(TUNINGS[name], methods.dp_sgd(2.0), *SMALL).epsilon(delta)
    with pytest.raises(ValueError, match=r"delta = .*: expected"):
        TUNINGS[name].plan(methods.dp_sgd(2.0), *SMALL, epsilon=1.0, delta=delta)


def test_tuning_costs_more_than_one_run():
    one = epsilon(methods.dp_sgd(2.0), *SMALL, 1e-5, "rdp")
    for name in RDP_TUNINGS:
        assert Search(TUNINGS[name], methods.dp_sgd(2.0), *SMALL).epsilon(1e-5) > one
