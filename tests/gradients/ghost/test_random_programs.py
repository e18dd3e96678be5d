"""Losses that nobody thought of: the ghost engines against the gradient of each example."""

from itertools import count

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gradients.ghost.contract import check_one_pass
from tests.gradients.ghost.random_programs import NUMBERS, case_of
from tests.gradients.test_sharding import equations

QUIET = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@given(NUMBERS, st.integers(3, 7))
@settings(max_examples=8, **QUIET)
def test_random_programs(numbers, steps):
    check_one_pass(case_of(numbers, steps), "ghost")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ghost", "ghost_two_pass", "auto"])
def test_many_random_programs(engine):
    turns = count()

    @given(NUMBERS, st.integers(3, 12))
    @settings(max_examples=300, **QUIET)
    def check(numbers, steps):
        if next(turns) % 50 == 49:  # compiled programs fill the memory maps that Linux allows
            jax.clear_caches()
        check_one_pass(case_of(numbers, steps), engine)

    check()


def test_programs_are_of_many_kinds():
    """What the generator makes: every primitive that has a formula, with parameters near it."""
    rng, found = np.random.default_rng(0), {}
    for _ in range(60):
        case = case_of(rng.integers(0, 1000, 60).tolist(), 7)
        row = jax.tree.map(lambda x: x[0], case.batch)
        for eqn in equations(jax.make_jaxpr(case.loss)(case.params, row).jaxpr):
            found[eqn.primitive.name] = found.get(eqn.primitive.name, 0) + 1
    for name in ("dot_general", "conv_general_dilated", "add", "mul", "div", "gather", "scan"):
        assert found.get(name, 0) >= 3, (name, found)
