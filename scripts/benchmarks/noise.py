"""Times ten million standard normals: ours, with and without the grid, and other libraries'."""

import contextlib
import importlib.metadata
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.load import OthersLoad
from dpjax import noise
from dpjax.cli.bench import ratio, take_turns

__all__ = ["noise_table"]

SIZE = 10_000_000


class _Draw:
    """One draw per step, timed in CPU seconds of this process, including its threads."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self._draw = draw

    def run(self, steps: int) -> float:
        begun = time.process_time()
        for _ in range(steps):
            self._draw()
        return (time.process_time() - begun) / steps


def noise_table(turns: int) -> str:
    """Returns the ratios to `jax.random.normal`, measured in turns in one run."""
    load = OthersLoad([os.getpid()])
    seconds = take_turns({name: _Draw(draw) for name, draw in _draws().items()}, turns)
    base = seconds["jax.random.normal"]
    lines = [
        f"## {SIZE:.0e} standard normals in float32, CPU time",
        "",
        "| | ns each | of jax.random.normal |",
        "|---|---|---|",
    ]
    for name, own in seconds.items():
        each = statistics.median(own) / SIZE * 1e9
        lines.append(f"| {name} | {each:.1f} | {ratio(own, base):.2f} |")
    lines += ["", f"Others used {load.share():.0%} of the machine meanwhile.", ""]
    return "\n".join(lines)


def _draws() -> dict[str, Callable[[], Any]]:
    key, zeros = jax.random.key(0), jnp.zeros(SIZE)
    compiled = {
        "jax.random.normal": lambda key: jax.random.normal(key, (SIZE,)),
        "dpjax, standard_normal": lambda key: noise.standard_normal(key, zeros),
        "dpjax, release on the grid": lambda key: noise.release(key, zeros, zeros, 1.3),
    }
    programs = {name: jax.jit(draw).lower(key).compile() for name, draw in compiled.items()}
    rng = np.random.default_rng(0)
    draws: dict[str, Callable[[], Any]] = {
        name: lambda program=program: program(key).block_until_ready()
        for name, program in programs.items()
    }
    draws["NumPy"] = lambda: rng.standard_normal(SIZE, np.float32)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("torch")
        import torch  # noqa: PLC0415

        draws["torch"] = lambda: torch.normal(0.0, 1.0, (SIZE,))
    return draws
