"""Measures the cost of a step for each network of the papers: python scripts/measure_costs.py.

The process is pinned to one core and counts its own CPU seconds, which other work affects less than
wall-clock time. A step is timed without any example (noise and optimizer) and with a few chunks of
them; the difference is the cost of the examples. Everything is then scaled so that the small CNN
has its cost when alone on a core. The table in dpjax/papers/core_hours.py is this script's output.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.data import Dataset, Pixels, Split, source_of
from dpjax.data.words import VOCABULARY
from dpjax.papers import SeededRun, cells, recipe_of
from dpjax.papers.core_hours import MeasuredNetwork, network_of
from dpjax.sampling import FullBatch
from dpjax.train import Experiment, build_program
from dpjax.train.feed import examples_of
from dpjax.train.step import Examples, TrainState

REFERENCE = MeasuredNetwork("small_cnn", 28)
ALONE = 1.45e-4  # seconds per example of the small CNN, alone on a core, batches of 256
CHUNKS = 2

# Rows per chunk: few if an example takes long.
ROWS = {"bert": 4, "roberta": 2, "alexnet": 8, "resnet9": 4}
ROWS |= dict.fromkeys(("resnet18", "resnet34", "wide_resnet"), 8)
ROWS |= dict.fromkeys(("nfnet_f0", "nfnet_f1"), 2)
LETTERS = {"names": 58}


@dataclass(frozen=True)
class Case:
    """A network and an experiment that uses it."""

    network: MeasuredNetwork
    experiment: Experiment

    @property
    def rows(self) -> int:
        """The number of rows per chunk."""
        return ROWS.get(self.network.model, 16 if self.network.side > 32 else 64)

    def dataset(self) -> Dataset:
        """Returns random examples of the right shape."""
        rng, n = np.random.default_rng(0), CHUNKS * self.rows
        name, side = self.experiment.data.name, self.network.side
        classes = source_of(name).classes
        y = rng.integers(0, classes, n).astype(np.int32)
        if name in ("names", "ag_news_subset", "sst2", "qnli", "qqp", "mnli", "mnli_mm"):
            tokens = LETTERS.get(name, VOCABULARY)
            x = rng.integers(1, tokens, (n, side)).astype(np.int32)
            return Dataset(name, Split(x, y), Split(x, y), classes, vocabulary=tokens)
        if name == "cifar10_simclr":
            features = rng.normal(size=(n, side * side)).astype(np.float32)
            return Dataset(name, Split(features, y), Split(features, y), classes)
        channels = 1 if side == 28 else 3
        x = rng.integers(0, 256, (n, side, side, channels)).astype(np.uint8)
        pixels = Pixels(255.0, (0.5,) * channels, (0.25,) * channels)
        return Dataset(name, Split(x, y), Split(x, y), classes, pixels)


def cases() -> list[Case]:
    """Returns each network of the recipes once, the reference first."""
    found: dict[MeasuredNetwork, Case] = {}
    for cell in cells():
        experiment = recipe_of(cell).experiment
        if experiment is None:
            continue
        network = network_of(SeededRun(experiment, 0))
        if network.scale == 1:  # large networks are extrapolated
            found.setdefault(network, Case(network, experiment))
    return [found.pop(REFERENCE), *found.values()]


def step_of(case: Case) -> tuple[Callable[[int], Any], int]:
    """Returns a compiled step that takes a number of examples, and the maximum of that number."""
    noisy = {"method.noise_multiplier": 1.0, "privacy.epsilon": "none"}
    sizes = {"train.batch_size": CHUNKS * case.rows, "train.chunk": case.rows}
    sizes |= {"train.augment": [], "train.multiplicity": 1}  # copies are accounted for elsewhere
    dataset = case.dataset()
    program = build_program(case.experiment.with_values({**noisy, **sizes}), dataset)
    state = jax.jit(program.init)(jax.random.key(0))
    data = jax.device_put(examples_of(dataset.examples))
    drawn = FullBatch(program.plan.dataset_size).draw(state.key, 0)
    drawn = replace(drawn, indices=drawn.indices[: CHUNKS * case.rows])
    drawn = replace(drawn, sampling=program.plan.sampling)  # privatize accepts no other

    @jax.jit
    def step(state: TrainState, data: Examples, count: jax.Array) -> Any:
        grads = program.gradients_of(state)(state.params, data, replace(drawn, size=count))
        return program.finish(state, grads)[0].params

    return lambda count: step(state, data, jnp.int32(count)), CHUNKS * case.rows


def seconds(run: Callable[[int], Any], count: int, turns: int) -> float:
    """Returns the minimum of some timings, in CPU seconds of this process."""
    found = []
    for _ in range(turns):
        begun = time.process_time()
        jax.block_until_ready(run(count))
        found.append(time.process_time() - begun)
    return min(found)


def measured(case: Case, turns: int) -> tuple[float, float]:
    """Returns the seconds per example, and per step without any."""
    run, most = step_of(case)
    jax.block_until_ready(run(most))  # compiles
    empty = seconds(run, 0, turns)
    return (seconds(run, most, turns) - empty) / most, empty


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Measures what the papers' networks cost.")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], metavar="MODEL")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    slower = 1.0
    for case in cases():
        if args.only and case.network.model not in (*args.only, REFERENCE.model):
            continue
        example, step = measured(case, args.turns)
        if case.network == REFERENCE:
            slower = (example + step / case.experiment.train.batch_size) / ALONE
            print(f"# slower than alone by {slower:.2f}", flush=True)
        named = (
            f"MeasuredNetwork({case.network.model!r}, {case.network.side}, {case.network.engine!r})"
        )
        print(f"    {named}: CoreSeconds({example / slower:.2g}, {step / slower:.2g}),", flush=True)
        jax.clear_caches()


if __name__ == "__main__":
    main()
