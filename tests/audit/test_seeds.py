"""No false alarm: the sound methods over twenty seeds, each at the audit's own confidence."""

import jax
import pytest

from dpjax.audit import SUBJECTS, audit_step

SOUND = sorted(name for name, subject in SUBJECTS.items() if not subject.printed)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_no_sound_method_is_accused(name):
    subject = SUBJECTS[name]
    method = subject.method(name, 1.0)
    for seed in range(20):
        found = audit_step(method, jax.random.key(seed), rate=subject.rate, steps=subject.steps)
        assert not found.refuted, (seed, found.bound, found.claimed, found.delta, found.detail)
