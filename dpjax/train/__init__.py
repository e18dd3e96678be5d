"""Training: experiments as frozen records, a pure jitted loop, checkpoints, runs on disk."""

from dpjax.train.checkpoint import CheckpointError, Checkpoints
from dpjax.train.config import Experiment
from dpjax.train.driver import Result
from dpjax.train.export import export
from dpjax.train.folder import RunFolder
from dpjax.train.keys import member_key, root_key
from dpjax.train.program import Program, TrainState
from dpjax.train.resolve import Plan, resolve
from dpjax.train.sections import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PrivacyConfig,
    RunConfig,
    TrainConfig,
)
from dpjax.train.setup import build_program, build_runner
from dpjax.train.training import train

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "DataConfig",
    "Experiment",
    "ModelConfig",
    "OptimizerConfig",
    "Plan",
    "PrivacyConfig",
    "Program",
    "Result",
    "RunConfig",
    "RunFolder",
    "TrainConfig",
    "TrainState",
    "build_program",
    "build_runner",
    "export",
    "member_key",
    "resolve",
    "root_key",
    "train",
]
