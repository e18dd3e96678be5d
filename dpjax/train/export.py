"""Export of a model for publication: parameters, experiment and privacy statement, no secrets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpjax import models
from dpjax._files import write_atomically
from dpjax.data import Dataset, fingerprints
from dpjax.models import LoRA
from dpjax.models.parameters import Params, flat, nested
from dpjax.train.config import Experiment, RunConfig
from dpjax.train.folder import RunFolder
from dpjax.train.network import with_frozen_states
from dpjax.train.run import Run
from dpjax.train.step import build_program

__all__ = ["export"]


def export(run: RunFolder, dataset: Dataset, output: Path) -> list[Path]:
    """Writes everything about a run that may be published, from its newest checkpoint.

    ``model.npz`` holds the parameters by path (their average, if the run keeps one);
    ``config.toml`` the experiment without its seed; ``statement.md`` and ``ledger.json`` the
    privacy cost. Keys, states and diagnostics are not exported. A pre-trained network is written as
    a Hugging Face directory instead of ``model.npz``: complete, with LoRA updates merged, the
    tokenizer included, and the statement in its model card.

    Args:
        run: the run.
        dataset: its data set, whose shapes determine the network.
        output: a folder that is empty or does not exist yet.

    Returns:
        The files.

    Raises:
        ValueError: if `output` is not empty, or the run is on other data.
        CheckpointError: if no checkpoint of the run can be used.

    Example:
        >>> folder, dataset = RunFolder(Path("run")), load("digits")  # doctest: +SKIP
        >>> files = export(folder, dataset, Path("published"))  # doctest: +SKIP
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output}: expected a folder that does not exist yet, or is empty")
    dataset = with_frozen_states(run.read_config(), dataset)
    program = build_program(run.read_config(), dataset, run.identity().varied)
    restored = Run.resume(program, run, fingerprints(dataset))
    program, step = restored.program, int(restored.state.step)
    params = jax.device_get(program.released_params(restored.state))
    experiment, statement = program.plan.experiment, restored.statement(step)
    if experiment.model.pretrained is None:
        written = _write_arrays(params, output)
    else:
        written = _write_pretrained(experiment, dataset, params, statement, output)
    texts = {
        "config.toml": _for_everybody(experiment).to_toml(),
        "statement.md": statement,
    }
    ledger = restored.ledger(step)
    if ledger is not None:
        texts["ledger.json"] = ledger.to_json() + "\n"
    for name, text in texts.items():
        write_atomically(output / name, text)
    return [*written, *(output / name for name in texts)]


def _write_arrays(params: Params, output: Path) -> list[Path]:
    arrays: dict[str, Any] = {path: np.asarray(leaf) for path, leaf in flat(params).items()}
    output.mkdir(parents=True, exist_ok=True)
    model = output / "model.npz"
    with model.open("wb") as file:
        np.savez(file, **arrays)
    return [model]


def _write_pretrained(
    experiment: Experiment, dataset: Dataset, params: Params, statement: str, output: Path
) -> list[Path]:
    config = experiment.model
    assert config.pretrained is not None
    whole = models.from_pretrained(
        config.pretrained, classes=dataset.classes, length=dataset.shape[0], **config.options
    )
    if config.lora is not None:
        params = models.merge_lora(params, LoRA(**config.lora))
    # A run on cached states holds only the network's second part.
    everything = nested({**flat(whole.params), **flat(params)})
    return models.save_pretrained(whole, output, everything, card=statement)


def _for_everybody(experiment: Experiment) -> Experiment:
    """Removes the seed, from which the noise could be computed, and this machine's paths."""
    model = experiment.model
    if model.weights is not None:
        model = replace(model, weights=Path(model.weights).name)
    if model.pretrained is not None:
        model = replace(model, pretrained=Path(model.pretrained).name)
    return replace(experiment, model=model, run=RunConfig())
