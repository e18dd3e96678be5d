"""Disjoint parts of the data, one per candidate, and the exponential mechanism on the last."""

from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpjax import _checks
from dpjax.accounting.bound import upper_epsilon_of
from dpjax.accounting.calibration import calibrate
from dpjax.accounting.queries import GaussianQuery, LaplaceQuery
from dpjax.accounting.tuning.base import Search, Tuning
from dpjax.mechanism import Mechanism
from dpjax.sampling import Sampling

__all__ = ["disjoint_split"]


@dataclass(frozen=True)
class disjoint_split(Tuning):
    """Trains each candidate on its own part of the data and chooses one by its errors on the last.

    The data fall into G + 1 parts; candidate i is trained on part i, and with z_i errors on the
    last part it is chosen with probability proportional to ``exp(-selection z_i / 2)``. A run's
    score is minus its number of errors on the *last* part; hand `Search.run` each candidate with
    its part.

    Args:
        candidates: G, the number of candidates.
        selection: the epsilon of the choice.

    Privacy:
        One example is in one part only, so the costs do not add up: the whole is ``(max(eps_1,
        selection), delta)``-DP for runs that are (eps_1, delta)-DP on their part. Relation: that of
        a run, with each row's part drawn by its number alone. Released: the chosen run, without
        its score.
        What it costs is data: each run sees N / (G + 1) examples, and its sampler must say so.

    Example:
        >>> parts = disjoint_split(2, selection=1.0).parts(jax.random.key(0), 10)
        >>> len(parts), sorted(np.concatenate(parts).tolist()) == list(range(10))
        (3, True)

    Reference: Chaudhuri, Monteleoni, Sarwate, Differentially Private Empirical Risk Minimization,
    2011, section 6; Auto DP-SGD names it for tuning its decays.
    """

    accountant: ClassVar[str] = "pld"
    releases_score: ClassVar[bool] = False

    candidates: int
    selection: float

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            candidates=_checks.integer("candidates", self.candidates, at_least=1),
            selection=_checks.positive("selection", self.selection),
        )

    def parts(self, key: jax.Array, dataset_size: int) -> list[np.ndarray]:
        """Returns the rows of each candidate's part, and last those of the choice."""
        size = _checks.integer("dataset_size", dataset_size, at_least=self.candidates + 1)
        # By the row's own number: one row more or less must leave all others where they are.
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(size))
        part = np.asarray(
            jax.vmap(lambda k: jax.random.randint(k, (), 0, self.candidates + 1))(keys)
        )
        return [np.flatnonzero(part == i) for i in range(self.candidates + 1)]

    def plan(
        self,
        mechanism: Mechanism,
        sampling: Sampling,
        steps: int,
        epsilon: float,
        delta: float,
        scoring: GaussianQuery | LaplaceQuery | None = None,
    ) -> Search:
        """Returns the search whose runs, each on its part, have the whole budget."""
        if scoring is not None:
            raise ValueError(f"scoring = {scoring!r}: expected None, the choice itself is private")
        if not self.selection <= _checks.positive("epsilon", epsilon):
            raise ValueError(f"selection = {self.selection:g}: expected at most {epsilon:g}")
        found = calibrate(mechanism, sampling, steps, epsilon, delta, self.accountant)
        return Search(self, found, sampling, steps)

    def total(
        self, run: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float
    ) -> float:
        """Returns ``max(eps_1, selection)``."""
        return max(upper_epsilon_of(run, relation, delta, self.accountant), self.selection)

    def trials(self, rng: np.random.Generator, candidates: int) -> list[int]:
        """Returns every candidate once."""
        del rng
        if candidates != self.candidates:
            raise ValueError(f"{candidates} candidates: expected {self.candidates}, as planned")
        return list(range(candidates))

    def best(self, rng: np.random.Generator, scores: object) -> int:
        """Draws by the exponential mechanism."""
        errors = -np.asarray(scores, float)
        if not np.all(np.isfinite(errors) & (errors >= 0) & (errors == np.round(errors))):
            raise ValueError(
                f"scores = {scores!r}: expected minus the number of errors of each run"
            )
        weights = np.exp(-self.selection / 2 * (errors - errors.min()))
        return int(rng.choice(errors.size, p=weights / weights.sum()))
