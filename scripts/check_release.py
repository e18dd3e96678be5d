"""Implements `scripts/check-release`: runs the commands of README and docs with only the wheel.

Training runs are cut to a few steps, and comparisons and audits to one method. Commands that need a
data set, a network connection, another library or a checkout are counted separately, by reason.
"""

import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests import doc_blocks  # noqa: E402

# Why some commands are not run here, by patterns that match them.
APART = {
    "needs a checkout": r"^(\.ci|scripts|python (-m pytest|scripts)|pre-commit|\. )|docs/results",
    "needs the network": r"data fetch",
    "needs data sets": r"data check",
    "needs several machines": r"--distributed",
    "needs eight devices": r"^dpjax train .*run\.mesh",
    "needs hours": r"papers (run|explain)|--all\b",
    "needs pre-trained weights": r"pretrained=|private-bert",
    "sets a variable": r"^export ",
    "is the installation": r"^pip install",
}
SHORT = "--set train.steps=3 --set privacy.accountant=rdp"


def shortened(command: str) -> str:
    """Returns a command as it is run here, with fewer steps."""
    if re.match(r"dpjax (train|compare)\b", command) and "--resume" not in command:
        command = re.sub(r" --set train\.epochs=\S+", "", command) + f" {SHORT}"
    if command.startswith("dpjax compare"):
        command += " --seeds 2"
    if command.startswith("dpjax audit"):
        command += " --quick"
    return command


def built(folder: Path) -> Path:
    """Builds sdist and wheel, checks them, and returns the wheel."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    files = sorted(folder.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    (wheel,) = folder.glob("*.whl")
    run("check-wheel-contents", wheel)
    return wheel


def run(*words: object) -> None:
    """Runs a program and shows its output; raises if it fails."""
    subprocess.run([str(word) for word in words], check=True)


def installed(wheel: Path, folder: Path, python: str) -> Path:
    """Returns the bin folder of a fresh environment with the wheel and its extras installed."""
    run(python, "-m", "venv", folder)
    extras = f"{wheel}[plots,audit,images,parquet,pretrained,watch]"
    others = ("dm-haiku", "equinox", "scikit-learn")  # imported by docs/frameworks.md and others
    quietly = ("--quiet", "--disable-pip-version-check")
    run(folder / "bin" / "python", "-m", "pip", "install", *quietly, extras, *others)
    return folder / "bin"


def main() -> int:
    """Prints the outcome of every command and page, and the counts; returns 0 if nothing failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=os.environ.get("PYTHON", sys.executable))
    parser.add_argument("--only", default="", help="pages whose names contain this")
    args = parser.parse_args()
    pages = [page for page in doc_blocks.PAGES if args.only in str(page)]
    with tempfile.TemporaryDirectory() as place:
        programs = installed(built(Path(place, "dist")), Path(place, "venv"), args.python)
        work = Path(place, "work")
        work.mkdir()
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        environment.pop("PYTHONPATH", None)
        counts: collections.Counter[str] = collections.Counter()
        for page in pages:
            for command in dict.fromkeys(doc_blocks.commands(page)):
                counts[outcome(command, work, environment)] += 1
        for page in pages:
            counts.update(pasted(page, programs, work, environment))
    print("\n".join(f"{count:4d} {what}" for what, count in sorted(counts.items())))
    return int(any("failed" in what for what in counts))


def outcome(command: str, work: Path, environment: dict[str, str]) -> str:
    """Runs a command of a page, and returns its outcome."""
    apart = next((why for why, seen in APART.items() if re.search(seen, command)), None)
    if apart is not None:
        print(f"not run: {apart}: {command}")
        return f"commands not run: {apart}"
    command, start = shortened(command), time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "dpjax data fetch" in done.stderr or (
        "holds no" in done.stderr and "DPJAX_DATA" in done.stderr
    ):
        print(f"not run: needs a data set: {command}")
        return "commands not run: need a data set"
    if "holds no finished runs" in done.stderr:
        print(f"not run: needs stored runs: {command}")
        return "commands not run: need stored runs"
    refuted = (
        command.startswith("dpjax audit") and "--noise" in command
    )  # exit code 1, as stated on the page
    fine = done.returncode == (1 if refuted else 0)
    print(f"{'ok' if fine else 'FAILED'} {time.monotonic() - start:5.1f} s: {command}", flush=True)
    if not fine:
        print(done.stdout[-500:] + done.stderr[-1500:])
    return "commands run" if fine else "commands failed"


def pasted(
    page: Path, programs: Path, work: Path, environment: dict[str, str]
) -> collections.Counter[str]:
    """Runs the code blocks of a page in the fresh environment, each alone."""
    if not doc_blocks.blocks(page):
        return collections.Counter()
    words = [programs / "python", ROOT / "tests" / "doc_blocks.py", page]
    done = subprocess.run(
        [str(word) for word in words],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout + done.stderr if done.returncode else done.stdout, end="", flush=True)
    kinds = {"not run ": "blocks not run", "FAILED  ": "blocks failed"}
    lines = re.findall(r"^(not run |FAILED  | *[\d.]+ s ).*\.md \d", done.stdout, re.MULTILINE)
    return collections.Counter(kinds.get(line, "blocks run") for line in lines)


if __name__ == "__main__":
    sys.exit(main())
