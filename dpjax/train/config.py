"""An experiment as a frozen record: the data, network, method, training and privacy budget."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dpjax import _checks, _toml
from dpjax._toml import Table
from dpjax.gradients import ENGINES

__all__ = [
    "DIGITS",
    "DataConfig",
    "Experiment",
    "ModelConfig",
    "OptimizerConfig",
    "PrivacyConfig",
    "RunConfig",
    "TrainConfig",
]

SAMPLINGS = ("poisson", "truncated", "fixed", "full")

BUDGET_ACCOUNTANTS = ("pld", "rdp")
"""Those whose epsilon is a guarantee under every sampling that they know."""


@dataclass(frozen=True)
class DataConfig:
    """The data set.

    Args:
        name: a name in `dpjax.data.DATASETS`; or ``"module:function"``, your own function that
            returns a `dpjax.data.Dataset`; or, with `path`, any name for the data.
        path: your own file: .npz, .csv or .parquet, as `dpjax.data.read_file` reads it.
        scale: "standard" (the usual mean and deviation of the channels) or "unit" (0 to 1).
        length: the number of tokens per text example; None for the data set's default.
        examples: N, filled in when the experiment is resolved; a run resumes only with the same N.

    Example:
        >>> DataConfig("mnist", scale="unit").name
        'mnist'
    """

    name: str = "digits"
    path: str | None = None
    scale: str = "standard"
    length: int | None = None
    examples: int | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        _text("data.name", self.name)
        if self.path is not None:
            _text("data.path", self.path)
        _checks.choice("data.scale", self.scale, ("standard", "unit"))
        if self.length is not None:
            _checks.integer("data.length", self.length, at_least=1)
        if self.examples is not None:
            _checks.integer("data.examples", self.examples, at_least=1)


@dataclass(frozen=True)
class ModelConfig:
    """The network.

    Args:
        name: a name in `dpjax.models.MODELS`.
        weights: an .npz file of initial parameters, as written by `dpjax export`; parameters
            that it lacks are initialised as usual.
        weights_sha256: the file's hash, filled in when the experiment is resolved.
        pretrained: a Hugging Face directory to start from; its config.json determines the network,
            and `name` is ignored.
        pretrained_sha256: the hash of its weights, filled in when the experiment is resolved.
        lora: a table of `dpjax.models.LoRA`'s arguments, to train low-rank updates of frozen
            kernels.
        trainable: the parameters that are trained, as in `dpjax.models.split`; empty for all. The
            others are frozen: neither clipped nor noised.
        options: the network constructor's other arguments.

    Example:
        >>> ModelConfig("mlp", trainable=["dense/1"], options={"hidden": 32}).trainable
        ('dense/1',)
    """

    name: str = "mlp"
    weights: str | None = None
    weights_sha256: str | None = None
    pretrained: str | None = None
    pretrained_sha256: str | None = None
    lora: Table | None = None
    trainable: tuple[str, ...] = ()
    options: Table = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the fields."""
        _text("model.name", self.name)
        for name in ("weights", "weights_sha256", "pretrained", "pretrained_sha256"):
            if getattr(self, name) is not None:
                _text(f"model.{name}", getattr(self, name))
        if self.weights is not None and self.pretrained is not None:
            raise ValueError("model.weights and model.pretrained: expected one of them")
        if self.lora is not None:
            if not isinstance(self.lora, Mapping):
                raise TypeError(f"model.lora = {self.lora!r}: expected a table, as {{rank = 8}}")
            for key in self.lora:
                _checks.choice("model.lora", key, ("rank", "alpha", "kernels"))
        object.__setattr__(self, "trainable", _texts("model.trainable", self.trainable))


