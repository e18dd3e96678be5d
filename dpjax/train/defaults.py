"""The experiment that needs no files: the embedded digits."""

from dpjax.train.config import Experiment
from dpjax.train.sections import OptimizerConfig, PrivacyConfig, TrainConfig

__all__ = ["DIGITS"]

DIGITS = Experiment(
    method={"name": "dp_sgd"},
    optimizer=OptimizerConfig("adam", 5e-3),
    train=TrainConfig(batch_size=512, epochs=40),
    privacy=PrivacyConfig(epsilon=4.0),
)
"""1,437 images of 8x8 digits, a network of one hidden layer, epsilon 4 at delta 1/N."""
