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


# By default the rare ones are those made of the library's own release.
LIBRARY = [f"{name}, in the library" for name in broken.ALTERED]
HANDMADE = [*broken.RARE, *(f"{name}, on a grid" for name in broken.RARE)]


@pytest.mark.parametrize("name", [name for name in broken.BROKEN if name not in HANDMADE])
def test_what_is_broken_is_found(name):
    found = audited(broken.BROKEN[name])
    assert found.refuted, (found.bound, found.claimed, found.detail)
    assert found.confidence == AUDIT.confidence


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", [*HANDMADE, *LIBRARY])
def test_rare_breaks_are_found_whatever_the_seed(name, seed):
    key = jax.random.key(1000 + seed)
    found = audit_release("it", broken.BROKEN[name], claims(1), key, AUDIT)
    assert found.refuted, (found.bound, found.claimed, found.detail)


@pytest.mark.parametrize("name", broken.SOUND)
def test_what_is_sound_is_not_accused(name):
    found = audited(broken.SOUND[name])
    assert 0.4 * found.claimed < found.bound <= found.claimed


def test_the_same_key_each_step():
    """The difference of two releases is free of noise; with keys of their own it is not."""
    assert audited(broken.SAME_KEY, [TURNING], steps=2).bound > 1.5 * claims(2)(1e-3).epsilon
    assert not audited(broken.SOUND["sound"], [TURNING], steps=2).refuted
