"""Every method of `dpjax.methods` as it is audited: the arguments it needs, how it is watched."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpjax.audit.pairs import ROWS
from dpjax.mechanism import Release
from dpjax.methods.table import build_method, constructors

__all__ = ["SUBJECTS", "Subject"]


@dataclass(frozen=True)
class Subject:
    """How a method is audited.

    Attributes:
        arguments: of its constructor, beyond the noise and the length of the run.
        rate: the probability with which each watched step takes the canary.
        steps: how many steps are watched.
        sampling: how its training samples.
        batch_size: of its training, unless that takes all examples at every step.
        canaries: of its training; about half of them are trained on.
        printed: whether its claim is a paper's formula, since it has no guarantee.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    rate: float = 1.0
    steps: int = 1
    sampling: str = "poisson"
    batch_size: int = 1000
    canaries: int = 2000
    printed: bool = False

    def method(self, name: str, noise_multiplier: float) -> Release:
        """Returns the method for the audit of a step.

        Args:
            name: a name in `dpjax.methods`.
            noise_multiplier: sigma, or sigma_0 of a decaying one.
        """
        facts = {
            "steps": 100,
            "steps_per_epoch": max(1.0, self.steps),
            "epochs": 10,
            "dataset_size": ROWS,
        }
        given = {"name": name, "noise_multiplier": noise_multiplier, **self.arguments}
        return build_method(given, facts)


_SPECIAL = {
    "global_": Subject({"z": 3.0}),
    "lin_transfer": Subject({"thresholds": [1.0, 0.8]}),
    "psasc_momentum_full_batch": Subject(sampling="full"),
    # The printed formula counts epochs of sampled batches: one epoch of four steps is watched.
    "auto_dp_sgd": Subject(
        {"decay": "linear"}, rate=0.25, steps=4, batch_size=20, canaries=200, printed=True
    ),
}

SUBJECTS: Mapping[str, Subject] = {name: _SPECIAL.get(name, Subject()) for name in constructors()}
"""All methods, by name."""
