"""Lin et al.'s greedy search: the best clipping threshold of every epoch, on public data."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp

from dpjax import _checks
from dpjax.data import Dataset
from dpjax.train import (
    Experiment,
    TrainState,
    build_program,
    build_runner,
    member_key,
    root_key,
)
from dpjax.train.feed import Runner

__all__ = ["GreedySearch", "Thresholds", "greedy_search"]

_MOST_TRIALS = 500  # per epoch, in case the accuracy never falls


@dataclass(frozen=True)
class GreedySearch:
    """A greedy search (Lin et al., algorithm 1).

    In every epoch, train one epoch from the same parameters for C = `start`, `start + step`, ...,
    keep the C with the best test accuracy, and stop when accuracy has fallen more than `fall` below
    the best.

    Args:
        experiment: DP-SGD on the PUBLIC data, with the noise of the private run.
        start: the first C.
        step: d.
        fall: S, as a fraction.
        repeats: searches of the first epoch, with other seeds, whose mean is Decay's C_0.

    Privacy:
        None is needed if the data are public. On private data, every trial would be a release.

    Example:
        >>> search = GreedySearch(Experiment(), start=0.1)
        >>> search.step, search.key == GreedySearch(Experiment()).key
        (0.01, False)

    Reference: Lin et al. 2022, section 4.3 and 5.1.3.
    """

    experiment: Experiment
    start: float = 0.05
    step: float = 0.01
    fall: float = 0.02
    repeats: int = 5

    def __post_init__(self) -> None:
        """Checks the fields."""
        _checks.positive("start", self.start)
        _checks.positive("step", self.step)
        _checks.fraction("fall", self.fall)
        _checks.integer("repeats", self.repeats, at_least=1)

    @cached_property
    def key(self) -> str:
        """A hash of everything the result depends on."""
        numbers = [self.start, self.step, self.fall, self.repeats]
        text = json.dumps([self.experiment.identity, *numbers])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Thresholds(NamedTuple):
    """The result of a greedy search.

    Attributes:
        thresholds: the best C of every epoch.
        accuracies: the accuracy that each of them reached.
        trials: how many epochs were trained in total.
        first: the best C of the first epoch, once for each repeat.
    """

    thresholds: tuple[float, ...]
    accuracies: tuple[float, ...]
    trials: int
    first: tuple[float, ...]

    @property
    def initial(self) -> float:
        """Decay's C_0: the mean over the repeats of the first epoch."""
        return sum(self.first) / len(self.first)


class _Best(NamedTuple):
    threshold: float
    accuracy: float
    state: TrainState
    trials: int


def greedy_search(
    search: GreedySearch, dataset: Dataset, say: Callable[[str], None] = lambda text: None
) -> Thresholds:
    """Runs a search on its public data set.

    Args:
        search: what to search.
        dataset: the PUBLIC data.
        say: called with a line of progress after each epoch.

    Returns:
        The best threshold of every epoch, and what it took to find them.

    Example:
        >>> search = GreedySearch(Experiment().set("method.noise_multiplier", 1.0))
        >>> found = greedy_search(search, load("fashion_mnist"))  # doctest: +SKIP
    """
    program = build_program(search.experiment, dataset, ("method.threshold",))
    runner = build_runner(program, dataset, search.experiment.run)
    plan, found, first = program.plan, [], []
    epochs = max(1, round(plan.steps / plan.steps_per_epoch))
    lineage = plan.experiment.identity
    for repeat in range(search.repeats):
        state = program.init(member_key(root_key(repeat), lineage, 0))
        for epoch in range(1, epochs + 1 if repeat == 0 else 2):
            until = min(plan.steps, round(epoch * plan.steps_per_epoch))
            best = _best_of_epoch(search, runner, state, until)
            state = best.state
            found.append((repeat, best))
            said = f"C {best.threshold:g} of {best.trials}, accuracy {best.accuracy:.2%}"
            say(f"epoch {epoch}: {said}")
            if epoch == 1:
                first.append(best.threshold)
    whole = [best for repeat, best in found if repeat == 0]
    return Thresholds(
        tuple(best.threshold for best in whole),
        tuple(best.accuracy for best in whole),
        sum(best.trials for _, best in found),
        tuple(first),
    )


def _best_of_epoch(search: GreedySearch, runner: Runner, state: TrainState, until: int) -> _Best:
    """Returns the best C for the steps up to `until`, and the state it leads to."""
    best: _Best | None = None
    steps = until - int(state.step)
    for trial in range(_MOST_TRIALS):
        threshold = search.start + trial * search.step
        own = state._replace(vary={"method.threshold": jnp.float32(threshold)})
        trained, _ = runner.advance(own, steps)
        accuracy = float(runner.evaluate(trained).accuracy)
        if best is None or accuracy > best.accuracy:
            best = _Best(threshold, accuracy, trained, trial + 1)
        elif best.accuracy - accuracy > search.fall:
            break
    if best is None:
        raise RuntimeError("a search without a trial")
    return best._replace(trials=trial + 1)
