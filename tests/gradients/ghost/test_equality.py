"""The ghost engines give what `jax.vmap` of the gradient gives, for every case of the table.

One test for each case, since what takes time is to compile its program.
"""

import numpy as np
import pytest

from tests.gradients.ghost.cases import FAST, FEW, NAMES, get
from tests.gradients.ghost.contract import check_everything, check_one_pass, with_bad_rows
from tests.marks import some

MASK = (1, 1, 0, 1, 1)
# What has a program of its own: by default for one or two cases of each kind.
TWO_PASS = ("conv_network", "recurrent")
AUTO = ("wide_dense_over_few_positions",)
EVERYTHING = ("dense_over_positions",)
OTHERS = [
    pytest.param(engine, *param.values, marks=param.marks)
    for engine, fast in (("ghost_two_pass", TWO_PASS), ("auto", AUTO))
    for param in some(NAMES, fast)
]


def check_rows(case, engine, dtype):
    """Checks good rows, padded ones, and rows that are not finite, with one program."""
    expected = check_one_pass(case, engine, dtype)
    assert np.all(np.isfinite(expected.norms))
    check_one_pass(case, engine, dtype, mask=MASK)
    check_one_pass(case, engine, dtype, mask=(0,) * 5)
    bad = with_bad_rows(case, {1: np.nan, 3: np.inf})
    if bad is not None:
        check_one_pass(case, engine, dtype, bad)
        check_one_pass(case, engine, dtype, bad, mask=(1, 0, 1, 0, 1))
        check_one_pass(case, engine, dtype, with_bad_rows(case, dict.fromkeys(range(5), np.nan)))


@pytest.mark.parametrize("name", some(NAMES, FAST))
def test_equal_to_vmap(name):
    check_rows(get(name), "ghost", "float64")


@pytest.mark.parametrize("name", some(NAMES, FEW[:3]))
def test_equal_to_vmap_in_float32(name):
    check_rows(get(name), "ghost", "float32")


@pytest.mark.parametrize("name", some(NAMES, EVERYTHING))
def test_all_that_it_gives_at_once_and_in_chunks(name):
    check_everything(get(name), "ghost", "float64")
    check_everything(get(name), "ghost", "float32", chunk=2, mask=MASK)


@pytest.mark.parametrize(("engine", "name"), OTHERS)
def test_the_other_engines_too(engine, name):
    check_rows(get(name), engine, "float64")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ghost_two_pass", "auto"])
@pytest.mark.parametrize("name", FEW)
def test_all_that_the_other_engines_give(engine, name):
    check_everything(get(name), engine, "float32", chunk=2, mask=MASK)


@pytest.mark.parametrize("name", FEW)
def test_bad_rows_are_seen_as_bad(name):
    """What the checks above rest on: the rows that are spoilt have no finite gradient."""
    case = get(name)
    bad = with_bad_rows(case, {1: np.nan, 3: np.inf})
    if bad is not None:
        norms = check_one_pass(case, "ghost", "float64", bad).norms
        assert np.isinf(norms).tolist() == [False, True, False, True, False]
