"""A model to publish: its parameters, its experiment and its privacy statement, and no secrets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpjax.data import Dataset
from dpjax.train.config import Experiment, RunConfig
from dpjax.train.folder import RunFolder, write_atomically
from dpjax.train.parameters import flat
from dpjax.train.run import Run
from dpjax.train.step import build_program
from dpjax.train.task import data_marks

__all__ = ["export"]


def export(run: RunFolder, dataset: Dataset, output: Path) -> list[Path]:
    """Writes what may be published of a run, from its newest checkpoint.

    ``model.npz`` the parameters by path (the average, where the run has one); ``config.toml`` the
    experiment without its seed; ``statement.md`` and ``ledger.json`` what the model costs. Keys,
    states and diagnostics stay behind.

    Args:
        run: the run.
        dataset: its data set, whose shapes the network is built for.
        output: a folder that does not exist yet, or is empty.

    Returns:
        The files.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output}: expected a folder that does not exist yet, or is empty")
    program = build_program(run.read_config(), dataset, run.identity().varied)
    restored = Run.resume(program, run, data_marks(dataset))
    program, step = restored.program, int(restored.state.step)
    params = flat(jax.device_get(program.released_params(restored.state)))
    arrays: dict[str, Any] = {path: np.asarray(leaf) for path, leaf in params.items()}
    output.mkdir(parents=True, exist_ok=True)
    model = output / "model.npz"
    with model.open("wb") as file:
        np.savez(file, **arrays)
    texts = {
        "config.toml": _for_everybody(program.plan.experiment).to_toml(),
        "statement.md": restored.statement(step),
    }
    ledger = restored.ledger(step)
    if ledger is not None:
        texts["ledger.json"] = ledger.to_json() + "\n"
    for name, text in texts.items():
        write_atomically(output / name, text)
    return [model, *(output / name for name in texts)]


def _for_everybody(experiment: Experiment) -> Experiment:
    """Takes away the seed, from which the noise could be computed, and this machine's paths."""
    model = experiment.model
    if model.weights is not None:
        model = replace(model, weights=Path(model.weights).name)
    return replace(experiment, model=model, run=RunConfig())
