"""Every method's step: its claim holds, and half the noise is found."""

import jax
import numpy as np
import pytest

import dpjax.papers.auto_dp_sgd  # noqa: F401  (which registers it)
from dpjax import methods
from dpjax.audit import AuditPlan, StepAudit, audit_named, audit_step, claim_of, subjects, watched
from dpjax.audit.pairs import PAIRS, lineup_like, random_pairs
from dpjax.audit.subjects import BATCH_SIZE, releases_of
from dpjax.methods.table import constructors
from dpjax.papers.auto_dp_epsilon import auto_dp_sgd_claim

HUGE = next(pair for pair in PAIRS if pair.name == "alone, huge")
FEW = ("dp_sgd", "dc_sgd_e", "adaclip")


def test_every_method_is_a_subject():
    assert set(subjects()) == set(constructors())


def audited(name, draws):
    plan = AuditPlan(("step",), StepAudit(draws, confidence=0.999))
    (row,) = audit_named(name, subjects()[name], 0, plan, printed=auto_dp_sgd_claim)
    return row


def check(row):
    assert row.verdict == "holds", row
    assert row.twin.refuted
    assert 0 < row.finding.bound <= row.finding.claimed < row.twin.bound


@pytest.mark.parametrize("name", FEW)
def test_the_claim_holds_and_half_the_noise_is_found(name):
    check(audited(name, 60_000))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(subjects()) - {"auto_dp_sgd"}))
def test_all_claims_hold_and_half_the_noise_is_found(name):
    check(audited(name, 200_000))


def test_plain_dp_sgd_is_audited_tightly():
    found = audit_step(methods.dp_sgd(1.0), jax.random.key(1))
    assert 0.7 * found.claimed < found.bound <= found.claimed


def test_auto_dp_sgd_as_printed_is_refuted():
    row = audited("auto_dp_sgd", 60_000)
    assert row.finding.source == "printed"
    assert row.finding.bound > 2 * row.finding.claimed
    assert row.verdict == "REFUTED"
    assert not row.alarming  # nobody here claims what was refuted


def test_half_the_noise_under_the_full_claim_is_alarming():
    plan = AuditPlan(("step",), StepAudit(40_000), noise=0.5, twins=())
    (row,) = audit_named("psac", subjects()["psac"], 0, plan)
    assert row.alarming


def test_an_audit_that_could_not_tell_says_so():
    """With noise of ten bounds, a thousand draws do not tell half of it."""
    plan = AuditPlan(("step",), StepAudit(1_000, pilot=1_000), noise_multiplier=10.0)
    (row,) = audit_named("dp_sgd", subjects()["dp_sgd"], 0, plan)
    assert row.verdict == "no teeth"
    assert row.alarming


@pytest.mark.parametrize("name", ["dc_sgd_p", "global_adapt"])
def test_watching_changes_nothing_that_is_released(name):
    method = subjects()[name].method(name, 1.0)
    key, pair = jax.random.key(5), PAIRS[0].repeated(2)
    plain = releases_of(method)(pair, True, key, 50)
    seen = releases_of(watched(method))(pair, True, key, 50)
    statistics = (seen.shape[1] - plain.shape[1]) // 2
    width = plain.shape[1] // 2
    both = np.hstack([seen[:, :width], seen[:, width + statistics : 2 * width + statistics]])
    np.testing.assert_array_equal(both, plain)
    assert statistics == {"dc_sgd_p": 20, "global_adapt": 1}[name]


def test_some_canaries_have_opposite_signs_in_their_leaves():
    """Noise that leaves share, with any correlation above 0, is weaker along these."""
    shared = np.kron([[1.0, 0.6], [0.6, 1.0]], np.eye(4))
    unit = [p.canary[0] / np.linalg.norm(p.canary[0]) for p in PAIRS if "opposed" in p.name]
    assert len(unit) >= 2
    for u in unit:
        assert u @ shared @ u == pytest.approx(0.4, rel=1e-4)


def test_lineup_is_told_apart_and_random_norms_differ():
    lineup = lineup_like(HUGE.repeated(2))
    assert len(lineup) == 16
    assert all(pair.steps == 2 for pair in lineup)
    vectors = np.stack([pair.canary[0] for pair in lineup]) / 1e4
    np.testing.assert_allclose(
        vectors @ vectors.T, np.kron(np.eye(8), [[1, -1], [-1, 1]]), atol=1e-3
    )
    norms = {np.linalg.norm(p.canary[0]) for p in random_pairs(np.random.default_rng(0), 1)}
    assert len(norms) == 4


def test_releases_are_what_the_formula_says():
    """A canary alone, at its bound: mean C / B along it, deviation sigma C / B everywhere."""
    drawn = releases_of(methods.dp_sgd(2.0))(HUGE, True, jax.random.key(0), 20_000)
    error = 2.0 / BATCH_SIZE / np.sqrt(len(drawn))
    np.testing.assert_allclose(drawn.mean(0), 8**-0.5 / BATCH_SIZE, atol=5 * error)
    np.testing.assert_allclose(drawn.std(0), 2.0 / BATCH_SIZE, rtol=0.03)
    absent = releases_of(methods.dp_sgd(2.0))(HUGE, False, jax.random.key(0), 20_000)
    np.testing.assert_allclose(absent.mean(0), 0, atol=5 * error)


def test_a_sampled_canary_takes_part_as_often_as_said():
    method = methods.dp_sgd(1e-3)
    pair = HUGE.repeated(2)
    drawn = releases_of(method, rate=0.25)(pair, True, jax.random.key(0), 4_000)
    there = drawn[:, [0, 8]] > 4**-1 * 8**-0.5 / BATCH_SIZE
    assert there.mean() == pytest.approx(0.25, abs=0.03)
    assert (there[:, 0] & there[:, 1]).mean() == pytest.approx(1 / 16, abs=0.02)


def test_a_method_without_noise_has_no_claim():
    with pytest.raises(ValueError, match="no noise"):
        claim_of(methods.dp_sgd(0.0), 1.0, 1, 1e-3)


def test_a_method_without_a_guarantee_has_the_claim_that_is_given():
    method = subjects()["auto_dp_sgd"].method("auto_dp_sgd", 1.0)
    with pytest.raises(ValueError, match="auto_dp_sgd has no guarantee: expected a formula"):
        claim_of(method, 0.25, 4, 1e-3)
    claim = claim_of(method, 0.25, 4, 1e-3, printed=lambda *numbers: sum(numbers[1:]))
    assert claim == (0.25 + 4 + 1e-3, "printed")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StepAudit(draws=0), "draws = 0: expected"),
        (lambda: StepAudit(confidence=0.3), "confidence = 0.3: expected"),
        (lambda: StepAudit(delta=float("nan")), "delta = nan: expected"),
        (lambda: AuditPlan(attacks=("guess",)), "attacks = 'guess': "),
        (lambda: AuditPlan(noise=-1.0), "noise = -1.0: expected"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)
