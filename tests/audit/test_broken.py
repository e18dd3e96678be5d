"""The audit finds what is broken, and leaves alone what is not."""

import dp_accounting
import jax
import pytest

from dpjax.audit import PAIRS, TURNING, Claim, StepAudit, audit_release
from tests.audit import broken

AUDIT = StepAudit(draws=100_000, pilot=8_000)


def claims(steps):
    """The epsilon of a Gaussian of sigma 1, or of several, in closed form."""
    mu = steps**0.5 / broken.SIGMA
    return lambda delta: Claim(dp_accounting.get_epsilon_gaussian(1 / mu, delta), "accounted")


def audited(subject, pairs=PAIRS, steps=1):
    return audit_release("it", subject, claims(steps), jax.random.key(7), AUDIT, pairs)


@pytest.mark.parametrize("name", broken.BROKEN)
def test_what_is_broken_is_found(name):
    found = audited(broken.BROKEN[name])
    assert found.refuted, (found.bound, found.claimed, found.detail)


@pytest.mark.parametrize("name", broken.SOUND)
def test_what_is_sound_is_not_accused(name):
    found = audited(broken.SOUND[name])
    assert 0.4 * found.claimed < found.bound <= found.claimed


def test_the_same_key_each_step():
    """The difference of two releases is free of noise; with keys of their own it is not."""
    assert audited(broken.SAME_KEY, [TURNING], steps=2).bound > 1.5 * claims(2)(1e-3).epsilon
    assert not audited(broken.SOUND["sound"], [TURNING], steps=2).refuted
