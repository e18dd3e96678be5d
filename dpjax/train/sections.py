"""The tables of an experiment, each a frozen record that checks itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpjax import _checks
from dpjax.gradients import ENGINES

__all__ = [
    "DataConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PrivacyConfig",
    "RunConfig",
    "TrainConfig",
]

SAMPLINGS = ("poisson", "truncated", "fixed", "full")


@dataclass(frozen=True)
class DataConfig:
    """The data set.

    Args:
        name: a name in `dpjax.data.DATASETS`.
        scale: "standard" (the customary mean and deviation of the channels) or "unit" (0 to 1).
        examples: N, filled in when the experiment is resolved; a run goes on with as many only.
    """

    name: str = "digits"
    scale: str = "standard"
    examples: int | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        _text("data.name", self.name)
        _checks.choice("data.scale", self.scale, ("standard", "unit"))
        if self.examples is not None:
            _checks.integer("data.examples", self.examples, at_least=1)


@dataclass(frozen=True)
class ModelConfig:
    """The network.

    Args:
        name: a name in `dpjax.models.MODELS`.
        weights: an .npz file, as `dpjax export` writes it, to start from; what it lacks is new.
        weights_sha256: the file's hash, filled in when the experiment is resolved.
        trainable: the parameters that are trained, by the beginning of their paths; empty for all.
            The others are frozen: neither clipped nor noised.
        options: the constructor's own arguments.
    """

    name: str = "mlp"
    weights: str | None = None
    weights_sha256: str | None = None
    trainable: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the fields."""
        _text("model.name", self.name)
        for name in ("weights", "weights_sha256"):
            if getattr(self, name) is not None:
                _text(f"model.{name}", getattr(self, name))
        object.__setattr__(self, "trainable", _texts("model.trainable", self.trainable))


