"""What README, docs and tutorials show is what runs."""

import ast
import json
import re
import runpy
import tomllib
from importlib import import_module
from importlib.util import find_spec

import pytest

from tests import doc_blocks
from tests.doc_blocks import NOTEBOOKS, PAGES, ROOT

# Pasted by every run of the tests; all others by the slow one.
QUICK = ("README.md", "docs/concepts/joint-release.md")


def pages():
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        marks = () if name in QUICK else pytest.mark.slow
        if doc_blocks.blocks(page):
            yield pytest.param(page, id=name, marks=marks)


@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated")  # jax-privacy 2.0 calls it
@pytest.mark.parametrize("page", list(pages()))
def test_each_block_runs_alone(page, capsys):
    for block in doc_blocks.blocks(page):
        if block.runs_here:
            doc_blocks.run(block)
            found = re.findall(r"([\d.]+)% of held-out", capsys.readouterr().out)
            assert all(float(accuracy) > 80 for accuracy in found)
            assert len(found) == ("of held-out" in block.text)


def test_only_other_libraries_and_weights_keep_a_block_from_running():
    needed = {block.needs for page in PAGES for block in doc_blocks.blocks(page)} - {""}
    assert needed == {"bert-base-uncased", "jax_privacy", "opacus", "sklearn", "tensorflow_privacy"}
    assert not any(block.needs for block in doc_blocks.blocks(ROOT / "README.md"))


def without_digits(text):
    return re.sub(r"[\d.]+", "0", text)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_tutorials_run_and_print_what_they_show(notebook, capsys):
    namespace = {"__name__": "__main__"}
    for number, (code, shown) in enumerate(doc_blocks.cells(notebook)):
        exec(compile(code, f"{notebook.name} cell {number}", "exec"), namespace)
        assert without_digits(capsys.readouterr().out) == without_digits(shown)


def test_tutorials_compile_and_show_their_output():
    assert {file.stem for file in NOTEBOOKS} >= {"audit", "budget", "nnx", "optax", "own-rule"}
    for notebook in NOTEBOOKS:
        printed = 0
        for code, shown in doc_blocks.cells(notebook):
            compile(code, notebook.name, "exec")
            printed += bool(shown)
            assert bool(shown) == ("print(" in code), code
        assert printed


def test_what_docs_import_from_dpjax_is_there():
    """In time of a default run: the blocks and tutorials themselves are slow."""
    texts = [block.text for page in PAGES for block in doc_blocks.blocks(page)]
    texts += ["".join(code + "\n" for code, _ in doc_blocks.cells(file)) for file in NOTEBOOKS]
    imports = [node for text in texts for node in ast.walk(ast.parse(text))]
    imports = [node for node in imports if isinstance(node, ast.ImportFrom)]
    own = {(node.module, name.name) for node in imports for name in node.names}
    own = {(module, name) for module, name in own if module.partition(".")[0] == "dpjax"}
    assert len(own) > 10
    for module, name in own:
        assert hasattr(import_module(module), name) or find_spec(f"{module}.{name}")


@pytest.mark.slow
def test_example_trains_three_methods(capsys):
    runpy.run_path(str(ROOT / "docs" / "examples" / "three_methods.py"))
    accuracies = [float(a) for a in re.findall(r"([\d.]+)%", capsys.readouterr().out)]
    assert len(accuracies) == 3
    assert min(accuracies) > 60


def test_commands_are_found():
    """The reader of commands misses none that a reader of the page would try."""
    for page in PAGES:
        written = sum(
            len(re.findall(r"^(?:dpjax|pip|python|scripts/|export)\b", block.text, re.MULTILINE))
            for block in doc_blocks.blocks(page, "sh")
        )
        found = [
            c for c in doc_blocks.commands(page) if re.match(r"dpjax|pip|python|scripts|ex", c)
        ]
        assert len(found) == written, page


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_site():
    listed = re.findall(r": ([\w./-]+\.(?:md|ipynb))$", (ROOT / "mkdocs.yml").read_text(), re.M)
    there = {str(file.relative_to(ROOT / "docs")) for file in [*PAGES[1:], *NOTEBOOKS]}
    assert set(listed) == {name for name in there if not name.startswith("results/notes-")}


def test_no_notebook_has_an_output_that_is_not_text():
    for notebook in NOTEBOOKS:
        outputs = [
            output["output_type"]
            for cell in json.loads(notebook.read_text())["cells"]
            for output in cell.get("outputs", ())
        ]
        assert set(outputs) <= {"stream"}


def test_the_classifiers_name_what_the_workflow_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    tested = set(re.findall(r'"(3\.\d+)"', workflow))
    named = {line.split()[-1] for line in project["classifiers"] if ":: 3." in line}
    assert named == tested
    assert min(tested, key=lambda version: int(version[2:])) in project["requires-python"]
