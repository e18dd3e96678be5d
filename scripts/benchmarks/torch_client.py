"""The client of the PyTorch process."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.workloads import Workload

__all__ = ["TORCH_VARIANTS", "TorchClient", "TorchRunner", "missing_packages"]

TORCH_VARIANTS = ("torch", "opacus_hooks", "opacus_functorch", "opacus_ew", "opacus_ghost")


def missing_packages() -> list[str]:
    """Returns the packages that the variants need and that are not installed."""
    return [name for name in ("torch", "opacus") if importlib.util.find_spec(name) is None]


class TorchClient:
    """A process with PyTorch and without JAX; use as a context manager."""

    def __init__(self) -> None:
        """Starts the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.torch_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )

    def __enter__(self) -> "TorchClient":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process by closing its input."""
        self._process.communicate()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def prepare(
        self, workload: Workload, bert_blocks: int, variants: list[str]
    ) -> tuple[dict[str, list[int]], dict[str, str]]:
        """Builds the variants; returns both networks' counts, and the variants left out and why."""
        answer = self._ask(
            prepare=workload.name, batch=workload.batch, bert_blocks=bert_blocks, variants=variants
        )
        return answer["counts"], answer["left_out"]

    def run(self, variant: str, steps: int) -> float:
        """Takes some steps; returns the seconds per step."""
        return self._ask(run=variant, steps=steps)["seconds"]

    def _ask(self, **request: Any) -> dict[str, Any]:
        pipes = self._process.stdin, self._process.stdout
        if pipes[0] is None or pipes[1] is None:
            raise RuntimeError("the PyTorch process has no pipes")
        pipes[0].write(json.dumps(request) + "\n")
        pipes[0].flush()
        line = pipes[1].readline()
        if not line:
            raise RuntimeError(f"the PyTorch process ended: asked for {request}")
        return json.loads(line)


class TorchRunner:
    """One variant of the prepared workload."""

    def __init__(self, client: TorchClient, variant: str) -> None:
        """Stores the client and the variant's name."""
        self._client, self._variant = client, variant

    def run(self, steps: int) -> float:
        """Takes some steps; returns the seconds per step."""
        return self._client.run(self._variant, steps)