@dataclass(frozen=True)
class OptimizerConfig:
    """The optax optimizer that follows the private gradient.

    Args:
        name: the name of an optimizer in optax.
        learning_rate: a number, or a table with the name and arguments of an optax schedule.
        options: the optimizer's other arguments.

    Example:
        >>> OptimizerConfig("sgd", learning_rate=1, options={"momentum": 0.9}).learning_rate
        1.0
    """

    name: str = "adam"
    learning_rate: float | Table = 1e-3
    options: Table = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the fields."""
        _text("optimizer.name", self.name)
        if not isinstance(self.learning_rate, dict):
            rate = _checks.positive("optimizer.learning_rate", self.learning_rate)
            object.__setattr__(self, "learning_rate", rate)


@dataclass(frozen=True)
class TrainConfig:
    """The training loop.

    Args:
        batch_size: B, the expected batch size; every example for "full" sampling.
        epochs: E; the run takes ceil(E N / B) steps. Give either `epochs` or `steps`.
        steps: T.
        sampling: "poisson", "truncated", "fixed" or "full".
        max_size: the size of the largest batch, for "truncated".
        chunk: rows per pass of the gradient engine.
        engine: the gradient engine.
        ema: the decay of a moving average of the parameters, which is then what is evaluated; None
            for no average.
        augment: names in `dpjax.data.augment.AUGMENTATIONS`, applied in order.
        multiplicity: K, the number of augmented copies per example; their mean loss has one clipped
            gradient.
        precision: "bfloat16" to run the network in it; parameters, losses, clipping and noise
            stay in float32. None for float32.
        cache_frozen: compute the outputs of the frozen blocks before the first trained one only
            once, store them on disk and train from them; the clipped gradients are the same.

    Example:
        >>> TrainConfig(batch_size=64, epochs=3).sampling
        'poisson'
        >>> TrainConfig(batch_size=64)
        Traceback (most recent call last):
        ...
        ValueError: train: epochs = None, steps = None: expected one of them
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
    precision: str | None = None
    cache_frozen: bool | None = None

    def __post_init__(self) -> None:
        """Checks the fields, also against each other."""
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
        if self.cache_frozen not in (None, True, False):
            raise TypeError(f"train.cache_frozen = {self.cache_frozen!r}: expected true or false")
        if self.precision is not None:
            _checks.choice("train.precision", self.precision, ("bfloat16",))
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
    """The privacy budget.

    Args:
        epsilon: if the method has no noise_multiplier, the noise is calibrated to this; if it has
            one, training stops before exceeding it. None sets no limit.
        delta: a number, or "1/N".
        accountant: "pld" or "rdp"; others are refused, because a budget is a guarantee.
        unit: what one example stands for, in words for the privacy statement.

    Example:
        >>> PrivacyConfig(epsilon=2, delta=1e-5)
        PrivacyConfig(epsilon=2.0, delta=1e-05, accountant='pld', unit='one example')
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
        _checks.choice("privacy.accountant", self.accountant, BUDGET_ACCOUNTANTS)
        _text("privacy.unit", self.unit)


@dataclass(frozen=True)
class RunConfig:
    """Where and how a run takes place; except for the seed, not part of the experiment.

    Other devices, or data on the host, change what is released only by the rounding of sums.
    Diagnostics, traces and timings are further outputs, which have no privacy guarantee.

    Args:
        seed: None draws the keys from the operating system's entropy. A seed makes the noise
            reproducible, so a run with a seed must not be published.
        seeds: the number of members trained side by side, each with its own keys.
        evaluate_every: steps between evaluations; None for one epoch.
        checkpoint_every: steps between checkpoints; None for about a minute.
        diagnostics: whether to write non-private numbers too, to separate files.
        data: "device", "host", or "auto", which keeps the data on the device if they fit.
        cache_dir: where ``train.cache_frozen`` stores states; None for ``frozen_states`` in the
            directory of the data sets. They are as private as the data.
        cache_limit: the maximum size of a file of states, in GB.
        tensorboard: whether to write the released numbers to TensorBoard too, in ``tensorboard/``.
        trace: two steps between which JAX's profiler records the devices, in ``trace/``.
        mesh: the number of devices along each axis, such as {data = 8}; rows are split over the
            axis "data". If empty, one device or, with several processes, all of theirs.
        sharding: rules for parameters that are split over other mesh axes: maps a pattern for their
            paths to one mesh axis, or "", for each axis of the parameter.

    Example:
        >>> RunConfig(seeds=3, mesh={"data": 2})
        Traceback (most recent call last):
        ...
        ValueError: run.seeds = 3 with mesh = {'data': 2} and data = 'auto': expected one device ...
    """

    seed: int | None = None
    seeds: int = 1
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    diagnostics: bool = False
    data: str = "auto"
    cache_dir: str | None = None
    cache_limit: float = 10.0
    tensorboard: bool = False
    trace: tuple[int, ...] = ()
    mesh: Mapping[str, int] = field(default_factory=dict)
    sharding: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the fields."""
        if self.seed is not None and _checks.integer("run.seed", self.seed, at_least=0) >= 2**32:
            raise ValueError(f"run.seed = {self.seed}: expected less than 2^32, as JAX takes them")
        _checks.integer("run.seeds", self.seeds, at_least=1)
        for name in ("evaluate_every", "checkpoint_every"):
            if getattr(self, name) is not None:
                _checks.integer(f"run.{name}", getattr(self, name), at_least=1)
        for name in ("diagnostics", "tensorboard"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"run.{name} = {getattr(self, name)!r}: expected true or false")
        if self.cache_dir is not None:
            _text("run.cache_dir", self.cache_dir)
        object.__setattr__(
            self, "cache_limit", _checks.positive("run.cache_limit", self.cache_limit)
        )
        self._check_trace()
        _checks.choice("run.data", self.data, ("auto", "device", "host"))
        self._check_mesh()
        if self.seeds > 1 and (self.mesh or self.data == "host"):
            raise ValueError(
                f"run.seeds = {self.seeds} with mesh = {dict(self.mesh)} and data = {self.data!r}: "
                "expected one device that holds the data; train the seeds one by one otherwise"
            )

    def _check_trace(self) -> None:
        if not isinstance(self.trace, list | tuple):
            raise TypeError(f"run.trace = {self.trace!r}: expected two steps, as [100, 110]")
        object.__setattr__(self, "trace", tuple(self.trace))
        for step in self.trace:
            _checks.integer("run.trace", step, at_least=0)
        if self.trace and (len(self.trace) != 2 or self.trace[0] >= self.trace[1]):
            raise ValueError(f"run.trace = {list(self.trace)}: expected two steps, as [100, 110]")

    def _check_mesh(self) -> None:
        for name in ("mesh", "sharding"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(f"run.{name} = {getattr(self, name)!r}: expected a table")
        for axis, size in self.mesh.items():
            _checks.integer(f"run.mesh.{axis}", size, at_least=1)
        for pattern, axes in self.sharding.items():
            if isinstance(axes, str) or not isinstance(axes, list | tuple):
                raise TypeError(
                    f"run.sharding.{pattern} = {axes!r}: expected a list with an axis of run.mesh "
                    'or "" for each axis of the parameter'
                )
            for axis in axes:
                if axis and axis not in self.mesh:
                    raise ValueError(
                        f"run.sharding.{pattern} = {list(axes)}: "
                        f"{_checks.nearest(str(axis), self.mesh)}"
                    )


_OPEN = ("model", "optimizer")  # tables that also hold arguments of the model or optimizer


@dataclass(frozen=True)
class Experiment:
    """One experiment; a TOML file has a table for each field, and all have defaults.

    Args:
        data: the data set.
        model: the network.
        method: a table: the name of a constructor in `dpjax.methods` with its arguments, or a
            method in plain form.
        optimizer: the optimizer.
        train: the training loop.
        privacy: the privacy budget.
        run: seeds, evaluations and devices.

    Example:
        >>> experiment = Experiment.from_plain({"method": {"name": "auto_s"}})
        >>> experiment.set("optimizer.learning_rate", 0.01).optimizer.learning_rate
        0.01
        >>> Experiment.from_plain({"train": {"batchsize": 64}})
        Traceback (most recent call last):
        ...
        ValueError: train.batchsize: unknown; did you mean 'batch_size'? (known: augment, ...)
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: Table = field(default_factory=lambda: {"name": "dp_sgd", "threshold": 1.0})
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(batch_size=256, epochs=10))
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @classmethod
    def from_plain(cls, plain: Table) -> Self:
        """Builds an experiment from plain data; an unknown key raises, with the nearest name.

        Args:
            plain: a table of tables, as in TOML; anything left out gets its default.

        Returns:
            The experiment.

        Raises:
            ValueError: if a key is unknown or a value is invalid; names it.
            TypeError: if a value has the wrong type; names it.
        """
        if not isinstance(plain, Mapping):
            raise TypeError(f"experiment = {plain!r}: expected a table of tables")
        sections = {f.name: f for f in dataclasses.fields(cls)}
        for key in plain:
            if key not in sections:
                raise ValueError(f"{key}: unknown; {_checks.nearest(str(key), sections)}")
        values: dict[str, Any] = {}
        for name, table in plain.items():
            if name == "method" and isinstance(table, str):
                table = {"name": table}  # noqa: PLW2901
            if not isinstance(table, Mapping):
                raise TypeError(f"{name} = {table!r}: expected a table")
            values[name] = dict(table) if name == "method" else _section(name, table)
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Reads a TOML file.

        Args:
            path: a TOML file.

        Returns:
            The experiment.

        Raises:
            ValueError: if the file is not valid TOML, a key is unknown, or a value is invalid;
                names the file.
            TypeError: if a value has the wrong type; names the file.
        """
        try:
            return cls.from_plain(_toml.read(path))
        except (TypeError, ValueError) as error:
            if str(error).startswith(str(path)):
                raise
            raise type(error)(f"{path}: {error}") from error

    def to_plain(self) -> dict[str, Any]:
        """Returns the experiment as plain data, with every default written out."""
        plain: dict[str, Any] = {}
        for section in dataclasses.fields(self):
            value = getattr(self, section.name)
            plain[section.name] = dict(value) if section.name == "method" else _plain(value)
        return plain

    def to_toml(self) -> str:
        """Returns the experiment as TOML."""
        return _toml.dumps(self.to_plain())

    def set(self, path: str, value: object) -> Self:
        """Returns a copy with the value at a path such as "train.batch_size" changed.

        Args:
            path: a table and a key in it, such as "train.batch_size".
            value: its new value.
        """
        return self.with_values({path: value})

    def with_values(self, values: Table) -> Self:
        """Returns a copy with the values at several paths changed, checked together.

        The value "none" removes an entry: it is then absent, or its default applies.

        Args:
            values: the new values by path.

        Raises:
            ValueError: if a path is unknown, or the values contradict each other; names them.
        """
        if {"train.epochs", "train.steps"} <= values.keys():
            given = {name: values[f"train.{name}"] for name in ("epochs", "steps")}
            raise ValueError(
                f"train: epochs = {given['epochs']}, steps = {given['steps']}: expected one of them"
            )
        plain = self.to_plain()
        for path, value in values.items():
            section, dot, key = path.partition(".")
            if not dot or not key:
                raise ValueError(f"{path}: expected a path such as train.batch_size")
            if section not in plain:
                raise ValueError(f"{path}: {section}: unknown; {_checks.nearest(section, plain)}")
            _give_way(plain, path, value)
        for path, value in values.items():
            section, _, key = path.partition(".")
            _put(plain[section], key.split("."), value, path)
        return self.from_plain(plain)

    @property
    def identity(self) -> str:
        """A hash of everything that determines what is released: every table except `run`.

        It is folded into the keys, so that the same noise never covers two different signals.
        """
        plain = self.to_plain()
        del plain["run"]
        plain["data"].pop("path", None)
        for name in ("weights", "pretrained"):  # identified by their hashes, not by their paths
            if f"{name}_sha256" in plain["model"]:
                del plain["model"][name]
        text = json.dumps(plain, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


_SECTIONS: dict[str, type[Any]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "train": TrainConfig,
    "privacy": PrivacyConfig,
    "run": RunConfig,
}


def _section(name: str, table: Table) -> Any:
    cls = _SECTIONS[name]
    known = {f.name for f in dataclasses.fields(cls)} - {"options"}
    rest = {key: value for key, value in table.items() if key not in known}
    own = {key: value for key, value in table.items() if key in known}
    if name in _OPEN:
        tables = {key: value for key, value in own.items() if isinstance(value, Mapping)}
        _refuse_not_finite(name, rest | tables)
        return cls(**own, options=rest)
    for key in rest:
        raise ValueError(f"{name}.{key}: unknown; {_checks.nearest(str(key), known)}")
    return cls(**own)


def _refuse_not_finite(path: str, value: object) -> None:
    """Refuses NaN and infinity anywhere in a value, so that its users need not check."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_not_finite(f"{path}.{key}", item)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _refuse_not_finite(f"{path}[{i}]", item)
    elif isinstance(value, float):
        _checks.finite(path, value)


def _plain(section: Any) -> dict[str, Any]:
    """Returns a section as a table; fields that are None are left out (TOML has no null)."""
    plain: dict[str, Any] = {}
    for f in dataclasses.fields(section):
        value = getattr(section, f.name)
        if f.name == "options":
            plain.update(value)
        elif isinstance(value, Mapping) and f.name != "learning_rate":
            plain |= {f.name: dict(value)} if value else {}
        elif value is not None and (f.name, value) != ("trace", ()):
            plain[f.name] = list(value) if isinstance(value, tuple) else value
    return plain


def _give_way(plain: dict[str, Any], path: str, value: object) -> None:
    """Removes the settings that a new value replaces or rules out."""
    if path == "train.epochs":
        plain["train"].pop("steps", None)
    if path == "train.steps":
        plain["train"].pop("epochs", None)
    if path == "train.sampling" and value == "full":
        plain["train"].pop("batch_size", None)
    if path == "train.sampling" and value != "truncated":
        plain["train"].pop("max_size", None)
    if path == "method.name" and plain["method"].get("name") != value:
        plain["method"] = {}  # another constructor takes other arguments


def _put(table: dict[str, Any], keys: list[str], value: object, path: str) -> None:
    for key in keys[:-1]:
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{path}: expected a table at {key!r}, found {inner!r}")
        table[key] = table = dict(inner)
    if value == "none":
        table.pop(keys[-1], None)
    else:
        table[keys[-1]] = value


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"{name} = {value!r}: expected a name")


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise TypeError(f"{name} = {value!r}: expected a list of names")
    for item in value:
        _text(name, item)
    return tuple(value)


DIGITS = Experiment(
    method={"name": "dp_sgd"},
    optimizer=OptimizerConfig("adam", 5e-3),
    train=TrainConfig(batch_size=512, epochs=40),
    privacy=PrivacyConfig(epsilon=4.0),
)
"""1,437 images of 8x8 digits, a network of one hidden layer, epsilon 4 at delta 1/N."""
