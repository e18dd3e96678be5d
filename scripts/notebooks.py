"""Runs the tutorials and stores their output: python scripts/notebooks.py [NAME ...]."""

import contextlib
import io
import json
import sys
from pathlib import Path

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"


def execute(file: Path) -> None:
    """Runs the code cells of a notebook in order, and stores their output in it."""
    notebook = json.loads(file.read_text())
    namespace: dict = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream):
            exec(compile("".join(cell["source"]), f"{file.name} cell {number}", "exec"), namespace)
        text = stream.getvalue().splitlines(keepends=True)
        cell["execution_count"] = number
        cell["outputs"] = (
            [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
        )
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for file in sorted(TUTORIALS.glob("*.ipynb")):
        if file.stem in sys.argv[1:] or not sys.argv[1:]:
            execute(file)
            print(file)
