"""Which parameters are trained, which are frozen, and where they start."""

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from dpjax import _checks

__all__ = ["Parameters", "file_hash", "flat", "read_weights", "split", "with_weights"]


class Parameters(NamedTuple):
    """Parameters as two nested dicts; gradients are taken, clipped and noised for the first."""

    trainable: Any
    frozen: Any

    def merged(self) -> Any:
        """Returns all parameters as the network takes them."""
        return traverse_util.unflatten_dict({**flat(self.trainable), **flat(self.frozen)}, sep="/")


def split(params: Any, trainable: Sequence[str]) -> Parameters:
    """Splits parameters by the beginning of their paths; without any, all are trainable.

    >>> params = {"body": {"kernel": 1.0}, "head": {"kernel": 2.0, "bias": 3.0}}
    >>> split(params, ["head"])
    Parameters(trainable={'head': {'kernel': 2.0, 'bias': 3.0}}, frozen={'body': {'kernel': 1.0}})
    """
    if not trainable:
        return Parameters(params, {})
    leaves = flat(params)
    for prefix in trainable:
        if not any(_under(path, prefix) for path in leaves):
            hint = _checks.nearest(prefix, {path.split("/")[0] for path in leaves})
            raise ValueError(f"model.trainable = {prefix!r}: no such parameter; {hint}")
    chosen = {path for path in leaves if any(_under(path, prefix) for prefix in trainable)}
    parts = (
        {path: leaf for path, leaf in leaves.items() if (path in chosen) == wanted}
        for wanted in (True, False)
    )
    return Parameters(*(traverse_util.unflatten_dict(part, sep="/") for part in parts))


def flat(params: Any) -> dict[str, Any]:
    """Returns the leaves of nested dicts by their paths, the keys joined by "/"."""
    return traverse_util.flatten_dict(params, sep="/")


def file_hash(path: str | Path) -> str:
    """Returns the sha256 of a file; a pipe or a device, which may never end, is refused."""
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{path}: expected a plain file")
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_weights(path: str | Path) -> dict[str, np.ndarray]:
    """Reads an .npz file of parameters by path; it can hold arrays only, and never runs code."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, zipfile.BadZipFile, EOFError, MemoryError) as error:
        raise ValueError(f"{path}: expected an .npz file of arrays: {error}") from error


def with_weights(params: Any, weights: Mapping[str, Any]) -> Any:
    """Returns the parameters with those replaced that `weights` has.

    Args:
        params: new parameters.
        weights: arrays by path.
    """
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
    return traverse_util.unflatten_dict(new, sep="/")


def _under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")
