"""What README and docs show is what runs."""

import re
import runpy
from pathlib import Path

import pytest

import dpjax

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "docs" / "examples" / "three_methods.py"


def code_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


def test_readme_shows_the_example_that_runs():
    assert code_blocks(ROOT / "README.md")[0] == EXAMPLE.read_text()


def test_example_trains_three_methods(capsys):
    runpy.run_path(str(EXAMPLE))
    accuracies = [float(a) for a in re.findall(r"([\d.]+)%", capsys.readouterr().out)]
    assert len(accuracies) == 3
    assert min(accuracies) > 60


def test_readme_budget_runs():
    blocks = [block for block in code_blocks(ROOT / "README.md") if "calibrate" in block]
    exec(compile(blocks[-1], "README.md", "exec"), {"dpjax": dpjax})


@pytest.mark.parametrize(
    "page",
    ["accounting.md", "write-your-own-rule.md", "momentum-and-parts.md", "data.md", "training.md"],
)
def test_pages_run(page):
    namespace: dict = {}
    for block in code_blocks(ROOT / "docs" / page):
        exec(compile(block, page, "exec"), namespace)


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
