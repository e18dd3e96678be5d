"""Parameters in .npz files, by path."""

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax import _checks
from dpjax.models.parameters import flat, nested

__all__ = ["file_hash", "read_weights", "with_weights"]


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
    return nested(new)
