"""Every sampler with every accountant under every relation: a number, or what works instead."""

import math
import re
from pathlib import Path

import pytest
from dp_accounting import NeighboringRelation

from dpjax import methods
from dpjax.accounting import delta, epsilon, event
from dpjax.accounting.relation import ACCOUNTANTS, SUPPORTED
from dpjax.sampling import FixedSize, FullBatch, Poisson, TruncatedPoisson

DOCS = Path(__file__).parents[2] / "docs" / "accounting.md"
HEADER = "| sampler | relation | pld | rdp | tcdp | gdp |"
STEPS, DELTA = 20, 1e-5

SAMPLERS = {
    "Poisson": Poisson.with_rate(0.01),
    "TruncatedPoisson": TruncatedPoisson(5, 500, 40),
    "FixedSize": FixedSize(5, 500),
    "FullBatch": FullBatch(),
}
RELATIONS = {
    "add_or_remove_one": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": NeighboringRelation.REPLACE_ONE,
}
METHOD = methods.dp_sgd(6.0)  # enough noise for tCDP's lemma


def supported(sampler, accountant, relation):
    return accountant in SUPPORTED[type(SAMPLERS[sampler])][RELATIONS[relation]]


CELLS = [(s, a, r) for s in SAMPLERS for r in RELATIONS for a in ACCOUNTANTS]
WORKING = [cell for cell in CELLS if supported(*cell)]
REFUSED = [cell for cell in CELLS if not supported(*cell)]


def test_the_table_has_every_sampler_and_both_sorts_of_cell():
    assert set(SUPPORTED) == {type(sampling) for sampling in SAMPLERS.values()}
    assert set(ACCOUNTANTS) == {"pld", "rdp", "tcdp", "gdp"}
    assert all(set(row) == set(RELATIONS.values()) for row in SUPPORTED.values())
    assert len(CELLS) == 32
    assert 0 < len(WORKING) < 32


def check_number(sampler, accountant, relation):
    sampling = SAMPLERS[sampler]
    spent = epsilon(METHOD, sampling, STEPS, DELTA, accountant, relation=relation)
    assert 0 < spent < math.inf
    assert (spent.accountant, spent.relation) == (accountant, relation)
    happened = event(METHOD, sampling, STEPS, relation=relation, accountant=accountant)
    assert happened.neighboring_relation is RELATIONS[relation]
    back = delta(METHOD, sampling, STEPS, float(spent), accountant, relation=relation)
    assert 0 < back <= 1.01 * DELTA
    assert back.relation == relation


@pytest.mark.parametrize(("sampler", "accountant", "relation"), WORKING)
def test_a_cell_with_a_number(sampler, accountant, relation):
    check_number(sampler, accountant, relation)


@pytest.mark.parametrize(("sampler", "accountant", "relation"), REFUSED)
def test_a_cell_without_one_names_what_works(sampler, accountant, relation):
    calls = (
        lambda: epsilon(METHOD, SAMPLERS[sampler], STEPS, DELTA, accountant, relation=relation),
        lambda: delta(METHOD, SAMPLERS[sampler], STEPS, 1.0, accountant, relation=relation),
        lambda: event(METHOD, SAMPLERS[sampler], STEPS, relation=relation, accountant=accountant),
    )
    for call in calls:
        with pytest.raises(
            ValueError, match=f"accountant = '{accountant}' with {sampler}"
        ) as error:
            call()
        instead = re.findall(r"'(\w+)' under (\w+)", str(error.value))
        assert instead
        assert all(supported(sampler, *pair) for pair in instead)
        check_number(sampler, *instead[0])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_more_noise_or_fewer_steps_cost_less(sampler):
    """The numbers of a row follow what they are given: none is a constant."""
    for accountant, relation in [(a, r) for s, a, r in WORKING if s == sampler]:
        ask = {"accountant": accountant, "relation": relation}
        sampling = SAMPLERS[sampler]
        spent = epsilon(METHOD, sampling, STEPS, DELTA, **ask)
        assert epsilon(METHOD, sampling, STEPS // 4, DELTA, **ask) < spent
        assert epsilon(methods.dp_sgd(7.0), sampling, STEPS, DELTA, **ask) < spent


def cells_of(text):
    """Returns the documented table as {(sampler, accountant, relation): yes or no}."""
    lines = text.splitlines()
    assert HEADER in lines, f"no table with the header {HEADER}"
    accountants = [name.strip() for name in HEADER.strip("|").split("|")][2:]
    cells = {}
    for line in lines[lines.index(HEADER) + 2 :]:
        if not line.startswith("|"):
            break
        sampler, relation, *answers = (
            cell.strip().strip("`") for cell in line.strip().strip("|").split("|")
        )
        for accountant, answer in zip(accountants, answers, strict=True):
            word = re.match(r"(yes|no)\b", answer)
            assert word, f"{line}: expected yes or no first in {answer!r}"
            assert (sampler, accountant, relation) not in cells, f"{line}: twice"
            cells[sampler, accountant, relation] = word[1]
    return cells


def test_the_documented_table_is_the_one_in_force():
    want = {cell: "yes" if supported(*cell) else "no" for cell in CELLS}
    assert cells_of(DOCS.read_text(encoding="utf-8")) == want


def test_the_comparison_sees_a_wrong_cell_and_a_missing_table():
    rule = "|---|---|---|---|---|---|"
    rows = ["| Poisson | `replace_one` | yes | no, halved sigma is no bound | no | no |", "", "end"]
    cells = cells_of("\n".join(["text", HEADER, rule, *rows]))
    assert cells["Poisson", "rdp", "replace_one"] == "no"
    assert cells["Poisson", "pld", "replace_one"] == "yes"
    assert len(cells) == 4
    for broken in (["text"], [HEADER, rule, "| Poisson | replace_one | maybe | no | no | no |"]):
        with pytest.raises(AssertionError, match=r"table|expected yes or no"):
            cells_of("\n".join(broken))
