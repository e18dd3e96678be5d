"""Training: experiments as frozen records, a pure jitted loop, checkpoints, runs on disk."""

from dpjax._imports import allow_import
from dpjax.train.checkpoint import CheckpointError, Checkpoints
from dpjax.train.config import (
    DataConfig,
    Experiment,
    ModelConfig,
    OptimizerConfig,
    PrivacyConfig,
    RunConfig,
    TrainConfig,
)
from dpjax.train.export import export
from dpjax.train.feed import build_runner
from dpjax.train.folder import RunFolder, member_key, root_key
from dpjax.train.loop import Preempted, Result
from dpjax.train.mesh import LostProcessError
from dpjax.train.network import load_dataset
from dpjax.train.plan import Plan, resolve
from dpjax.train.run import Run
from dpjax.train.step import Program, TrainState, build_program
from dpjax.train.training import train

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "DataConfig",
    "Experiment",
    "LostProcessError",
    "ModelConfig",
    "OptimizerConfig",
    "Plan",
    "Preempted",
    "PrivacyConfig",
    "Program",
    "Result",
    "Run",
    "RunConfig",
    "RunFolder",
    "TrainConfig",
    "TrainState",
    "allow_import",
    "build_program",
    "build_runner",
    "export",
    "load_dataset",
    "member_key",
    "resolve",
    "root_key",
    "train",
]
