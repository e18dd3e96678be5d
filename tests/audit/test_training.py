"""Audits of a whole training: canaries are planted fairly, and found when nothing hides them."""

import numpy as np
import pytest

import dpjax.papers.auto_dp_sgd  # noqa: F401  (which registers it)
from dpjax.audit import TrainingAudit, audit_training, plant, subjects
from dpjax.data import Dataset, Split
from dpjax.papers.auto_dp_epsilon import auto_dp_sgd_claim
from tests.marks import some


def small(examples=300, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 16, (examples, 4, 4, 1)).astype(np.uint8)
    split = Split(x, rng.integers(0, 10, examples).astype(np.int32))
    return Dataset("small", split, split, classes=10)


def test_canaries_are_in_by_fair_coins_and_have_features_of_their_own():
    planted = plant(small(), 2000, np.random.default_rng(1))
    assert abs(planted.included.mean() - 0.5) < 0.05
    train = planted.dataset.train
    assert len(train.y) == 300 + planted.included.sum()
    own = train.x[:, 16:].max(0) > 0
    np.testing.assert_array_equal(own, planted.included)
    assert (planted.x[:, :16] == 0).all()
    assert ((planted.x > 0).sum(1) == 1).all()


def test_the_scores_do_not_depend_on_which_side_a_canary_fell():
    """Without any difference in the training, included and excluded canaries score alike."""
    planted = plant(small(), 400, np.random.default_rng(2))
    assert not set(np.flatnonzero(planted.included)) & set(np.flatnonzero(~planted.included))
    assert np.bincount(planted.y, minlength=10).min() > 15


AUDIT = TrainingAudit(examples=300, epochs=4.0, confidence=0.95)


@pytest.mark.parametrize("name", some(["dp_sgd", "psasc_momentum_full_batch"], ["dp_sgd"]))
def test_a_sound_training_stays_below_its_claim(name):
    for found in audit_training(name, subjects()[name], small(), 0, AUDIT):
        assert found.claimed == pytest.approx(8.0, rel=2e-3)  # what the run itself says
        assert found.bound <= found.claimed


def test_a_training_with_hardly_any_noise_is_found_out():
    for found in audit_training("dp_sgd", subjects()["dp_sgd"], small(), 0, AUDIT, noise=0.01):
        assert found.bound > 4  # all canaries are told apart; m of them give no more
        assert found.included.min() > np.median(found.excluded)


def test_auto_dp_sgd_as_printed_is_refuted_by_one_run():
    subject = subjects()["auto_dp_sgd"]
    one_run, final = audit_training(
        "auto_dp_sgd", subject, small(1000), 0, TrainingAudit(), printed=auto_dp_sgd_claim
    )
    assert one_run.source == "printed"
    assert one_run.refuted
    assert final.refuted
