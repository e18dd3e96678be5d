"""From an experiment to the program that runs it, and to where it runs."""

from collections.abc import Sequence
from dataclasses import replace

import jax

from dpjax import models
from dpjax.data import Dataset
from dpjax.train.config import Experiment
from dpjax.train.parameters import file_hash
from dpjax.train.program import Program
from dpjax.train.resolve import resolve
from dpjax.train.runners import (
    DeviceRunner,
    HostRunner,
    MembersRunner,
    MeshRunner,
    Runner,
    fits_on_device,
)
from dpjax.train.sections import RunConfig
from dpjax.train.task import Task, examples_of

__all__ = ["build_program", "build_runner"]


def build_program(experiment: Experiment, dataset: Dataset, varied: Sequence[str] = ()) -> Program:
    """Returns the program of an experiment on its data set.

    Args:
        experiment: the experiment; it is resolved here.
        dataset: the data set; its training examples are the private ones.
        varied: see `Program`.
    """
    if dataset.name != experiment.data.name:
        raise ValueError(f"data.name = {experiment.data.name!r}: expected {dataset.name!r}")
    network = models.build(
        experiment.model.name,
        dataset.shape,
        dataset.classes,
        dataset.vocabulary,
        **experiment.model.options,
    )
    plan = resolve(_with_hash(experiment), len(dataset.train.y))
    task = Task.of(network, dataset, experiment.data.scale, experiment.train)
    return Program(plan, task, tuple(varied))


def build_runner(program: Program, dataset: Dataset, run: RunConfig, members: int = 1) -> Runner:
    """Returns where the program runs, as the experiment asks."""
    train, test = examples_of(dataset.train), examples_of(dataset.test)
    most = max(1, min(program.plan.steps, round(program.plan.steps_per_epoch)))
    if run.devices > 1:
        found = jax.devices()
        if len(found) < run.devices:
            raise ValueError(
                f"run.devices = {run.devices}: expected at most {len(found)}, as many as there "
                "are (JAX_NUM_CPU_DEVICES sets how many a CPU counts as)"
            )
        return MeshRunner(program, train, test, most, found[: run.devices])
    if run.data == "host" or (run.data == "auto" and not fits_on_device(train)):
        return HostRunner(program, train, test)
    kind = DeviceRunner if members == 1 else MembersRunner
    return kind(program, train, test, most)


def _with_hash(experiment: Experiment) -> Experiment:
    """Enters the hash of the weights to start from: they decide what is released."""
    model = experiment.model
    if model.weights is None:
        return experiment
    found = file_hash(model.weights)
    if model.weights_sha256 not in (None, found):
        raise ValueError(
            f"model.weights = {model.weights!r} has the sha256 {found}: expected "
            f"{model.weights_sha256}"
        )
    return replace(experiment, model=replace(model, weights_sha256=found))
