"""The network of an experiment: new or pre-trained, its initial weights and its data."""

import dataclasses
import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks, data, models
from dpjax.data import Dataset, Split
from dpjax.models import CachedStates, LoRA, Network
from dpjax.models.parameters import Params, flat, nested
from dpjax.train.config import Experiment

__all__ = [
    "build_network",
    "file_hash",
    "load_dataset",
    "starting_weights",
    "with_frozen_states",
    "with_hash",
    "with_weights",
]


def load_dataset(
    experiment: Experiment, directory: str | os.PathLike[str] | None = None
) -> Dataset:
    """Loads an experiment's data by name; texts are tokenised for its pre-trained network.

    Args:
        experiment: determines the data, the network and the number of tokens per example.
        directory: as for `dpjax.data.load`.

    Returns:
        The data set.

    Raises:
        FileNotFoundError: if a file of the data set, or the tokenizer, is missing.
        ValueError: if the name is unknown, or a file is not the official one.

    Example:
        >>> load_dataset(Experiment()).size
        1437
    """
    config, tokenizer = experiment.data, None
    if experiment.model.pretrained is not None:
        tokenizer = models.pretrained_tokenizer(experiment.model.pretrained)
    return data.load(config.name, directory, tokenizer, config.length)


def build_network(experiment: Experiment, dataset: Dataset) -> Network:
    """Returns an experiment's network for its data: new, pre-trained, or a part of one.

    With ``train.cache_frozen`` and data that are already states, it is the part that begins with
    the first trained block.
    """
    model = experiment.model
    if model.pretrained is None:
        network = models.build(
            model.name, dataset.shape, dataset.classes, dataset.vocabulary, **model.options
        )
    else:
        network = _pretrained(experiment, dataset)
    return network if model.lora is None else models.add_lora(network, LoRA(**model.lora))


def _pretrained(experiment: Experiment, dataset: Dataset) -> Network:
    directory = experiment.model.pretrained
    assert directory is not None
    network, tokenizer = models.pretrained_network(
        directory, dataset.classes, dataset.shape[0], **experiment.model.options
    )
    if tokenizer is not None and dataset.vocabulary != tokenizer.vocabulary:
        raise ValueError(
            f"{dataset.name} was read as {dataset.vocabulary} tokens: expected the "
            f"{tokenizer.vocabulary} of the tokenizer in {directory}; load it with that"
        )
    if len(dataset.shape) == 1:
        return network
    return _halves(experiment, network).suffix


def _halves(
    experiment: Experiment, network: Network, params: chex.ArrayTree | None = None
) -> models.Halves:
    params = jax.eval_shape(network.init, jax.random.key(0)) if params is None else params
    block = models.first_trained_block(params, experiment.model.trainable)
    return models.cut(network, params, block)


def starting_weights(experiment: Experiment, network: Network) -> Mapping[str, chex.Array] | None:
    """Returns an experiment's initial parameters by path; None to initialise them at random."""
    model = experiment.model
    if model.pretrained is not None:
        return models.pretrained_weights(model.pretrained, network)
    return None if model.weights is None else _read_weights(model.weights)


def file_hash(path: str | Path) -> str:
    """Returns the SHA-256 of a file; refuses pipes and devices, which may never end."""
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{path}: expected a plain file")
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_weights(path: str | Path) -> dict[str, np.ndarray]:
    """Reads an .npz file of parameters by path; it can hold only arrays, and runs no code."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, zipfile.BadZipFile, EOFError, MemoryError) as error:
        raise ValueError(f"{path}: expected an .npz file of arrays: {error}") from error


def with_weights(params: Params, weights: Mapping[str, chex.Array]) -> Params:
    """Returns the parameters, with those in `weights` replaced, by path."""
    leaves = flat(params)
    for path, array in weights.items():
        if path not in leaves:
            raise ValueError(f"model.weights: {path}: unknown; {_checks.nearest(path, leaves)}")
        if array.shape != leaves[path].shape:
            raise ValueError(
                f"model.weights: {path} has shape {array.shape}: expected {leaves[path].shape}"
            )
    new = {
        path: jnp.asarray(weights[path], leaf.dtype) if path in weights else leaf
        for path, leaf in leaves.items()
    }
    return nested(new)


def with_hash(experiment: Experiment) -> Experiment:
    """Returns the experiment with the hash of its initial weights, which affect the release."""
    model = experiment.model
    for name, hash_of in (("pretrained", models.pretrained_hash), ("weights", file_hash)):
        path, known = getattr(model, name), getattr(model, f"{name}_sha256")
        if path is None:
            continue
        found = hash_of(path)
        if known not in (None, found):
            raise ValueError(f"model.{name} = {path!r} has the sha256 {found}: expected {known}")
        entered: dict[str, Any] = {f"{name}_sha256": found}
        model = dataclasses.replace(model, **entered)
    return dataclasses.replace(experiment, model=model)


class _StateRows:
    """Pairs of states before a block and labels, read on demand."""

    def __init__(self, states: CachedStates, labels: np.ndarray) -> None:
        self._states, self._labels = states, labels
        self.shape: tuple[int, ...] = states.shape[1:]
        self.dtype = np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, rows: Sequence[int] | np.ndarray) -> Split:
        return Split(self._states.__getitems__(rows), self._labels[np.asarray(rows)])


def with_frozen_states(experiment: Experiment, dataset: Dataset) -> Dataset:
    """Returns the data as states before the first trained block, if the experiment asks for it.

    They are computed once and stored in ``run.cache_dir``; by default, that is ``frozen_states``
    in the directory of the data sets.

    Raises:
        ValueError: if the embeddings are trained, or the states exceed ``run.cache_limit``.
    """
    if not experiment.train.cache_frozen or len(dataset.shape) == 2:
        return dataset
    model = experiment.model
    if model.pretrained is None:
        raise ValueError("train.cache_frozen = true: expected model.pretrained with it")
    if model.lora is not None:
        raise ValueError(
            "train.cache_frozen = true with model.lora: expected none; updates in every block "
            "leave no frozen beginning"
        )
    network = _pretrained(experiment, dataset)
    whole = models.from_pretrained(
        model.pretrained, classes=dataset.classes, length=dataset.shape[0], **model.options
    )
    halves = _halves(experiment, network, whole.params)
    folder = experiment.run.cache_dir or data.data_directory() / "frozen_states"

    def states_of(tokens: np.ndarray) -> CachedStates:
        return models.cache_states(
            halves.prefix,
            halves.prefix_params,
            tokens,
            folder,
            limit=experiment.run.cache_limit * 1e9,
        )

    private, test = dataset.examples, dataset.test
    held_out = states_of(test.x)
    return dataclasses.replace(
        dataset,
        train=_StateRows(states_of(private.x), private.y),
        test=Split(held_out.__getitems__(np.arange(len(held_out))), test.y),
    )
