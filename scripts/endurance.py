"""Runs the endurance suite and reports what it covered: load, faults and inputs.

    python scripts/endurance.py                 # the fast suite: a few minutes
    python scripts/endurance.py --long --fuzz 20 --write

``--long`` also runs the tests marked slow, ``--fuzz N`` tries N times as many inputs, and
``--write`` writes docs/results/endurance.md and its picture. Every number is counted by the tests
(``DPJAX_ENDURANCE_LOG``) or is a test's outcome. The exit code is 0 if all tests passed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "endurance.md"
PICTURE = ROOT / "docs" / "results" / "figures" / "endurance.png"

SUITE = "tests/endurance"

# By kind of fault: the tests that inject it, as files and parts of test names.
FAULTS = {
    "killed while it trains or writes": (
        ("tests/train/test_checkpoint_kill.py", "kill"),
        ("tests/train/test_kill.py", "kill"),
        ("tests/train/test_kill.py", "change_of_experiment"),
    ),
    "a full disk, a limit on file sizes": (
        ("tests/train/test_checkpoint_kill.py", "full_disk"),
        ("tests/train/test_checkpoint_kill.py", "limit_on_file_sizes"),
        ("tests/cli/test_train.py", "full_disk"),
    ),
    "folders that cannot be written, files in their place": (
        ("tests/train/test_checkpoint_kill.py", "folder"),
        ("tests/cli/test_train.py", "closed_folder"),
    ),
    "checkpoints with bytes flipped, cut, forged or another's": (
        ("tests/train/test_checkpoint.py", "covered"),
        ("tests/train/test_checkpoint.py", "refused"),
    ),
    "data files damaged, transfers broken off, archives that bite": (
        ("tests/data/test_fetch.py", ""),
        ("tests/data/test_archives.py", ""),
        ("tests/data/test_arrays.py", "damaged"),
        ("tests/data/test_arrays.py", "bomb"),
    ),
    "configs and run folders written by a hostile hand": (
        (f"{SUITE}/test_hostile_configs.py", "refused"),
        (f"{SUITE}/test_hostile_configs.py", "forged"),
    ),
}


class Case(NamedTuple):
    """A test that was run, and its outcome."""

    file: str
    name: str
    outcome: str


class Ran(NamedTuple):
    """The results of a run of pytest."""

    cases: list[Case]
    counts: Counter[tuple[str, str]]
    seconds: float


def pytest(paths: Sequence[str], long: bool) -> list[str]:
    """Returns the command that runs tests."""
    marks = "slow or not slow" if long else "not slow"
    return ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, *paths]


def injecting(long: bool) -> list[str]:
    """Returns the tests outside of the suite that inject faults."""
    files = sorted({file for tests in FAULTS.values() for file, _ in tests if SUITE not in file})
    argv = [sys.executable, *pytest(files, long)[1:], "--collect-only"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [test for test in listed.splitlines() if any(map(_is_one(test), FAULTS.values()))]


def _is_one(test: str) -> Callable[[Sequence[tuple[str, str]]], bool]:
    file, _, name = test.partition("::")
    return lambda tests: any(file == own and part in name for own, part in tests)


def run(paths: Sequence[str], long: bool, fuzz: int = 1) -> Ran:
    """Runs tests in a separate process."""
    argv = pytest(paths, long)
    with tempfile.TemporaryDirectory() as folder:
        log, xml = Path(folder) / "log.jsonl", Path(folder) / "junit.xml"
        begun = time.monotonic()
        subprocess.run(
            [sys.executable, *argv[1:], f"--junitxml={xml}"],
            cwd=ROOT,
            env={**os.environ, "DPJAX_ENDURANCE_LOG": str(log), "DPJAX_FUZZ": str(fuzz)},
            check=False,
        )
        seconds = time.monotonic() - begun
        counts: Counter[tuple[str, str]] = Counter()
        for line in log.read_text().splitlines() if log.exists() else ():
            entry = json.loads(line)
            counts[entry["kind"], entry["entry"]] += entry["number"]
        return Ran(list(_cases(xml)), counts, seconds)


def _cases(xml: Path) -> Iterable[Case]:
    for case in ET.parse(xml).iter("testcase"):
        bad = {child.tag for child in case} & {"failure", "error", "skipped"}
        parts = case.get("classname", "").split(".")
        while parts and not (ROOT / Path(*parts)).with_suffix(".py").exists():
            parts.pop()  # a class name
        yield Case(f"{'/'.join(parts)}.py", case.get("name", ""), bad.pop() if bad else "passed")


def _shell(argv: Sequence[str], fuzz: int) -> str:
    words = [f"'{word}'" if " " in word else word for word in argv]
    return " ".join([*([f"DPJAX_FUZZ={fuzz}"] if fuzz > 1 else []), *words])


def faults(cases: Sequence[Case]) -> list[list[str]]:
    """Returns a row for each kind of fault: cases, survived, skipped, failed."""
    rows = []
    for kind, tests in FAULTS.items():
        own = {
            case
            for case in cases
            if any(case.file == file and part in case.name for file, part in tests)
        }
        outcomes = Counter(case.outcome for case in own)
        failed = outcomes["failure"] + outcomes["error"]
        numbers = (len(own), outcomes["passed"], outcomes["skipped"], failed)
        rows.append([kind, *map(str, numbers)])
    return rows


def load(counts: Counter[tuple[str, str]]) -> list[list[str]]:
    """Returns a row for each threshold: streams, steps and examples."""
    rows: dict[str, list[int]] = {}
    for (kind, entry), number in sorted(counts.items()):
        if kind in ("step", "example"):
            name, _, stream = entry.partition(" through ")
            name = f"{name}, the whole transformation" if stream else entry.partition(" under ")[0]
            row = rows.setdefault(name, [0, 0, 0])
            row[0] += kind == "step"
            row[1 if kind == "step" else 2] += number
    return [[name, *(f"{number:,}" for number in row)] for name, row in sorted(rows.items())]


def inputs(counts: Counter[tuple[str, str]]) -> list[list[str]]:
    """Returns a row for each fuzzed entry point: the number of inputs tried."""
    tried = {entry: number for (kind, entry), number in counts.items() if kind == "input"}
    rows = [[entry, f"{number:,}"] for entry, number in sorted(tried.items())]
    return [*rows, ["all", f"{sum(tried.values()):,}"]]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    line = "|".join(["", *("---" if i == 0 else "--:" for i in range(len(header))), ""])
    return "\n".join(
        [f"| {' | '.join(header)} |", line, *(f"| {' | '.join(row)} |" for row in rows)]
    )


def page(suite: Ran, others: Ran, long: bool, fuzz: int) -> str:
    """Returns the whole page."""
    outcomes = Counter(case.outcome for case in (*suite.cases, *others.cases))
    flags = [*(["--long"] if long else []), *([f"--fuzz {fuzz}"] if fuzz > 1 else []), "--write"]
    command = " ".join(["python scripts/endurance.py", *flags])
    said = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
    return "\n\n".join(
        [
            "# Endurance",
            f"Written by `{command}`. Tests: {said}, in {suite.seconds + others.seconds:,.0f} s.",
            "## Load",
            "Each adaptive threshold under seven hostile streams of norms: all zero, all the "
            "largest float, subnormal, alternating, Cauchy's cubed, Pareto's with index 0.1, NaN "
            "and infinity. At every step C is finite and in its limits; afterwards it comes back "
            "to where the float64 oracle is, within 230 sane batches for the two thresholds that "
            "release a bit, and within 60 for the others. A threshold without limits is caught.",
            table(("threshold", "streams", "steps", "examples"), load(suite.counts)),
            "![C under hostile streams](figures/endurance.png)",
            "## Inputs tried",
            "By hypothesis, and by hand for hostile files. Each input is either used, and its "
            "numbers are checked, or refused in one sentence that names a field.",
            table(("entry", "inputs"), inputs(suite.counts)),
            f"    {_shell(pytest([SUITE], long), fuzz)}",
            "## Faults",
            "A fault is survived if nothing that was complete is lost, nothing wrong is used, and "
            "the user is told in one sentence. Many cases inject several.",
            table(
                ("fault", "cases", "survived", "skipped", "failed"),
                faults([*suite.cases, *others.cases]),
            ),
            "The tests are those that `scripts/endurance.py` names.\n",
        ]
    )


def draw(path: Path, steps: int = 600) -> None:
    """Draws C_t of every threshold under every stream, and its recovery."""
    sys.path.insert(0, str(ROOT))
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("agg")
    import numpy as np  # noqa: PLC0415
    from matplotlib import pyplot as plt  # noqa: PLC0415

    from tests import registry  # noqa: PLC0415
    from tests.endurance import streams  # noqa: PLC0415

    hostile = streams.hostile_streams(steps)
    figure, axes = plt.subplots(2, 4, figsize=(13, 6), sharex=True, sharey=True)
    panels = axes.ravel()
    for panel, (name, threshold) in zip(panels, registry.THRESHOLDS.items(), strict=False):
        paths = streams.run(threshold, np.stack(list(hostile.values())), 300)
        whole = np.concatenate([paths.hostile, paths.recovery])
        for stream, line in zip(hostile, whole.T, strict=True):
            panel.plot(line, label=stream, linewidth=1)
        panel.axvline(steps, color="black", linewidth=0.8, linestyle=":")
        panel.set(title=name, yscale="log", ylim=(1e-9, 1e9))
        panel.set_xlabel("step")
    for panel in panels[len(registry.THRESHOLDS) :]:
        panel.axis("off")
        panel.legend(*panels[0].get_legend_handles_labels(), title="norms", loc="center")
    for panel in axes[:, 0]:
        panel.set_ylabel("C")
    figure.suptitle(f"C under {steps} hostile batches, then sane ones from the dotted line on")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> int:
    """Runs all tests and prints or writes the page."""
    parser = argparse.ArgumentParser(description="Runs the endurance suite and counts.")
    parser.add_argument("--long", action="store_true", help="also what is marked slow")
    parser.add_argument("--fuzz", type=int, default=1, metavar="N", help="N times as many inputs")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    args = parser.parse_args()
    others = run(injecting(args.long), args.long)
    suite = run([SUITE], args.long, args.fuzz)
    text = page(suite, others, args.long, args.fuzz)
    print(text)
    if args.write:
        PAGE.write_text(text, encoding="utf-8")
        draw(PICTURE)
    passed = {case.outcome for case in (*suite.cases, *others.cases)} <= {"passed", "skipped"}
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
