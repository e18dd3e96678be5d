"""Resolves an experiment, given the size of its data: method, sampling, steps and optimizer."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import optax

from dpjax import _checks, accounting
from dpjax.accounting import Ledger, Steps
from dpjax.accounting.calibration import largest_integer
from dpjax.accounting.missing_mass import NoEpsilonError
from dpjax.accounting.relation import SUPPORTED, relation_of
from dpjax.mechanism import Mechanism, Release
from dpjax.methods.table import build_method
from dpjax.sampling import FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson
from dpjax.schedules import steps_of
from dpjax.train.config import BUDGET_ACCOUNTANTS, Experiment, OptimizerConfig, TrainConfig

__all__ = ["Plan", "Setting", "build_optimizer", "resolve", "setting_of"]

# The arguments of a schedule that default to the length of the run.
_LENGTHS = ("decay_steps", "transition_steps")

# Not usable here: parts of optimizers, one that evaluates the loss at several points, and one that
# adds noise itself.
_UNFIT = ("scale_by_learning_rate", "scale_by_rprop", "scale_by_schedule", "lbfgs", "noisy_sgd")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is accounted for: the method, the batches, the number of steps and delta.

    Attributes:
        method: the method that is run and accounted.
        sampling: the sampling that draws the batches.
        dataset_size: N; None for full batches of data of unknown size.
        batch_size: B, the expected batch size; None if N is unknown.
        steps: T, the number of steps to release.
        asked: the number asked for, of which the budget may allow fewer.
        start: the number of steps of the run that were released before these.
        delta: the target delta.
        accountant: the accountant's name.
        relation: the neighbouring relation, such as "add_or_remove_one".
    """

    method: Release
    sampling: Sampling
    dataset_size: int | None
    batch_size: float | None
    steps: int
    asked: int
    start: int = 0
    delta: float
    accountant: str
    relation: str

    @property
    def steps_per_epoch(self) -> float:
        """N / B."""
        return _steps_per_epoch(self.dataset_size, self.batch_size)

    @property
    def stopped_early(self) -> bool:
        """Whether the budget allows fewer steps than the experiment asked for."""
        return self.steps < self.asked

    @property
    def name(self) -> str:
        """The method's name, for files and tables."""
        return self.method.name or "mechanism"

    @property
    def mechanism(self) -> Mechanism:
        """The method, for the accounting; raises ValueError if it has no guarantee."""
        if not isinstance(self.method, Mechanism):
            raise ValueError(f"method {self.method.name}: {self.method.guarantee.statement}")
        return self.method


@dataclass(frozen=True, kw_only=True)
class Plan(Setting):
    """A resolved experiment on data of a given size, with as many steps as the budget allows.

    Attributes:
        method: the method that is run and accounted.
        sampling: the sampling that draws the batches.
        dataset_size: N.
        batch_size: B, the expected batch size.
        steps: T, the number of steps the budget allows.
        asked: the number asked for.
        start: the number of steps of the run that were released before these.
        delta: the target delta.
        accountant: the accountant's name.
        relation: the neighbouring relation.
        experiment: the experiment, resolved: with a calibrated method in plain form, the number of
            steps, and delta as a number. Resolving it again changes nothing.
    """

    experiment: Experiment
    dataset_size: int
    batch_size: float

    @property
    def private(self) -> bool:
        """Whether there is anything to account for."""
        return self.method.guarantee.private

    def ledger(self, step: int = 0, before: Ledger | None = None, start: int = 0) -> Ledger:
        """Returns the ledger of everything released about the data set up to a step.

        Args:
            step: the total number of steps taken.
            before: what was released before this plan took over; None for nothing.
            start: the step at which this plan took over.
        """
        if before is None:
            before = Ledger(self.experiment.data.name, self.experiment.privacy.unit)
        if step == start or not isinstance(self.method, Mechanism):
            return before
        return before.add(Steps(self.method, self.sampling, step - start, start))

    def epsilon(self, ledger: Ledger) -> float:
        """Returns the epsilon of a ledger; infinite if none holds at this delta."""
        try:
            return ledger.upper_epsilon(self.delta, self.accountant)
        except NoEpsilonError:
            return math.inf

    def within_budget(self, before: Ledger | None = None, start: int = 0) -> "Plan":
        """Returns the plan with as many of its steps as the budget allows.

        Args:
            before: what was released before this plan takes over; None for nothing.
            start: the step at which this plan takes over.

        Raises:
            ValueError: if the budget does not allow even one step.
        """
        limit, most = self.experiment.privacy.epsilon, self.asked - start
        if limit is None or not isinstance(self.method, Mechanism):
            return replace(self, steps=self.asked)

        def fits(steps: int) -> bool:
            return self.epsilon(self.ledger(start + steps, before, start)) <= limit

        allowed = most if fits(most) else largest_integer(fits, most)
        if not allowed:
            spent = f"more, all of it was spent on the {start} steps before"
            little = f"noise multiplier {self.method.noise_multiplier!r}"
            enough = f"enough for one step of {self.name} at {little}"
            raise ValueError(f"privacy.epsilon = {limit:g}: expected {spent if start else enough}")
        return replace(self, steps=start + allowed)


