"""A small data set and experiment, on which a step takes no time."""

from typing import Any

import numpy as np
import pytest

import dpjax.papers.auto_dp_sgd  # noqa: F401 (a method that it makes known)
from dpjax.data import Dataset, Pixels, Split
from dpjax.train import Experiment, build_program, loop
from dpjax.train.step import Program

N, TEST = 90, 30


def images(seed: int = 0, size: tuple[int, int, int] = (6, 6, 1)) -> Dataset:
    """Three classes of noisy stripes, as bytes from 0 to 16."""
    rng = np.random.default_rng(seed)

    def split(rows: int) -> Split:
        y = rng.integers(0, 3, rows).astype(np.int32)
        x = rng.integers(0, 8, (rows, *size))
        x[np.arange(rows), 2 * y] += 8
        return Split(x.astype(np.uint8), y)

    channels = size[2]
    pixels = Pixels(16.0, (0.25,) * channels, (0.5,) * channels)
    return Dataset("stripes", split(N), split(TEST), 3, pixels)


def experiment(**changes: object) -> Experiment:
    """A linear model, batches of 12, six steps, noise multiplier 1; paths with "__" for "."."""
    base = Experiment.from_plain(
        {
            "data": {"name": "stripes"},
            "model": {"name": "linear"},
            "method": {"name": "dp_sgd", "threshold": 0.7, "noise_multiplier": 1.0},
            "optimizer": {"name": "sgd", "learning_rate": 0.5},
            "train": {"batch_size": 12, "steps": 6, "chunk": 5},
            "privacy": {"delta": 1e-3, "accountant": "rdp"},
        }
    )
    for path, value in changes.items():
        base = base.set(path.replace("__", "."), value)
    return base


class Killed(Exception):
    """What ends a run in place of a kill."""


def stop_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Makes the loop die after so many steps, as a kill would, without any clean-up."""
    original = loop.Loop._advance

    def advance(self: Any, boundary: int) -> None:
        if self._step >= steps:
            raise Killed
        original(self, min(boundary, steps))

    patch.setattr(loop.Loop, "_advance", advance)


def program(
    dataset: Dataset | None = None, varied: tuple[str, ...] = (), **changes: object
) -> Program:
    """The program of such an experiment."""
    return build_program(experiment(**changes), dataset or images(), varied)
