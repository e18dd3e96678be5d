"""The code blocks, notebooks and commands of README and docs, and a program that runs blocks alone.

python tests/doc_blocks.py PAGE ...      # runs every block of the pages, each by itself
"""

import json
import re
import sys
import tempfile
import time
import traceback
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))

# A fence, and what a comment in front of it says that it needs.
_FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- needs: (?P<needs>[^\n]*) -->\n+ *)?```(?P<kind>\w+)[^\n]*\n"
    r"(?P<text>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A block of code; `needs` names a package or a file that it does not run without."""

    page: str
    number: int
    text: str
    needs: str

    @property
    def runs_here(self) -> bool:
        """Whether what it needs is installed."""
        return not self.needs or find_spec(self.needs.replace("-", "_")) is not None


def blocks(page: Path, kind: str = "python") -> list[Block]:
    """Returns the blocks of one kind on a page.

    A comment in front of a block, ``<!-- needs: opacus -->``, says what it does not run without.
    """
    found = []
    for match in _FENCE.finditer(page.read_text()):
        if match["kind"] == kind:
            indent = match["indent"]
            text = "".join(
                line.removeprefix(indent) for line in match["text"].splitlines(keepends=True)
            )
            name = str(page.relative_to(ROOT))
            found.append(Block(name, len(found), text, match["needs"] or ""))
    return found


def cells(notebook: Path) -> list[tuple[str, str]]:
    """Returns the code of a notebook's cells, each with the text it printed when it was stored."""
    plain = json.loads(notebook.read_text())
    return [
        ("".join(cell["source"]), "".join(map(_printed, cell["outputs"])))
        for cell in plain["cells"]
        if cell["cell_type"] == "code"
    ]


def _printed(output: dict) -> str:
    return "".join(output["text"]) if output["output_type"] == "stream" else ""


def commands(page: Path) -> list[str]:
    """Returns the commands of a page's shell blocks, one string each, without comments."""
    found = []
    for block in blocks(page, "sh"):
        text = re.sub(r"\\\n\s*", " ", block.text)
        for line in re.findall(r"^\S(?:[^\"\n]|\"[^\"]*\")*$", text, flags=re.MULTILINE):
            command = re.sub(r"\s+#.*", "", line).strip()
            if command and not command.startswith("#"):
                found.append(command)
    return found


def run(block: Block) -> None:
    """Runs a block as if it were pasted into a new interpreter, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        exec(compile(block.text, f"{block.page} block {block.number}", "exec"), {})


def main() -> int:
    """Runs the blocks of the pages that the command line names; returns the number of failures."""
    failures = 0
    for page in map(Path, sys.argv[1:]):
        for block in blocks(page.resolve()):
            if not block.runs_here:
                print(f"not run  {block.page} {block.number}: needs {block.needs}")
                continue
            start, where = time.process_time(), f"{block.page} {block.number}"
            try:
                run(block)
                print(f"{time.process_time() - start:6.1f} s {where}", flush=True)
            except Exception:
                failures += 1
                print(f"FAILED   {where}\n{traceback.format_exc()}", flush=True)
    print(f"{failures} failed")
    return failures


if __name__ == "__main__":
    sys.exit(min(main(), 1))
