"""Norms of real per-example gradients, at some steps of a run. None of them is private."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from dpjax.data import Dataset
from dpjax.train import Experiment, Plan, build_program, build_runner, member_key, root_key
from dpjax.train.program import TrainState
from dpjax.train.task import Examples, examples_of

__all__ = ["NormsOfRun", "gradient_norms"]


class NormsOfRun(NamedTuple):
    """What was seen.

    Attributes:
        plan: what ran.
        dimension: d, the number of trainable parameters.
        norms: the norms, by the step before which they were measured.
    """

    plan: Plan
    dimension: int
    norms: dict[int, np.ndarray]


def gradient_norms(
    experiment: Experiment, dataset: Dataset, steps: Sequence[int], examples: int
) -> NormsOfRun:
    """Trains, and measures the norms of the first training examples' gradients on the way.

    Args:
        experiment: what to train; with a `run.seed`, always the same.
        dataset: its data.
        steps: when to measure, in increasing order; 0 is before the first step.
        examples: how many examples.

    Privacy:
        None: the norms are those of training examples, without noise.
    """
    program = build_program(experiment, dataset)
    runner = build_runner(program, dataset, experiment.run)
    key = member_key(root_key(experiment.run.seed), program.plan.experiment.identity, 0)
    state = program.init(key)
    probed = jax.device_put(jax.tree.map(lambda leaf: leaf[:examples], examples_of(dataset.train)))

    @jax.jit
    def look(state: TrainState, examples: Examples) -> jax.Array:
        return program.gradients_of(state)(state.params, examples).norms

    found: dict[int, np.ndarray] = {}
    for step in steps:
        while (left := step - int(state.step)) > 0:
            state, _ = runner.advance(state, min(left, runner.most))
        norms = np.asarray(look(state, probed), np.float64)
        found[step] = norms[np.isfinite(norms)]
    dimension = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return NormsOfRun(program.plan, dimension, found)
