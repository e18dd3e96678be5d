"""Measures what a run of very many steps costs in addition to the steps themselves.

    python scripts/measure_long_run.py

Uses a linear model on synthetic data, so that the steps cost next to nothing. Reports the CPU time
spent on epsilon, the memory in use over the run, and the size of the files at its end.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from dpjax.data import Dataset, Split
from dpjax.train import Experiment, Run, train


def made_up(rows: int = 1_000, width: int = 8) -> Dataset:
    """Returns data with two classes that a linear model can separate."""
    rng = np.random.default_rng(0)

    def split(n: int) -> Split:
        x = rng.normal(size=(n, width)).astype(np.float32)
        return Split(x, (x[:, 0] > 0).astype(np.int32))

    return Dataset("made_up", split(rows), split(200), 2)


def memory() -> float:
    """Returns the MiB of memory that this process uses (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description="Measures a run of very many steps.")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--evaluations", type=int, default=10_000)
    asked = parser.parse_args()
    experiment = Experiment.from_plain(
        {
            "data": {"name": "made_up"},
            "model": {"name": "linear"},
            "train": {"batch_size": 10, "steps": asked.steps, "chunk": 16},
            "privacy": {"epsilon": 4.0, "delta": 1e-5},
            "run": {"seed": 0, "evaluate_every": asked.steps // asked.evaluations},
        }
    )
    spent, computed, original = 0.0, 0, Run.epsilon
    used: list[float] = []

    def timed(run: Run, step: int) -> float | None:
        nonlocal spent, computed
        begun, computed = time.thread_time(), computed + 1
        found = original(run, step)
        spent += time.thread_time() - begun
        return found

    Run.epsilon = timed  # type: ignore[method-assign]
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        train(experiment, made_up(), folder, callback=lambda rows: used.append(memory()))
        whole = time.process_time() - begun
        files = [path for path in folder.rglob("*") if path.is_file()]
        sizes: dict[str, Any] = {path.name: path.stat().st_size for path in files}
        checkpoints = sum(p.stat().st_size for p in files if "checkpoints" in p.parts)
    print(f"{asked.steps} steps, {len(used)} evaluations: {whole:.0f} s of CPU time")
    print(f"epsilon: {computed} computed, {spent:.2f} s, {spent / whole:.2%} of the run")
    for share in (0.01, 0.1, 0.5, 1.0):
        print(f"memory at {share:.0%} of the run: {used[int(share * (len(used) - 1))]:.0f} MiB")
    for name in ("released.jsonl", "steps.csv", "ledger.json"):
        print(f"{name}: {sizes[name] / 1e6:.2f} MB")
    print(f"checkpoints: {checkpoints / 1e6:.2f} MB in all")


if __name__ == "__main__":
    main()
