"""``dpjax bench``: the cost of a private step of an experiment on this machine, by engine."""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import chex
import jax
import jax.numpy as jnp
import optax

from dpjax import _checks, data
from dpjax.cli import printing
from dpjax.cli.command import Command
from dpjax.cli.experiment import read_experiment
from dpjax.cli.flags import add_config_flag
from dpjax.gradients.per_example import ENGINES
from dpjax.train.config import Experiment
from dpjax.train.feed import examples_of
from dpjax.train.plan import build_optimizer
from dpjax.train.step import Examples, Program, TrainState, build_program

__all__ = ["COMMAND", "CompiledStep", "Timed", "compiled", "ratio", "take_turns"]

TURN_SECONDS, MOST_STEPS = 0.3, 50
BASELINE = "not private"


class Timed(Protocol):
    """Something whose steps are timed."""

    def run(self, steps: int) -> float:
        """Takes some steps; returns the seconds per step."""


@dataclass(frozen=True)
class CompiledStep:
    """A step of training, compiled ahead of time.

    Attributes:
        call: ``call(state) -> state``.
        state: the initial state.
        compile_seconds: the time for tracing, lowering and compiling.
        temporary_bytes: XLA's own figure; None if the backend gives none.
    """

    call: Callable[[chex.ArrayTree], chex.ArrayTree]
    state: chex.ArrayTree
    compile_seconds: float
    temporary_bytes: int | None

    def run(self, steps: int) -> float:
        """Takes some steps from the initial state; returns the seconds per step."""
        state = jax.block_until_ready(self.state)
        started = time.perf_counter()
        for _ in range(steps):
            state = self.call(state)
        jax.block_until_ready(state)
        return (time.perf_counter() - started) / steps


def compiled(
    step: Callable[[chex.ArrayTree, chex.ArrayTree], chex.ArrayTree],
    state: chex.ArrayTree,
    rows: chex.ArrayTree,
) -> CompiledStep:
    """Compiles ``step(state, rows) -> state``."""
    started = time.perf_counter()
    program = jax.jit(step).lower(state, rows).compile()
    seconds = time.perf_counter() - started
    analysis = program.memory_analysis()
    temporary = None if analysis is None else analysis.temp_size_in_bytes
    return CompiledStep(lambda state: program(state, rows), state, seconds, temporary)


def take_turns(steps: Mapping[str, Timed], turns: int) -> dict[str, list[float]]:
    """Returns each step's seconds, one number per turn.

    All steps take a turn before any takes its next, each time in another order, so that anything
    that slows the machine down for a while slows all of them.

    Args:
        steps: the steps to time, by name.
        turns: the number of turns each takes.
    """
    lengths = {}
    for name, step in steps.items():
        step.run(1)
        lengths[name] = min(MOST_STEPS, math.ceil(TURN_SECONDS / step.run(1)))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(steps[name].run(lengths[name]))
    return seconds


def ratio(above: list[float], below: list[float]) -> float:
    """Returns the median of the ratios, turn by turn.

    Example:
        >>> ratio([2.0, 9.0, 8.0], [1.0, 3.0, 4.0])
        2.0
    """
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(seed=None, seeds=None, diagnostics=False, imports=[])
    add_config_flag(parser, "train", meaning="without one, the embedded digits")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change a value, as in train.batch_size=128; repeatable",
    )
    parser.add_argument("--epsilon", type=float, metavar="X", help="the budget, privacy.epsilon")
    parser.add_argument("--data-dir", metavar="DIR", help="the folder of the data sets")
    parser.add_argument(
        "--engine",
        action="append",
        choices=[name for name in ENGINES if name != "auto"],
        help="an engine to time, all three by default; repeatable",
    )
    parser.add_argument("--turns", type=int, default=7, metavar="K", help="turns of each; 7")
    parser.add_argument("--json", action="store_true", help="print JSON, at full precision")


def _run(args: argparse.Namespace) -> int:
    turns = _checks.integer("--turns", args.turns, at_least=1)
    experiment = read_experiment(args)
    dataset = data.load(experiment.data.name, args.data_dir)
    rows = jax.tree.map(jnp.asarray, examples_of(dataset.examples))
    engines = args.engine or [name for name in ENGINES if name != "auto"]
    programs = {
        engine: build_program(experiment.with_values({"train.engine": engine}), dataset)
        for engine in engines
    }
    any_program = next(iter(programs.values()))
    steps = {BASELINE: _not_private(experiment, any_program, rows)}
    for engine, program in programs.items():
        steps[engine] = _private(program, rows)
    seconds = take_turns(steps, turns)
    found = [_row(name, steps, seconds) for name in steps]
    printing.show(args.json, _text(experiment, any_program, found), {"steps": found})
    return 0


def _private(program: Program, rows: Examples) -> CompiledStep:
    """Returns the step as trained, with sampling, clipping and noise."""

    def step(state: TrainState, rows: Examples) -> TrainState:
        return program.step(state, rows)[0]

    return compiled(step, program.init(jax.random.key(0)), rows)


def _not_private(experiment: Experiment, program: Program, rows: Examples) -> CompiledStep:
    """Returns a step on equally many rows, without clipping, noise and sampling."""
    state = program.init(jax.random.key(0))
    size = round(program.plan.sampling.batch_size or 1)
    batch = jax.tree.map(lambda leaf: leaf[:size], rows)
    optimizer = build_optimizer(experiment.optimizer, program.plan.asked, None)
    loss = partial(program.loss, state.frozen)

    def step(carry: tuple[chex.ArrayTree, optax.OptState], batch: Examples) -> chex.ArrayTree:
        params, opt_state = carry

        def mean(params: chex.ArrayTree) -> jax.Array:
            return jnp.mean(jax.vmap(loss(jax.random.key(0)), (None, 0))(params, batch))

        updates, opt_state = optimizer.update(jax.grad(mean)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return compiled(step, (state.params, optimizer.init(state.params)), batch)


def _row(
    name: str, steps: Mapping[str, CompiledStep], seconds: Mapping[str, list[float]]
) -> dict[str, float | str | None]:
    return {
        "step": name,
        "milliseconds": 1e3 * statistics.median(seconds[name]),
        "ratio": ratio(seconds[name], seconds[BASELINE]),
        "compile_seconds": steps[name].compile_seconds,
        "temporary_bytes": steps[name].temporary_bytes,
    }


def _text(
    experiment: Experiment, program: Program, found: list[dict[str, float | str | None]]
) -> str:
    device = jax.devices()[0]
    head = printing.pairs(
        [
            ("network", f"{experiment.model.name} on {experiment.data.name}"),
            ("batch", f"{program.plan.sampling.batch_size:g} expected"),
            ("device", f"{device.platform}, {device.device_kind}"),
        ]
    )
    header = ("step", "ms", "/ not private", "compile s", "temporary MB")
    cells = [
        (
            str(row["step"]),
            f"{row['milliseconds']:.2f}",
            f"{row['ratio']:.2f}",
            f"{row['compile_seconds']:.1f}",
            "-" if row["temporary_bytes"] is None else f"{float(row['temporary_bytes']) / 1e6:.1f}",
        )
        for row in found
    ]
    return f"{head}\n\n{printing.table(header, cells)}"


COMMAND = Command(
    _add_flags,
    _run,
    ("dpjax bench", "dpjax bench --config mnist_dp_sgd --engine ghost"),
)
