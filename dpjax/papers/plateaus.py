"""A learning rate that falls on plateaus: the epochs at which it falls, on public data."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp

from dpjax import _checks
from dpjax.data import Dataset
from dpjax.train import Experiment, build_program, build_runner, member_key, root_key

__all__ = ["PlateauSearch", "plateau_search"]

_RATE = "optimizer.learning_rate"


@dataclass(frozen=True)
class PlateauSearch:
    """A training run on public data whose learning rate falls when the test loss stops falling.

    After every epoch, a test loss below ``(1 - threshold)`` times the best one so far is an
    improvement. After more than `patience` epochs in a row without one, the rate is multiplied by
    `factor`, and the count starts again. The defaults are those of PyTorch's ReduceLROnPlateau.

    Args:
        experiment: the run on the PUBLIC data; its learning rate is the first one.
        factor: the factor on the rate, in (0, 1).
        patience: the number of epochs without an improvement that are tolerated.
        threshold: the relative improvement that counts, in [0, 1).

    Privacy:
        None is needed if the data are public. On private data, every test loss would be a release,
        on which the rate of all later steps depends.

    Example:
        >>> PlateauSearch(Experiment(), factor=0.5).patience
        10
        >>> PlateauSearch(Experiment(), factor=2.0)
        Traceback (most recent call last):
        ...
        ValueError: factor = 2.0: expected a number in (0, 1)
    """

    experiment: Experiment
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4

    def __post_init__(self) -> None:
        """Checks the fields."""
        _checks.fraction("factor", self.factor)
        _checks.integer("patience", self.patience, at_least=0)
        _checks.fraction("threshold", self.threshold, zero=True)
        if not isinstance(self.experiment.optimizer.learning_rate, float):
            raise ValueError(f"experiment: {_RATE}: expected a number, not a schedule")

    @cached_property
    def key(self) -> str:
        """A hash of everything the result depends on."""
        numbers = [self.factor, self.patience, self.threshold]
        text = json.dumps([self.experiment.identity, *numbers])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def plateau_search(
    search: PlateauSearch, dataset: Dataset, say: Callable[[str], None] = lambda text: None
) -> tuple[int, ...]:
    """Runs a search on its public data set.

    Args:
        search: what to search.
        dataset: the PUBLIC data.
        say: called with a line of progress after each epoch.

    Returns:
        The epochs, counted from 1, after which the rate falls.

    Example:
        >>> search = PlateauSearch(Experiment().set("method.noise_multiplier", 1.0))
        >>> epochs = plateau_search(search, load("fashion_mnist"))  # doctest: +SKIP
    """
    program = build_program(search.experiment, dataset, (_RATE,))
    runner = build_runner(program, dataset, search.experiment.run)
    plan, falls = program.plan, []
    state = program.init(member_key(root_key(0), plan.experiment.identity, 0))
    rate = _checks.positive(_RATE, search.experiment.optimizer.learning_rate)
    best, waited = float("inf"), 0
    for epoch in range(1, max(1, round(plan.steps / plan.steps_per_epoch)) + 1):
        until = min(plan.steps, round(epoch * plan.steps_per_epoch))
        state, _ = runner.advance(state, until - int(state.step))
        loss = float(runner.evaluate(state).loss)
        say(f"epoch {epoch}: rate {rate:g}, test loss {loss:.4f}")
        if loss < (1 - search.threshold) * best:
            best, waited = loss, 0
        else:
            waited += 1
        if waited > search.patience:
            falls.append(epoch)
            rate, waited = rate * search.factor, 0
            state = state._replace(vary={_RATE: jnp.float32(rate)})
    return tuple(falls)