@dataclass(frozen=True)
class OptimizerConfig:
    """The optax optimizer behind the private gradient.

    Args:
        name: an optimizer in optax.
        learning_rate: a number, or a table with the name and arguments of an optax schedule.
        options: the optimizer's other arguments.
    """

    name: str = "adam"
    learning_rate: Any = 1e-3
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the fields."""
        _text("optimizer.name", self.name)
        if not isinstance(self.learning_rate, dict):
            rate = _checks.positive("optimizer.learning_rate", self.learning_rate)
            object.__setattr__(self, "learning_rate", rate)


@dataclass(frozen=True)
class TrainConfig:
    """The loop.

    Args:
        batch_size: B, the expected batch size; every example for "full" sampling.
        epochs: E; ceil(E N / B) steps. One of `epochs` and `steps`.
        steps: T.
        sampling: "poisson", "truncated", "fixed" or "full".
        max_size: the largest batch, for "truncated".
        chunk: rows per pass of the gradient engine.
        engine: the gradient engine.
        ema: decay of an average of the parameters, which is then evaluated; None for none.
        augment: names in `dpjax.train.augment.AUGMENTATIONS`, applied in order.
        multiplicity: K, augmented copies per example: their mean loss has one clipped gradient.
    """

    batch_size: int | None = None
    epochs: float | None = None
    steps: int | None = None
    sampling: str = "poisson"
    max_size: int | None = None
    chunk: int = 64
    engine: str = "vmap"
    ema: float | None = None
    augment: tuple[str, ...] = ()
    multiplicity: int = 1

    def __post_init__(self) -> None:
        """Checks the fields, and those that exclude each other."""
        if self.batch_size is not None:
            _checks.batch_size("train.batch_size", self.batch_size)
        for name in ("batch_size", "steps", "max_size"):
            if getattr(self, name) is not None:
                _checks.integer(f"train.{name}", getattr(self, name), at_least=1)
        _checks.integer("train.chunk", self.chunk, at_least=1)
        _checks.integer("train.multiplicity", self.multiplicity, at_least=1)
        # As floats, so that 10 and 10.0 are the same experiment.
        if self.epochs is not None:
            object.__setattr__(self, "epochs", _checks.positive("train.epochs", self.epochs))
        if self.ema is not None:
            object.__setattr__(self, "ema", _checks.fraction("train.ema", self.ema))
        _checks.choice("train.sampling", self.sampling, SAMPLINGS)
        _checks.choice("train.engine", self.engine, ENGINES)
        object.__setattr__(self, "augment", _texts("train.augment", self.augment))
        self._check_together()

    def _check_together(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            given = f"epochs = {self.epochs}, steps = {self.steps}"
            raise ValueError(f"train: {given}: expected one of them")
        if (self.sampling == "truncated") != (self.max_size is not None):
            raise ValueError(
                f"train.max_size = {self.max_size} with sampling = {self.sampling!r}: expected "
                "the two of max_size and sampling = 'truncated' together"
            )
        if self.sampling == "full" and self.batch_size is not None:
            raise ValueError(
                f"train.batch_size = {self.batch_size} with sampling = 'full': expected none, "
                "every example is in every batch"
            )
        if self.sampling != "full" and self.batch_size is None:
            raise ValueError("train.batch_size: missing; expected a number, as 256")
        if self.multiplicity > 1 and not self.augment:
            raise ValueError(
                f"train.multiplicity = {self.multiplicity}: expected names in train.augment with it"
            )


@dataclass(frozen=True)
class PrivacyConfig:
    """The budget.

    Args:
        epsilon: with a method that has no noise_multiplier, the noise is calibrated to it; with
            one that has, training stops before more is spent. None sets no limit.
        delta: a number, or "1/N".
        accountant: who counts: "pld" or "rdp", since a budget is a guarantee.
        unit: what one example stands for.
    """

    epsilon: float | None = None
    delta: float | str = "1/N"
    accountant: str = "pld"
    unit: str = "one example"

    def __post_init__(self) -> None:
        """Checks the fields."""
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", _checks.positive("privacy.epsilon", self.epsilon))
        if self.delta != "1/N":
            object.__setattr__(self, "delta", _checks.fraction("privacy.delta", self.delta))
        _checks.choice("privacy.accountant", self.accountant, ("pld", "rdp"))
        _text("privacy.unit", self.unit)


@dataclass(frozen=True)
class RunConfig:
    """What changes no number that is released, but for the seed.

    Other devices, or data on the host, add float32 numbers in another order.

    Args:
        seed: None draws the keys from the operating system. A seed makes the noise reproducible,
            and such a run must not be published.
        seeds: how many members are trained side by side, each with keys of its own.
        evaluate_every: steps between evaluations; None for an epoch.
        checkpoint_every: steps between checkpoints; None for about a minute.
        diagnostics: whether non-private numbers are written too, to files of their own.
        data: "device", "host", or "auto", which keeps the data on the device if they fit.
        devices: how many devices share each batch.
    """

    seed: int | None = None
    seeds: int = 1
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    diagnostics: bool = False
    data: str = "auto"
    devices: int = 1

    def __post_init__(self) -> None:
        """Checks the fields."""
        if self.seed is not None and _checks.integer("run.seed", self.seed, at_least=0) >= 2**32:
            raise ValueError(f"run.seed = {self.seed}: expected less than 2^32, as JAX takes them")
        for name in ("seeds", "devices"):
            _checks.integer(f"run.{name}", getattr(self, name), at_least=1)
        for name in ("evaluate_every", "checkpoint_every"):
            if getattr(self, name) is not None:
                _checks.integer(f"run.{name}", getattr(self, name), at_least=1)
        if not isinstance(self.diagnostics, bool):
            raise TypeError(f"run.diagnostics = {self.diagnostics!r}: expected true or false")
        _checks.choice("run.data", self.data, ("auto", "device", "host"))
        if self.seeds > 1 and (self.devices > 1 or self.data == "host"):
            raise ValueError(
                f"run.seeds = {self.seeds} with devices = {self.devices} and data = {self.data!r}: "
                "expected one device that holds the data; train the seeds one by one otherwise"
            )
        if self.devices > 1 and self.data == "host":
            raise ValueError(
                f"run.data = 'host' with devices = {self.devices}: expected one device, or data "
                "that the devices hold"
            )


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"{name} = {value!r}: expected a name")


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise TypeError(f"{name} = {value!r}: expected a list of names")
    for item in value:
        _text(name, item)
    return tuple(value)