def resolve(experiment: Experiment, dataset_size: int) -> Plan:
    """Returns the plan of an experiment, with calibrated noise and a number of steps.

    Args:
        experiment: the experiment.
        dataset_size: N, the number of private examples.

    Raises:
        ValueError: if the settings contradict each other or N, or if no amount of noise meets the
            budget.

    Example:
        >>> experiment = Experiment().set("privacy.epsilon", 2.0)
        >>> plan = resolve(experiment, dataset_size=1437)
        >>> plan.steps, plan.method.name, 1.0 < plan.method.noise_multiplier < 3.0
        (57, 'dp_sgd', True)
        >>> resolve(plan.experiment, 1437).experiment == plan.experiment
        True
    """
    setting = setting_of(experiment, dataset_size)
    method, calibrated = _with_noise(setting, experiment.privacy.epsilon)
    resolved = replace(
        experiment,
        data=replace(experiment.data, examples=dataset_size),
        method=method.to_plain(),
        train=replace(experiment.train, epochs=None, steps=setting.steps),
        privacy=replace(experiment.privacy, delta=setting.delta),
    )
    plan = Plan(**{**vars(setting), "method": method, "experiment": resolved})
    return plan if calibrated else plan.within_budget()


def setting_of(experiment: Experiment, dataset_size: int | None) -> Setting:
    """Returns an experiment's setting as asked for, before the budget decides on noise and steps.

    Args:
        experiment: the experiment.
        dataset_size: N, the number of private examples; full batches do not need it.

    Example:
        >>> setting = setting_of(Experiment(), dataset_size=1437)
        >>> setting.steps, setting.relation, setting.method.noise_multiplier
        (57, 'add_or_remove_one', None)
    """
    config, data = experiment.train, experiment.data
    if data.examples not in (None, dataset_size):
        raise ValueError(
            f"data.examples = {data.examples}: expected {dataset_size}, as many as {data.name} has"
        )
    sampling = _sampling(config, dataset_size)
    batch_size = config.batch_size or dataset_size
    per_epoch = _steps_per_epoch(dataset_size, batch_size)
    if config.epochs is not None and not config.epochs * per_epoch < 2**31:
        raise ValueError(f"train.epochs = {config.epochs:g}: expected fewer than 2^31 steps")
    steps = config.steps or steps_of(config.epochs or 0.0, per_epoch)
    facts = {
        "steps": steps,
        "steps_per_epoch": per_epoch,
        "epochs": steps_of(steps, 1 / per_epoch),
        "dataset_size": dataset_size,
    }
    method = build_method(experiment.method, facts)
    if isinstance(method, Mechanism) and method.full_batch and not isinstance(sampling, FullBatch):
        raise ValueError(
            f"train.sampling with method {method.name}: expected 'full', since the momentum of "
            "every example is stored"
        )
    return Setting(
        method=method,
        sampling=sampling,
        dataset_size=dataset_size,
        batch_size=None if batch_size is None else float(batch_size),
        steps=steps,
        asked=steps,
        delta=_delta(experiment, dataset_size),
        accountant=_accountant(experiment, sampling),
        relation=relation_of(sampling).name.lower(),
    )


def _sampling(config: TrainConfig, dataset_size: int | None) -> Sampling:
    if config.sampling == "full" or config.batch_size is None:
        return FullBatch(dataset_size)
    if dataset_size is None:
        raise ValueError("data.examples: missing; expected the number of private examples")
    if config.batch_size > dataset_size:
        raise ValueError(
            f"train.batch_size = {config.batch_size}: expected at most the {dataset_size} examples"
        )
    if config.sampling == "fixed":
        return FixedSize(config.batch_size, dataset_size)
    if config.sampling == "truncated" and config.max_size is not None:
        return TruncatedPoisson(config.batch_size, dataset_size, config.max_size)
    return Poisson(config.batch_size, dataset_size)


