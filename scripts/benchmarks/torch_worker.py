"""The PyTorch process: reads one request per line, and answers each with one line of JSON.

``{"prepare": name, "batch": B, "bert_blocks": n, "variants": [...]}`` builds the workload, and
``{"run": variant, "steps": n}`` runs its turn. The two runtimes are in separate processes, so that
they share neither threads nor an allocator.
"""

import json
import os
import sys
import time
import warnings
from typing import Any

import torch

from benchmarks.torch_variants import Step, TorchWorkload
from benchmarks.workloads import workloads

__all__: list[str] = []


class Worker:
    """The prepared variants of one workload."""

    def __init__(self) -> None:
        """Starts without a workload."""
        self._steps: dict[str, Step] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Handles a request."""
        return self._run(**request) if "run" in request else self._prepare(**request)

    def _prepare(
        self, prepare: str, batch: int, bert_blocks: int, variants: list[str]
    ) -> dict[str, Any]:
        self._steps = {}
        workload = TorchWorkload(workloads(bert_blocks)[prepare].with_batch(batch))
        left_out = {}
        for variant in variants:
            try:
                step = workload.step(variant)
                step()
            # A mode that does not support a layer may raise anything.
            except Exception as error:
                left_out[variant] = f"{type(error).__name__}: {error}".splitlines()[0]
            else:
                self._steps[variant] = step
        return {"counts": workload.counts(), "left_out": left_out}

    def _run(self, run: str, steps: int) -> dict[str, Any]:
        step = self._steps[run]
        started = time.perf_counter()
        for _ in range(steps):
            step()
        return {"seconds": (time.perf_counter() - started) / steps}


def main() -> None:
    """Answers requests until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # keeps other output out of the answers
    warnings.simplefilter("ignore")  # Opacus's hooks warn at every step
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    worker = Worker()
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
