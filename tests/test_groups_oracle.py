"""Groups of parameters against the float64 oracle: scalar thresholds, and one for each group."""

from typing import Any

import jax
import numpy as np
import pytest

from dpjax import Mechanism, privatize, rules, schedules
from tests.oracles import methods as oracle
from tests.oracles import schedules as curves
from tests.stepping import LEAVES, D, batch, close, stepper, tree_of

SIGMA, B = 0.9, 60.0
KEY = jax.random.key(0)
BODY, HEAD, EDGES = np.arange(15), LEAVES[2], np.concatenate([LEAVES[0], LEAVES[2]])
GROUPINGS = {
    "per_leaf": ("per_leaf", LEAVES),
    "prefix": ({"body": "a", "head": "b"}, (BODY, HEAD)),
    "across": ({"body": {"bias": 0, "kernel": 1}, "head": 0}, (EDGES, LEAVES[1])),
    "one": ({"body": "all", "head": "all"}, (np.arange(D),)),
}
GROUP_RULES = {
    "abadi": (rules.abadi(), {}),
    "auto_v": (rules.auto_v(), {}),
    "psasc": (rules.psasc(r=0.1, s=0.6), {"r": 0.1, "s": 0.6}),
    "global_adapt": (rules.global_adapt(scale=0.7), {"scale": 0.7}),
}


CASES = [
    *((grouping, "abadi", own) for grouping in ("per_leaf", "across") for own in (False, True)),
    *(("prefix", "abadi", True), ("one", "abadi", False)),
    *(("across", rule, rule != "auto_v") for rule in GROUP_RULES if rule != "abadi"),
]


@pytest.mark.parametrize(("grouping", "rule", "own"), CASES)
def test_groups(grouping: str, rule: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, parts = GROUPINGS[grouping]
    record, params = GROUP_RULES[rule]
    c: Any = 1.3
    if own:
        c = (schedules.yu_linear(0.8, 4), 1.7, 0.4)[: len(parts)]
    run = stepper(monkeypatch, privatize(Mechanism(record, c, SIGMA, groups), B, KEY))
    for t in range(2):
        g, mask = batch(t)
        got = run.step(tree_of(g), mask)
        truth = (curves.yu_linear(t, 0.8, 4), 1.7, 0.4)[: len(parts)] if own else c
        want = oracle.fixed_rule_step(
            g, mask, rule, truth, SIGMA, B, run.z_grad, groups=parts, **params
        )
        close(got, want)
        close(run.state.released.threshold, truth)
