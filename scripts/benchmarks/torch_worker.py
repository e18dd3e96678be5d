"""The process that runs PyTorch: reads one request per line, answers each with one line of JSON.

``{"prepare": name, "batch": B, "bert_blocks": n, "variants": [...]}`` builds the workload, and
``{"run": variant, "steps": n}`` takes its turn. The two runtimes are kept apart: neither's threads
wait for work in the other's process, and neither's allocator serves the other.
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
        """Prepares nothing."""
        self._steps: dict[str, Step] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Does what is asked."""
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
            # A mode that does not know a layer says so with whatever it stumbles on.
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
    """Answers until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else prints
    warnings.simplefilter("ignore")  # Opacus' hooks warn at every step
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    worker = Worker()
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
