"""From an experiment and the size of its data to what runs: method, sampling, steps, noise."""

from dataclasses import dataclass, replace
from typing import Any

from dpjax import accounting
from dpjax.accounting import Budget, Ledger
from dpjax.accounting.relation import SUPPORTED, relation_of
from dpjax.mechanism import Mechanism, Release
from dpjax.methods.table import build_method
from dpjax.sampling import FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson
from dpjax.schedules import steps_of
from dpjax.train.config import Experiment, TrainConfig

__all__ = ["Plan", "resolve"]


@dataclass(frozen=True)
class Plan:
    """What an experiment comes to on data of a given size.

    Attributes:
        experiment: the experiment, resolved: the method in plain form with its noise, the number
            of steps, delta as a number. Resolving it again changes nothing.
        method: what runs and is accounted.
        sampling: what draws the batches.
        dataset_size: N.
        batch_size: B, the expected batch size.
        steps: T, as many as the budget allows.
        delta: the target.
        accountant: who counts.
    """

    experiment: Experiment
    method: Release
    sampling: Sampling
    dataset_size: int
    batch_size: float
    steps: int
    delta: float
    accountant: str

    @property
    def asked(self) -> int:
        """How many steps were asked for."""
        return self.experiment.train.steps or self.steps

    @property
    def stopped_early(self) -> bool:
        """Whether the budget allows fewer steps than were asked for."""
        return self.steps < self.asked

    @property
    def steps_per_epoch(self) -> float:
        """N / B."""
        return self.dataset_size / self.batch_size

    @property
    def name(self) -> str:
        """The method's name, for files and tables."""
        return self.method.name or "mechanism"

    @property
    def private(self) -> bool:
        """Whether there is anything to account for."""
        return self.method.guarantee.private

    def ledger(self) -> Ledger:
        """Returns an empty ledger for the data set."""
        return Ledger(self.experiment.data.name, self.experiment.privacy.unit)


def resolve(experiment: Experiment, dataset_size: int) -> Plan:
    """Returns what an experiment comes to.

    Args:
        experiment: the experiment.
        dataset_size: N, the number of private examples.

    Example:
        >>> experiment = Experiment().set("privacy.epsilon", 2.0)
        >>> plan = resolve(experiment, dataset_size=1437)
        >>> plan.steps, plan.method.name, 1.0 < plan.method.noise_multiplier < 3.0
        (57, 'dp_sgd', True)
        >>> resolve(plan.experiment, 1437).experiment == plan.experiment
        True
    """
    config = experiment.train
    if experiment.data.examples not in (None, dataset_size):
        raise ValueError(
            f"data.examples = {experiment.data.examples}: expected {dataset_size}, as many as "
            f"{experiment.data.name} has"
        )
    sampling = _sampling(config, dataset_size)
    batch_size = float(config.batch_size or dataset_size)
    per_epoch = dataset_size / batch_size
    steps = config.steps or steps_of(config.epochs or 0.0, per_epoch)
    given = experiment.privacy.delta
    delta = float(given) if isinstance(given, int | float) else 1 / dataset_size
    facts = {
        "steps": steps,
        "steps_per_epoch": per_epoch,
        "epochs": steps_of(steps, 1 / per_epoch),
        "dataset_size": dataset_size,
    }
    accountant = _accountant(experiment, sampling)
    method, calibrated = _method(experiment, sampling, steps, delta, accountant, facts)
    allowed = steps if calibrated else _allowed(experiment, method, sampling, steps, delta)
    resolved = replace(
        experiment,
        data=replace(experiment.data, examples=dataset_size),
        method=method.to_plain(),
        train=replace(config, epochs=None, steps=steps),
        privacy=replace(experiment.privacy, delta=delta, accountant=accountant),
    )
    return Plan(
        resolved,
        method,
        sampling,
        dataset_size,
        batch_size,
        allowed,
        delta,
        accountant,
    )


def _sampling(config: TrainConfig, dataset_size: int) -> Sampling:
    if config.sampling == "full" or config.batch_size is None:
        return FullBatch(dataset_size)
    if config.batch_size > dataset_size:
        raise ValueError(
            f"train.batch_size = {config.batch_size}: expected at most the {dataset_size} examples"
        )
    if config.sampling == "fixed":
        return FixedSize(config.batch_size, dataset_size)
    if config.sampling == "truncated" and config.max_size is not None:
        return TruncatedPoisson(config.batch_size, dataset_size, config.max_size)
    return Poisson(config.batch_size, dataset_size)


def _accountant(experiment: Experiment, sampling: Sampling) -> str:
    known = SUPPORTED[type(sampling)][relation_of(sampling)]
    works = [name for name in known if name in ("pld", "rdp")]
    asked = experiment.privacy.accountant
    if asked not in works:
        raise ValueError(
            f"privacy.accountant = {asked!r} with train.sampling = {experiment.train.sampling!r}: "
            f"expected {' or '.join(map(repr, works))}"
        )
    return asked


def _method(
    experiment: Experiment,
    sampling: Sampling,
    steps: int,
    delta: float,
    accountant: str,
    facts: dict[str, Any],
) -> tuple[Release, bool]:
    """Returns the method, and whether its noise was calibrated to the budget here."""
    method, epsilon = build_method(experiment.method, facts), experiment.privacy.epsilon
    if isinstance(method, Mechanism):
        if method.full_batch and not isinstance(sampling, FullBatch):
            raise ValueError(
                f"train.sampling with method {method.name}: expected 'full', since the momentum of "
                "every example is stored"
            )
        if not method.calibrated:
            if epsilon is None:
                raise ValueError(
                    "method.noise_multiplier: missing; expected it, or privacy.epsilon to "
                    "calibrate it to"
                )
            return accounting.calibrate(method, sampling, steps, epsilon, delta, accountant), True
    if epsilon is not None and not method.guarantee.private:
        raise ValueError(
            f"privacy.epsilon = {epsilon:g} with method {method.name}: expected "
            f"method.noise_multiplier and no epsilon. {method.guarantee.statement}"
        )
    return method, False


def _allowed(
    experiment: Experiment, method: Release, sampling: Sampling, steps: int, delta: float
) -> int:
    """Returns how many of the steps the budget allows."""
    privacy = experiment.privacy
    if privacy.epsilon is None or not isinstance(method, Mechanism):
        return steps
    budget = Budget(privacy.epsilon, delta, privacy.accountant)
    empty = Ledger(experiment.data.name, privacy.unit)
    if budget.spent(empty.add_steps(method, sampling, steps)) <= privacy.epsilon:
        return steps
    allowed = budget.steps_left(empty, method, sampling, most=steps)
    if not allowed:
        raise ValueError(
            f"privacy.epsilon = {privacy.epsilon:g}: expected enough for one step of {method.name} "
            f"at noise multiplier {method.noise_multiplier!r}"
        )
    return allowed
