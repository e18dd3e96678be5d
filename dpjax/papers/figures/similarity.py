"""How close private gradients are to non-private ones (PSASC's figures 2 to 8)."""

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from dpjax import noise
from dpjax._files import write_atomically
from dpjax._states import find_state
from dpjax.data import Dataset
from dpjax.papers.printed_numbers import cell_named
from dpjax.papers.recipes import recipe_of
from dpjax.privatize import PrivatizeState
from dpjax.train import (
    Experiment,
    Program,
    TrainState,
    build_program,
    build_runner,
    member_key,
    root_key,
)
from dpjax.train.feed import examples_of
from dpjax.train.folder import NOT_PRIVATE
from dpjax.train.step import Examples

__all__ = [
    "EDGES",
    "Similarity",
    "cosine",
    "measured_experiments",
    "read_similarity",
    "similarity_rows",
    "write_similarity",
]

EDGES = 10.0 ** np.linspace(-8, 4, 61)
"""The edges of the norms' histograms, five per decade; norms outside go to the end bins."""


class Similarity(NamedTuple):
    """Measurements of one step's gradient. NOT private.

    Attributes:
        method: the method's name.
        step: t; the gradient is released in step t + 1.
        epoch: t B / N.
        cosine: between the private gradient, noise included, and the batch's mean gradient.
        bound: the L2 bound of one contribution.
        mean_weight: the mean weight of the batch's examples.
        norm_10: the first decile of their norms.
        norm_50: the median.
        norm_90: the ninth decile.
        counts: the histogram of norms over `EDGES`.
    """

    method: str
    step: int
    epoch: float
    cosine: float
    bound: float
    mean_weight: float
    norm_10: float
    norm_50: float
    norm_90: float
    counts: tuple[int, ...]


class _Seen(NamedTuple):
    cosine: jax.Array
    bound: jax.Array
    norms: jax.Array
    weights: jax.Array
    size: jax.Array


def measured_experiments() -> list[Experiment]:
    """Returns the four experiments to measure: PSASC's MNIST recipe, 3 epochs, seed 1."""
    own = {"train.epochs": 3, "optimizer.learning_rate": 4.0, "run.seed": 1}
    found = []
    for method in ("dp-sgd", "auto-s", "dp-psac", "dp-psasc"):
        experiment = recipe_of(cell_named(f"psasc/III/mnist/4-layer-cnn/3/{method}")).experiment
        if experiment is None:
            raise RuntimeError(f"{method} has no experiment")
        found.append(experiment.with_values(own))
    return found


def similarity_rows(
    experiment: Experiment,
    dataset: Dataset,
    per_epoch: int = 20,
    say: Callable[[str], None] = lambda text: None,
) -> list[Similarity]:
    """Trains an experiment, and measures the gradients of some of its steps.

    The measured gradient is exactly what the step releases: the same batch, the same noise.

    Args:
        experiment: what to train; reproducible with a `run.seed`.
        dataset: its data.
        per_epoch: the number of steps to measure in each epoch.
        say: called with a line for each step that is measured.

    Privacy:
        None: norms, weights and the mean gradient are computed without noise.
    """
    program = build_program(experiment, dataset)
    runner = build_runner(program, dataset, experiment.run)
    plan, data = program.plan, jax.device_put(examples_of(dataset.examples))
    state = program.init(member_key(root_key(experiment.run.seed), plan.experiment.identity, 0))
    look = jax.jit(lambda state, data: _seen(program, state, data))
    places = np.linspace(0, plan.steps - 1, _count(plan.steps / plan.steps_per_epoch, per_epoch))
    rows = []
    for step in np.unique(places.round().astype(int)):
        while (left := int(step) - int(state.step)) > 0:
            state, _ = runner.advance(state, min(left, runner.most))
        epoch = int(step) / plan.steps_per_epoch
        rows.append(_row(plan.name, int(step), epoch, look(state, data)))
        say(f"{plan.name}, step {step}: cosine {rows[-1].cosine:.3f}")
    return rows


def cosine(one: chex.ArrayTree, other: chex.ArrayTree) -> jax.Array:
    """Returns the cosine of the angle between two pytrees as vectors; 0 if one is zero.

    >>> round(float(cosine({"a": jnp.ones(2)}, {"a": jnp.array([1.0, 0.0])})), 4)
    0.7071
    """

    def dot(a: chex.ArrayTree, b: chex.ArrayTree) -> jax.Array:
        return jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b))))

    lengths = jnp.sqrt(dot(one, one)) * jnp.sqrt(dot(other, other))
    return jnp.where(lengths > 0, dot(one, other) / jnp.where(lengths > 0, lengths, 1.0), 0.0)


def write_similarity(file: Path, rows: Iterable[Similarity]) -> None:
    """Writes rows as CSV, after comments that say they are not private and name the noise."""
    lines = [
        f"# {NOT_PRIVATE}",
        f"# noise_definition: {noise.DEFINITION}",
        ",".join(Similarity._fields),
    ]
    for row in rows:
        *numbers, counts = row
        values = [f"{v:.6g}" if isinstance(v, float) else str(v) for v in numbers]
        lines.append(",".join([*values, " ".join(map(str, counts))]))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, "\n".join(lines) + "\n")


def read_similarity(file: Path) -> list[Similarity]:
    """Reads what `write_similarity` wrote."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    return [
        Similarity(
            row["method"],
            int(row["step"]),
            float(row["epoch"]),
            float(row["cosine"]),
            float(row["bound"]),
            float(row["mean_weight"]),
            float(row["norm_10"]),
            float(row["norm_50"]),
            float(row["norm_90"]),
            tuple(map(int, row["counts"].split())),
        )
        for row in csv.DictReader(lines)
    ]


def _count(epochs: float, per_epoch: int) -> int:
    return max(1, round(epochs * per_epoch))


def _seen(program: Program, state: TrainState, data: Examples) -> _Seen:
    """Measures the gradient of the next step without changing the state."""
    plan, drawn = program.plan, program.draw(state)
    grads = program.gradients_of(state)(state.params, data, drawn)
    private = plan.method.transformation(plan.sampling, state.key)
    released, new = private.update(grads, state.opt_state[0], state.params)
    numbers = find_state(new, PrivatizeState).released
    norms = grads.norms
    return _Seen(
        cosine(released, grads.weighted_sum(jnp.ones_like(norms))),
        numbers.bound,
        norms,
        plan.method.rule.weight(norms, numbers.threshold),  # type: ignore[attr-defined]
        drawn.size,
    )


def _row(method: str, step: int, epoch: float, seen: _Seen) -> Similarity:
    size = int(seen.size)
    norms, weights = (np.asarray(v, np.float64)[:size] for v in (seen.norms, seen.weights))
    finite = np.isfinite(norms)
    low, middle, high = np.quantile(norms[finite], (0.1, 0.5, 0.9)).tolist()
    counts, _ = np.histogram(np.clip(norms[finite], EDGES[0], EDGES[-1]), EDGES)
    return Similarity(
        method,
        step,
        epoch,
        float(seen.cosine),
        float(seen.bound),
        float(np.mean(weights[finite])),
        low,
        middle,
        high,
        tuple(counts.tolist()),
    )
