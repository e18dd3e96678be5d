"""The request of an accounting command: an experiment, as `dpjax train` reads it, and more."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpjax import _checks, _toml
from dpjax.accounting.relation import ACCOUNTANTS, SUPPORTED, as_relation
from dpjax.cli.experiment import check_arguments, load_data, with_method
from dpjax.cli.flags import assignment
from dpjax.data.registry import source_of
from dpjax.train.config import Experiment
from dpjax.train.plan import Setting, resolve, setting_of

__all__ = ["Request", "read_request"]

# The fields of an experiment that have their own flags.
_PATHS = {
    "dataset_size": "data.examples",
    "noise_multiplier": "method.noise_multiplier",
    "sampling": "train.sampling",
    "batch_size": "train.batch_size",
    "max_size": "train.max_size",
    "steps": "train.steps",
    "epochs": "train.epochs",
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
}


@dataclass(frozen=True)
class Request:
    """An experiment, and what a command should print about it.

    Args:
        experiment: the experiment, with the size of its data unless that is unknown.
        accountant: names of accountants to ask, or "all"; empty for the experiment's own, which
            determines what runs in any case.
        relation: the neighbouring relation; None for the sampler's own.
        start: the number of steps released before.
        delta_is_default: whether delta is 1 / N because neither file nor flags give it.
        runs: the number of such runs that are published.
        candidates: the number of candidates in a search.
        mean: the expected number of runs in a repeated search; None for two per candidate.
    """

    experiment: Experiment
    accountant: tuple[str, ...] = ()
    relation: str | None = None
    start: int = 0
    delta_is_default: bool = False
    runs: int = 1
    candidates: int | None = None
    mean: float | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        _checks.integer("start", self.start, at_least=0)
        _checks.integer("runs", self.runs, at_least=1)
        if self.candidates is not None:
            _checks.integer("candidates", self.candidates, at_least=1)
        if self.mean is not None:
            _checks.positive("mean", self.mean)
        for name in self.accountant:
            _checks.choice("accountant", name, (*ACCOUNTANTS, "all"))

    @property
    def epsilon(self) -> float:
        """The budget; raises ValueError if there is none."""
        if self.experiment.privacy.epsilon is None:
            raise ValueError("epsilon: missing; expected --epsilon, or privacy.epsilon in the file")
        return self.experiment.privacy.epsilon

    def asked(self) -> Setting:
        """Returns the run as requested, for commands that search for its noise."""
        experiment = self._whole()
        return self._viewed(setting_of(experiment, experiment.data.examples))

    def resolved(self) -> Setting:
        """Returns what `dpjax train` would run, with the noise and the steps the budget allows."""
        experiment = self._whole()
        size = experiment.data.examples
        if size is None:
            return self._viewed(setting_of(experiment, None))
        return self._viewed(resolve(experiment, size))

    def accountants(self, setting: Setting) -> tuple[str, ...]:
        """Returns the accountants to ask, each once."""
        works = SUPPORTED[type(setting.sampling)][as_relation(self.relation, setting.sampling)]
        named = [
            name for entry in self.accountant for name in (works if entry == "all" else (entry,))
        ]
        return tuple(dict.fromkeys(named)) or (setting.accountant,)

    def _whole(self) -> Experiment:
        """Returns the experiment with the steps that were released before it."""
        if not self.start:
            return self.experiment
        steps = setting_of(self.experiment, self.experiment.data.examples).steps
        return self.experiment.set("train.steps", self.start + steps)

    def _viewed(self, setting: Setting) -> Setting:
        if not self.start < setting.steps:
            raise ValueError(
                f"start = {self.start}: expected fewer than the {setting.steps} steps that "
                "privacy.epsilon allows"
            )
        return replace(
            setting,
            steps=setting.steps - self.start,
            asked=setting.asked - self.start,
            start=self.start,
            accountant=self.accountants(setting)[0],
            relation=as_relation(self.relation, setting.sampling).name.lower(),
        )


def read_request(args: argparse.Namespace) -> Request:
    """Returns the request for a command's arguments.

    A file is an experiment, as `dpjax train` reads it, with the same defaults. It may also be a
    single mechanism, as in configs/methods and as written by `dpjax calibrate --output`; the flags
    then give the rest, as they do without a file.
    """
    flags = vars(args)
    file = {} if args.config is None else _toml.read(args.config)
    alone = args.config is None or "kind" in file
    if alone:
        _check_complete(flags, file)
        experiment = Experiment(method=file or {"name": flags["method"]})
    else:
        experiment = Experiment.from_file(args.config)
    experiment = with_method(experiment, flags.get("method"))
    changes = {f"method.{key}": value for key, value in map(assignment, flags.get("set", ()))}
    changes |= {path: flags[flag] for flag, path in _PATHS.items() if flag in flags}
    check_arguments(experiment, changes)
    if flags.get("sampling") == "fixed":
        changes["privacy.accountant"] = "rdp"  # the only one for budgets that supports it
    experiment = experiment.with_values(changes)
    if not alone:
        experiment = experiment.set("data.examples", _dataset_size(experiment))
    names = tuple(flags.get("accountant", ()))
    own = ("relation", "start", "runs", "candidates", "mean")
    given = {key: flags[key] for key in own if key in flags}
    default = "delta" not in flags and "delta" not in file.get("privacy", {})
    return Request(experiment, names, delta_is_default=default, **given)


def _check_complete(flags: Mapping[str, Any], method: Mapping[str, Any]) -> None:
    """Raises ValueError unless the flags give everything that an experiment would."""
    if not method and "method" not in flags:
        raise ValueError(
            "method: missing; expected --method NAME, or --config with an experiment or a method"
        )
    needed: list[tuple[str, ...]] = [("steps", "epochs")]
    if flags.get("sampling") != "full":
        needed += [("dataset_size",), ("batch_size",)]
    elif "delta" not in flags:
        needed += [("dataset_size",)]
    for names in needed:
        if not any(name in flags for name in names):
            written = " or ".join(f"--{name.replace('_', '-')}" for name in names)
            raise ValueError(
                f"{names[0]}: missing; expected {written}, or --config with an experiment"
            )


def _dataset_size(experiment: Experiment) -> int:
    """Returns N as `dpjax train` finds it; reads the data only if nothing else gives it."""
    config = experiment.data
    if config.examples is not None:
        return config.examples
    if config.path is None and ":" in config.name:
        raise ValueError(
            f"data.examples: missing; expected --dataset-size, since {config.name} is not called "
            "for its data here"
        )
    known = None if config.path is not None else source_of(config.name).examples[0]
    return load_data(experiment).size if known is None else known
