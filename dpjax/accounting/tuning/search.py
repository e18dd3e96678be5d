"""Private hyper-parameter search: one record that runs it and is accounted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

import dp_accounting
import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpjax import _checks
from dpjax._record import Record
from dpjax.accounting.bound import Bound
from dpjax.accounting.calibration import noise_for
from dpjax.accounting.events import check_mechanism, event_of_runs, noise_multipliers
from dpjax.accounting.queries import GaussianQuery, LaplaceQuery
from dpjax.accounting.relation import as_relation, check_supported
from dpjax.mechanism import Mechanism
from dpjax.sampling import Sampling

__all__ = ["Found", "Search", "Tuning"]

Candidate = TypeVar("Candidate")
Output = TypeVar("Output")


class Found(NamedTuple, Generic[Candidate, Output]):
    """Everything that a private search releases; the losing runs and their number stay private.

    Attributes:
        candidate: the winner; None if no run took place, which is possible if the number of runs is
            Poisson.
        score: its score, if the tuning method pays for releasing it.
        output: the output of its run.
        epsilon: the epsilon of the whole search at the given delta.
    """

    candidate: Candidate | None
    score: float | None
    output: Output | None
    epsilon: Bound


class Tuning(Record):
    """A private selection among runs. Subclasses are frozen dataclasses.

    Example:
        >>> from dpjax.accounting import tuning
        >>> isinstance(tuning.grid_composition(candidates=5), Tuning)
        True
    """

    role: ClassVar[str] = "tuning"

    accountant: ClassVar[str] = "rdp"
    """The accountant of a run's event."""

    composes: ClassVar[bool] = False
    """Whether the whole search is an event; otherwise its guarantee is an (epsilon, delta)."""

    releases_score: ClassVar[bool] = True
    """Whether the winner's score may be published with it."""

    def plan(
        self,
        mechanism: Mechanism,
        sampling: Sampling,
        steps: int,
        epsilon: float,
        delta: float,
        scoring: GaussianQuery | LaplaceQuery | None = None,
    ) -> "Search":
        """Returns the search that spends a budget; `Search.mechanism` is calibrated for each run.

        Args:
            mechanism: the mechanism of one run; its noise is found as in `calibrate`.
            sampling: the sampler of one run.
            steps: the steps of one run.
            epsilon: the budget of the whole search.
            delta: the delta of the whole search.
            scoring: how a run's score is released, if it is computed from private data. None means
                that it is computed from public data or from the run's own release.
        """
        check_mechanism(mechanism)
        mechanism.check_sampling(sampling)
        _check_scoring(scoring)
        relation = as_relation(None, sampling)

        def spent(runs: list[tuple[float, int]]) -> float:
            run = _one_run(runs, sampling, scoring, relation, self.accountant)
            return self.total(run, relation, delta)

        found = noise_for(mechanism, sampling, steps, epsilon, delta, spent)
        return Search(self, found, sampling, steps, scoring)

    def event(self, run: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Returns the event of the whole search, if `composes` is True.

        Args:
            run: the event of one run with its score.
        """
        raise NotImplementedError

    def total(
        self, run: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float
    ) -> Bound:
        """Returns the epsilon of the whole search, from the event of one run with its score.

        Args:
            run: the event of one run with its score.
            relation: the neighbouring relation.
            delta: the delta of the whole search.
        """
        raise NotImplementedError

    def trials(self, rng: np.random.Generator, candidates: int) -> list[int]:
        """Draws the candidates to run, in order; their number is private.

        Args:
            rng: draws how many candidates are tried, and which.
            candidates: how many there are.

        Returns:
            The numbers of the candidates; one may come several times.

        Raises:
            ValueError: if the search was accounted for another number of candidates.
        """
        raise NotImplementedError

    def best(self, rng: np.random.Generator, scores: Sequence[float]) -> int:
        """Returns the index of the winning run.

        Args:
            rng: draws the winner, if the choice is random.
            scores: the scores of the runs, in order.

        Raises:
            ValueError: if the choice needs scores of another kind.
        """
        del rng
        return int(np.argmax(scores))


@dataclass(frozen=True)
class Search(Record):
    """A private search: the tuning method, and the mechanism, sampling and steps of each run.

    Args:
        tuning: the tuning method, which accounts for the choice among runs.
        mechanism: the mechanism of each run, whatever its candidate. Candidates may differ in
            anything that does not change the event of a run (threshold, learning rate, model), but
            not in noise, sampling or steps.
        sampling: the sampler of each run.
        steps: the steps of each run.
        scoring: how each run's score is released; None if it needs no private data.

    Privacy:
        As stated by `tuning`, for a run *with its score*: a score computed from private data but
        not declared in `scoring` is not accounted for. Only `Found` may be published.

    Example:
        >>> import dpjax
        >>> tuning = dpjax.accounting.tuning.repeat_and_select(mean=10)
        >>> mechanism, sampling = dpjax.methods.dp_sgd(1.0), dpjax.sampling.Poisson.with_rate(0.01)
        >>> search = tuning.plan(mechanism, sampling, 100, epsilon=2.0, delta=1e-5)
        >>> def train(threshold, mechanism, key):  # stands for a training run with that threshold
        ...     return -abs(threshold - 0.5), f"model at {threshold}"
        >>> found = search.run(train, [0.1, 0.5, 2.0], jax.random.key(0), delta=1e-5)
        >>> found.output, round(found.epsilon, 2)
        ('model at 0.5', 2.0)
    """

    tuning: Tuning
    mechanism: Mechanism
    sampling: Sampling
    steps: int
    scoring: GaussianQuery | LaplaceQuery | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        for field, kind in (("tuning", Tuning), ("sampling", Sampling)):
            if not isinstance(getattr(self, field), kind):
                raise TypeError(f"{field} = {getattr(self, field)!r}: expected a {kind.role}")
        _check_scoring(self.scoring)
        check_mechanism(self.mechanism)
        self.mechanism.check_sampling(self.sampling)
        noise_multipliers(self.mechanism, self.steps)

    def epsilon(self, delta: float, relation: NeighboringRelation | str | None = None) -> Bound:
        """Returns the epsilon of the whole search, under the sampler's own relation or another.

        Args:
            delta: in (0, 1).
            relation: the neighbouring relation; None for the sampling's own.
        """
        relation = as_relation(relation, self.sampling)
        run = self._one_run(relation, self.tuning.accountant)
        return self.tuning.total(run, relation, _checks.fraction("delta", delta))

    def event(self, relation: NeighboringRelation, accountant: str) -> dp_accounting.DpEvent:
        """Returns the event of the whole search, if its tuning composes.

        Args:
            relation: the neighbouring relation.
            accountant: the accountant that the event is for.
        """
        return self.tuning.event(self._one_run(relation, accountant))

    def _one_run(self, relation: NeighboringRelation, accountant: str) -> dp_accounting.DpEvent:
        runs = noise_multipliers(self.mechanism, self.steps)
        return _one_run(runs, self.sampling, self.scoring, relation, accountant)

    def run(
        self,
        train: Callable[[Candidate, Mechanism, jax.Array], tuple[float, Output]],
        candidates: Sequence[Candidate],
        key: jax.Array,
        delta: float,
    ) -> Found[Candidate, Output]:
        """Runs the search: draws which candidates to try, tries them, and keeps the best.

        Args:
            train: ``train(candidate, mechanism, key) -> (score, output)``, one whole run with the
                mechanism it is given; larger scores are better. A score that is NaN loses.
            candidates: the candidates; public, and as many as `tuning` was given.
            key: the key of the whole search; each run gets its own.
            delta: the delta of the returned epsilon.

        Returns:
            The winner, and what the search spent; nothing else may be published.

        Raises:
            ValueError: if there are no candidates, or not as many as were accounted for.
        """
        if not len(candidates):
            raise ValueError("candidates: expected at least one")
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        results = []
        for number, choice in enumerate(self.tuning.trials(rng, len(candidates))):
            score, output = train(
                candidates[choice], self.mechanism, jax.random.fold_in(key, number)
            )
            results.append((candidates[choice], float(score), output))
        if not results:
            return Found(None, None, None, self.epsilon(delta))
        scores = [-np.inf if np.isnan(score) else score for _, score, _ in results]
        candidate, score, output = results[self.tuning.best(rng, scores)]
        released = score if self.tuning.releases_score else None
        return Found(candidate, released, output, self.epsilon(delta))


def _one_run(
    runs: list[tuple[float, int]],
    sampling: Sampling,
    scoring: GaussianQuery | LaplaceQuery | None,
    relation: NeighboringRelation,
    accountant: str,
) -> dp_accounting.DpEvent:
    """Returns the event of one run with its score."""
    check_supported(sampling, accountant, relation)
    event = event_of_runs(runs, sampling, relation, accountant)
    if scoring is None:
        return event
    return dp_accounting.ComposedDpEvent([event, scoring.event(relation, accountant)])


def _check_scoring(scoring: object) -> None:
    if not isinstance(scoring, GaussianQuery | LaplaceQuery | None):
        raise TypeError(f"scoring = {scoring!r}: expected a GaussianQuery or LaplaceQuery")
