"""`scripts/benchmarks/compiled.py` on programs whose cost can be worked out by hand."""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "scripts" / "benchmarks" / "compiled.py"


@pytest.fixture(scope="module")
def compiled():
    spec = importlib.util.spec_from_file_location("compiled", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["compiled"] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    yield module
    del sys.modules["compiled"]


CYCLES = """HloModule step

%body (x: f32[4]) -> f32[4] {
  ROOT %add.1 = f32[4]{0} add(%x, %x), backend_config={"estimated_cycles":"10"}
}

%usual (x: f32[4]) -> f32[4] {
  ROOT %copy.1 = f32[4]{0} copy(%x), backend_config={"estimated_cycles":"100"}
}

%careful (x: f32[4]) -> f32[4] {
  ROOT %copy.2 = f32[4]{0} copy(%x), backend_config={"estimated_cycles":"700"}
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %loop = f32[4]{0} while(%x), body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %choice = f32[4]{0} conditional(%p, %loop, %loop), branch_computations={%usual, %careful}
}
"""


def test_loops_count_by_their_turns_and_branches_by_either_side(compiled):
    cost = compiled.cost_of(CYCLES, None)
    assert cost.usual == 5 * 10 + 100
    assert cost.careful == 5 * 10 + 700


def test_the_roofline_takes_the_larger_of_bytes_and_products(compiled):
    text = """
ENTRY %main (a: f32[1000,2000], b: f32[2000,3000]) -> f32[1000,3000] {
  %a = f32[1000,2000]{1,0} parameter(0)
  %b = f32[2000,3000]{1,0} parameter(1)
  ROOT %dot.1 = f32[1000,3000]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    roofline = compiled.Roofline(1e12, 1e12, 1e12, 0.0, 0.0)
    assert compiled.cost_of(text, roofline).usual == pytest.approx(2 * 1000 * 2000 * 3000 / 1e12)
    slow = compiled.Roofline(1e6, 1e12, 1e12, 0.0, 0.0)
    moved = 4 * (1000 * 2000 + 2000 * 3000 + 1000 * 3000)
    assert compiled.cost_of(text, slow).usual == pytest.approx(moved / 1e6)
