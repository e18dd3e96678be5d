"""No false alarm: the sound methods over twenty seeds, each at the audit's own confidence."""

import pytest

from dpjax.audit import AuditPlan, audit_named, subjects

SOUND = sorted(name for name, subject in subjects().items() if not subject.printed)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_no_sound_method_is_accused(name):
    plan = AuditPlan(("step",), twins=())
    for seed in range(20):
        (row,) = audit_named(name, subjects()[name], seed, plan)
        found = row.finding
        assert not found.refuted, (seed, found.bound, found.claimed, found.delta, found.detail)
