"""The list of mutants can be run; `python scripts/mutants.py` shows that each is killed."""

import ast
import importlib.util
import json
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "mutants.py"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


mutants = loaded()
LIST = mutants.read()


@cache
def functions(file: Path) -> set[str]:
    """Returns the tests of a file, as in node ids, without their parameters."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {node.name} | {
                f"{node.name}::{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef)
            }
    return found


def test_there_are_enough_and_each_has_a_name_and_a_reason():
    assert len(LIST) >= 30
    assert len({mutant.name for mutant in LIST}) == len(LIST)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in LIST}) == len(LIST)
    assert all(mutant.why.endswith(".") and len(mutant.why) > 10 for mutant in LIST)


@pytest.mark.parametrize("mutant", LIST, ids=lambda mutant: mutant.name)
def test_the_change_can_be_made_and_its_tests_exist(mutant):
    compile(
        mutant.source(), mutant.file, "exec"
    )  # refuses what is not there once, or changes nothing
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert not name or name.split("[")[0] in functions(ROOT / file), test


def change(**changes):
    """Returns a mutant of the list's first file, with some fields changed."""
    fields = {"name": "x", "file": "dpjax/rules/psasc.py", "old": "c / self.s", "new": "c"}
    return mutants.Mutant(**{**fields, "why": "No.", "tests": ("tests/none.py",), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old": "c / self.t"}, "old is 0 times"),
        ({"old": "self"}, "old is [0-9]+ times"),
        ({"new": "c / (self.s)"}, "expected another program"),
        ({"file": "tests/registry.py"}, "expected one under dpjax/"),
        ({"file": "dpjax/../tests/registry.py"}, "expected one under dpjax/"),
    ],
)
def test_a_change_that_means_nothing_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        change(**changes).source()


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="no mutant is called nobody"):
        mutants.chosen(LIST, ["nobody"])


def test_the_page_has_every_mutant():
    rows = mutants.PAGE.read_text().splitlines()
    assert [row.split(" | ")[0][2:] for row in rows if "| killed |" in row] == [
        mutant.name for mutant in LIST
    ]


# Changes that a run must find dead, and one that changes nothing that can be seen.
BOUND = "tests/test_rules_oracle.py::test_bound_is_the_oracles_and_is_the_least_upper_one"
TESTS = [f"{BOUND}[psasc-1.0]"]
PSASC = {"file": "dpjax/rules/psasc.py", "tests": TESTS, "why": "Because."}
TRIED = [
    {"name": "bound", "old": "return c / self.s", "new": "return c", **PSASC},
    {"name": "no-change", "old": "return c / self.s", "new": "return 1.0 * c / self.s", **PSASC},
    {"name": "weight", "old": "self.s * norm +", "new": "0.5 * self.s * norm +", **PSASC},
    {"name": "does-not-load", "old": "c / self.s\n", "new": "c / self.s\n\n\n1 / 0\n", **PSASC},
]


@pytest.mark.slow
def test_what_is_killed_and_what_survives(tmp_path):
    entries = [
        "[[mutant]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in e.items()) for e in TRIED
    ]
    (tmp_path / "some.toml").write_text("\n".join(entries))
    done = subprocess.run(
        [sys.executable, SCRIPT, "--mutants", tmp_path / "some.toml"],
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = {
        words[3]: words[0] for line in done.stdout.splitlines() if len(words := line.split()) > 3
    }
    assert done.returncode == 1
    assert verdicts["bound"] == verdicts["weight"] == "killed"
    assert verdicts["no-change"] == "SURVIVED"
    assert verdicts["does-not-load"] == "ERROR"
    assert "2 of 4 killed" in done.stdout


@pytest.mark.slow
def test_another_dpjax_than_the_copys_is_refused(tmp_path):
    mutants.copy_tree(ROOT, tmp_path)
    assert mutants.run_tests(tmp_path, TESTS)[0] == 0
    (tmp_path / "dpjax").rename(tmp_path / "elsewhere")  # the installed one is found in its place
    code, output = mutants.run_tests(tmp_path, TESTS)
    assert (code, "imported" in output) == (70, True)


def test_no_mutant_relies_on_a_test_that_the_default_run_leaves_out():
    table = tomllib.loads((Path(__file__).parent / "repeated.toml").read_text())
    kept = {
        f"tests/{file}.py::{name}": ids
        for file, names in table.items()
        for name, ids in names.items()
    }
    for function in kept:
        file, _, name = function.partition("::")
        assert f"def {name.split('::')[-1]}(" in (mutants.ROOT / file).read_text(), function
    for mutant in LIST:
        for test in mutant.tests:
            function, _, parameters = test.partition("[")
            assert function not in kept or (
                parameters.removesuffix("]") in kept[function] if parameters else kept[function]
            ), test
