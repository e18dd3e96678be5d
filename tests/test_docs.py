"""What README and docs show is what runs."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "docs" / "examples" / "three_methods.py"


def code_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("block", code_blocks(ROOT / "README.md"), ids=[0, 1, 2])
def test_each_block_of_the_readme_runs_alone(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    accuracies = re.findall(r"([\d.]+)% of held-out", capsys.readouterr().out)
    assert all(float(found) > 80 for found in accuracies)
    assert len(accuracies) == ("held-out" in block)


@pytest.mark.slow
def test_example_trains_three_methods(capsys):
    runpy.run_path(str(EXAMPLE))
    accuracies = [float(a) for a in re.findall(r"([\d.]+)%", capsys.readouterr().out)]
    assert len(accuracies) == 3
    assert min(accuracies) > 60


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