def _steps_per_epoch(dataset_size: int | None, batch_size: float | None) -> float:
    """Returns N / B; 1 for full batches of data of unknown size."""
    return 1.0 if dataset_size is None or batch_size is None else dataset_size / batch_size


def _delta(experiment: Experiment, dataset_size: int | None) -> float:
    given = experiment.privacy.delta
    if isinstance(given, int | float):
        return float(given)
    if dataset_size is None:
        raise ValueError(
            f"privacy.delta = {given!r}: expected a number, since data.examples is missing"
        )
    return 1 / dataset_size


def _accountant(experiment: Experiment, sampling: Sampling) -> str:
    known = SUPPORTED[type(sampling)][relation_of(sampling)]
    works = [name for name in known if name in BUDGET_ACCOUNTANTS]
    asked = experiment.privacy.accountant
    if asked not in works:
        raise ValueError(
            f"privacy.accountant = {asked!r} with train.sampling = {experiment.train.sampling!r}: "
            f"expected {' or '.join(map(repr, works))}"
        )
    return asked


def _with_noise(setting: Setting, epsilon: float | None) -> tuple[Release, bool]:
    """Returns the method, and whether its noise was calibrated to the budget here."""
    method = setting.method
    if isinstance(method, Mechanism) and not method.calibrated:
        if epsilon is None:
            raise ValueError(
                "method.noise_multiplier: missing; expected it, or privacy.epsilon to "
                "calibrate it to"
            )
        run = (setting.sampling, setting.steps, epsilon, setting.delta, setting.accountant)
        return accounting.calibrate(method, *run), True
    if epsilon is not None and not method.guarantee.private:
        raise ValueError(
            f"privacy.epsilon = {epsilon:g} with method {method.name}: expected "
            f"method.noise_multiplier and no epsilon. {method.guarantee.statement}"
        )
    return method, False


def build_optimizer(
    config: OptimizerConfig, steps: int, learning_rate: Any = None
) -> optax.GradientTransformation:
    """Returns the optimizer that a config describes.

    Args:
        config: the config.
        steps: T, the default length of schedules.
        learning_rate: replaces the config's; may be traced.

    Example:
        >>> rate = {"name": "cosine_decay_schedule", "init_value": 0.1}
        >>> tx = build_optimizer(OptimizerConfig("sgd", rate, {"momentum": 0.9}), steps=100)
        >>> isinstance(tx, optax.GradientTransformation)
        True
    """
    known = _optimizers()
    if config.name not in known:
        raise ValueError(f"optimizer.name = {config.name!r}: {_checks.nearest(config.name, known)}")
    rate = config.learning_rate if learning_rate is None else learning_rate
    if isinstance(rate, dict):
        rate = _schedule(rate, steps)
    arguments = {"learning_rate": rate, **config.options}
    return _call("optimizer", known[config.name], arguments)


def _schedule(table: Mapping[str, Any], steps: int) -> Any:
    known, where = _schedules(), "optimizer.learning_rate"
    name = table.get("name")
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{where}.name = {name!r}: {_checks.nearest(str(name), known)}")
    arguments = {key: _boundaries(value) for key, value in table.items() if key != "name"}
    for length in _LENGTHS:
        if length in inspect.signature(known[name]).parameters:
            arguments.setdefault(length, steps)
    return _call(where, known[name], arguments)


def _call(where: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    parameters = inspect.signature(function).parameters
    for key, value in arguments.items():
        if key not in parameters:
            raise ValueError(f"{where}.{key}: unknown; {_checks.nearest(key, parameters)}")
        if isinstance(value, str) and parameters[key].annotation is not str:
            raise TypeError(f"{where}.{key} = {value!r}: expected a number, a flag or a list")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise ValueError(f"{where}.{key}: missing; {function.__name__} needs it")
    try:
        return function(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {function.__name__}: {error}") from error


def _boundaries(value: Any) -> Any:
    """Returns a table of steps and values with integer steps; in TOML, its keys are text."""
    if isinstance(value, dict) and all(key.isdecimal() for key in value):
        return {int(key): item for key, item in value.items()}
    return value


def _optimizers() -> dict[str, Callable[..., Any]]:
    """Returns optax's optimizers by name: its public functions that take a learning rate first."""
    return {
        name: function
        for name, function in _functions().items()
        if next(iter(inspect.signature(function).parameters), None) == "learning_rate"
    }


def _schedules() -> dict[str, Callable[..., Any]]:
    return {
        name: function
        for name, function in _functions().items()
        if name.endswith("_schedule") or name == "exponential_decay"
    }


def _functions() -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in vars(optax).items()
        if inspect.isfunction(value) and not name.startswith("_") and name not in _UNFIT
    }
