"""Times the training loop against the bare jitted step: python scripts/bench_loop.py.

A batch is processed in chunks, with the last one padded, so times are per padded row. The bare step
gets whole chunks of rows that are already gathered, and is called from Python: no sampling, no
gather, no scan. It is timed at two numbers of chunks, and its time for the loop's number of padded
rows is interpolated. All variants take turns and are compared turn by turn, so that anything that
slows the machine down for a while slows all of them.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import data
from dpjax.data import Dataset, Pixels, Split
from dpjax.sampling import Packed
from dpjax.train import Experiment, Program, TrainState, build_program
from dpjax.train.feed import DeviceRunner, HostRunner, examples_of
from dpjax.train.step import Examples

BATCH = 256
BARE = "bare step"


class Cost(NamedTuple):
    """Wall-clock seconds, and CPU seconds of all cores, which other work affects less."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Case:
    """A network, its data and the number of rows per chunk."""

    label: str
    model: str
    dataset: Dataset
    chunk: int
    steps: int  # per turn

    def program(self) -> Program:
        """Returns the program: DP-SGD with Adam."""
        plain = {
            "data": {"name": self.dataset.name},
            "model": {"name": self.model},
            "method": {"name": "dp_sgd", "threshold": 1.0, "noise_multiplier": 1.0},
            "train": {"batch_size": BATCH, "steps": 10**6, "chunk": self.chunk},
            "privacy": {"accountant": "rdp"},
        }
        return build_program(Experiment.from_plain(plain), self.dataset)


def mnist_like(rows: int = 60_000) -> Dataset:
    """Returns random bytes in MNIST's shapes."""
    rng = np.random.default_rng(0)

    def split(n: int) -> Split:
        x = rng.integers(0, 256, (n, 28, 28, 1)).astype(np.uint8)
        return Split(x, rng.integers(0, 10, n).astype(np.int32))

    return Dataset("mnist", split(rows), split(10), 10, Pixels(255.0, (0.1307,), (0.3081,)))


class Bench:
    """The variants of one case, compiled; each call takes the same number of steps."""

    def __init__(self, case: Case) -> None:
        """Compiles all variants."""
        self.case, self.program = case, case.program()
        train, test = examples_of(case.dataset.examples), examples_of(case.dataset.test)
        self.state = jax.jit(self.program.init)(jax.random.key(0))
        self.data = jax.device_put(train)
        self.step = jax.jit(self.program.step)
        self.bare = jax.jit(self._bare)
        self.device = DeviceRunner(self.program, train, test, case.steps)
        self.host = HostRunner(self.program, case.dataset.train, test)
        self.padded = self._padded_rows()
        low = int(self.padded // case.chunk)
        self.around = [jax.device_put(_leading(train, n * case.chunk)) for n in (low, low + 1)]

    def _bare(self, state: TrainState, batch: Examples) -> tuple[TrainState, Any]:
        rows = len(batch.y)
        packed = Packed(jnp.arange(rows), jnp.int32(rows), self.program.plan.sampling)
        grads = self.program.gradients_of(state)(state.params, batch, packed)
        return self.program.finish(state, grads)

    def _padded_rows(self) -> float:
        """Returns the mean number of padded rows in the loops' steps."""
        chunk, sampling = self.case.chunk, self.program.plan.sampling
        drawn = [sampling.draw(self.state.key, t).rows() for t in range(self.case.steps)]
        return statistics.mean(-(-len(rows) // chunk) * chunk for rows in drawn)

    def turn(self) -> dict[str, Cost]:
        """Returns the cost of a padded row in each variant, run in a random order."""
        steps = self.case.steps
        runs: dict[str, Callable[[], TrainState]] = {
            "low": lambda: self._looped(self.bare, self.around[0]),
            "high": lambda: self._looped(self.bare, self.around[1]),
            "step: draw, gather, chunks": lambda: self._looped(self.step, self.data),
            "scan of steps (device)": lambda: self.device.advance(self.state, steps)[0],
            "fed by the host": lambda: self.host.advance(self.state, steps)[0],
        }
        found = {name: _cost(runs[name]) for name in random.sample(list(runs), len(runs))}
        part = self.padded / self.case.chunk % 1
        low, high = found.pop("low"), found.pop("high")
        bare = Cost(*(a + (b - a) * part for a, b in zip(low, high, strict=True)))
        costs = {BARE: bare} | {name: found[name] for name in runs if name in found}
        rows = steps * self.padded
        return {name: Cost(*(value / rows for value in cost)) for name, cost in costs.items()}

    def _looped(self, step: Callable[..., Any], batch: Examples) -> TrainState:
        state = self.state
        for _ in range(self.case.steps):
            state, _ = step(state, batch)
        return state


def _cost(run: Callable[[], TrainState]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(run())
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def _leading(examples: Examples, rows: int) -> Examples:
    return jax.tree.map(lambda leaf: leaf[:rows], examples)


def cases() -> list[Case]:
    """Returns the cases to time."""
    mnist, digits = mnist_like(), data.load("digits")
    return [
        Case("small CNN, N = 60,000", "small_cnn", mnist, 64, 8),
        Case("small CNN, N = 60,000", "small_cnn", mnist, 32, 8),
        Case("MLP, digits", "mlp", digits, 64, 150),
    ]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Times the training loop per padded row.")
    parser.add_argument("--turns", type=int, default=21, help="how often each variant has its turn")
    turns = parser.parse_args().turns
    print(
        "| case | chunk | padded rows | variant | us / row | beside bare | CPU us / row | beside |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for case in cases():
        bench = Bench(case)
        bench.turn()  # compiles
        found = [bench.turn() for _ in range(turns)]
        for name in found[0]:
            cells = [case.label, str(case.chunk), f"{bench.padded:.0f}", name]
            for i in range(2):
                cells.append(f"{1e6 * statistics.median(turn[name][i] for turn in found):.2f}")
                ratio = statistics.median(turn[name][i] / turn[BARE][i] for turn in found)
                cells.append(f"{ratio - 1:+.1%}")
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
