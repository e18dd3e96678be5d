"""Ways to choose among private runs: grids, random stopping or repetitions, disjoint parts."""

import math
from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import jax
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from scipy import optimize

from dpjax import _checks
from dpjax.accounting.bound import Bound, epsilon_of, make_bound
from dpjax.accounting.calibration import calibrate
from dpjax.accounting.queries import GaussianQuery, LaplaceQuery
from dpjax.accounting.rdp import TAIL_ORDERS
from dpjax.accounting.tuning.search import Search, Tuning
from dpjax.mechanism import Mechanism
from dpjax.sampling import Sampling

__all__ = ["disjoint_split", "grid_composition", "liu_talwar", "repeat_and_select"]


@dataclass(frozen=True)
class grid_composition(Tuning):
    """Runs all candidates; their costs add up as Renyi divergences.

    ``rdp_total(alpha) = G rdp_run(alpha)``. Everything may be published, the losing runs too.

    Args:
        candidates: G, the number of candidates.

    Privacy:
        Bound and relation: those of a run. Event: the run's, G times.

    Example:
        >>> import dpjax
        >>> mechanism, sampling = dpjax.methods.dp_sgd(1.0), dpjax.sampling.Poisson.with_rate(0.01)
        >>> plan = grid_composition(5).plan(mechanism, sampling, 100, epsilon=2.0, delta=1e-5)
        >>> round(plan.mechanism.noise_multiplier, 3)
        0.927

    Reference: Wei et al., DC-SGD, 2025, table III, https://arxiv.org/abs/2503.22988
    """

    composes: ClassVar[bool] = True

    candidates: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(candidates=_checks.integer("candidates", self.candidates, at_least=1))

    def event(self, run: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Returns the run's event, G times."""
        return dp_accounting.SelfComposedDpEvent(run, self.candidates)

    def total(
        self, run: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float
    ) -> Bound:
        """Returns the epsilon of G runs."""
        return epsilon_of(self.event(run), relation, delta, self.accountant)

    def trials(self, rng: np.random.Generator, candidates: int) -> list[int]:
        """Returns every candidate once."""
        del rng
        if candidates != self.candidates:
            raise ValueError(f"{candidates} candidates: expected {self.candidates}, as planned")
        return list(range(candidates))


@dataclass(frozen=True)
class liu_talwar(Tuning):
    """Runs random candidates until a coin flip says stop, and keeps the best.

    Each round draws one of the candidates with replacement, runs it, and stops with probability
    gamma, and at the latest after ``T = log(1/delta_2) / gamma`` rounds. If a run with its score is
    (eps_1, delta_1)-DP, the whole is ``(3 eps_1 + 3 sqrt(2 delta_1), 3 sqrt(2 delta_1) T +
    delta_2)``-DP. So a total (eps, delta) leaves for each run

        ``delta_1 = ((delta - delta_2) / (3 T))^2 / 2``,  ``eps_1 = (eps - 3 sqrt(2 delta_1)) / 3``.

    delta_1 is near 1e-17, so the runs are accounted by RDP, as in the paper, at `TAIL_ORDERS`.
    Where the DC-SGD paper says "each iteration", read "each whole run with its score". The expected
    number of runs is 2 G, and a given candidate is never tried with probability about 0.31.
    `repeat_and_select` is far cheaper.

    Args:
        candidates: G, the number of candidates.
        gamma: the probability of stopping; None takes the paper's 1 / (2 G).
        delta_2: the paper's 1e-20.

    Privacy:
        Bound: that of a run with its score. Relation: that of a run. Released: the winner. Not
        protected: the number of rounds, which must not be published.

    Example:
        >>> epsilon_1, delta_1 = liu_talwar(candidates=10).per_run(2.0, 1 / 50_000)
        >>> f"{epsilon_1:.4f} {delta_1:.2e}"
        '0.6667 2.62e-17'

    Reference: Liu and Talwar, Private Selection from Private Candidates, 2019, theorem 3.5,
    https://arxiv.org/abs/1811.07971; as used by Wei et al., DC-SGD, 2025, theorem 1,
    https://arxiv.org/abs/2503.22988
    """

    accountant: ClassVar[str] = "rdp"

    candidates: int
    gamma: float | None = None
    delta_2: float = 1e-20

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(
            candidates=_checks.integer("candidates", self.candidates, at_least=1),
            delta_2=_checks.fraction("delta_2", self.delta_2),
        )
        if self.gamma is not None:
            self._set(gamma=_checks.fraction("gamma", self.gamma, one=True))

    @property
    def stopping(self) -> float:
        """The probability of stopping after a round."""
        return 1 / (2 * self.candidates) if self.gamma is None else self.gamma

    @property
    def rounds(self) -> float:
        """T, the maximum number of rounds."""
        return math.log(1 / self.delta_2) / self.stopping

    def per_run(self, epsilon: float, delta: float) -> tuple[float, float]:
        """Returns the (eps_1, delta_1) of each run for a total budget.

        Args:
            epsilon: the epsilon of the whole search.
            delta: the delta of the whole search.

        Raises:
            ValueError: if the budget leaves nothing for a run.
        """
        delta_1 = self._delta_1(delta)
        epsilon_1 = (_checks.positive("epsilon", epsilon) - 3 * math.sqrt(2 * delta_1)) / 3
        if not epsilon_1 > 0:
            raise ValueError(
                f"epsilon = {epsilon:g}: expected more than {3 * math.sqrt(2 * delta_1):g}, which "
                "the search itself costs"
            )
        return epsilon_1, delta_1

    def _delta_1(self, delta: float) -> float:
        if not _checks.fraction("delta", delta) > self.delta_2:
            raise ValueError(f"delta = {delta:g}: expected more than delta_2 = {self.delta_2:g}")
        return ((delta - self.delta_2) / (3 * self.rounds)) ** 2 / 2

    def total(
        self, run: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float
    ) -> Bound:
        """Returns ``3 eps_1 + 3 sqrt(2 delta_1)``."""
        delta_1 = self._delta_1(delta)
        epsilon_1 = epsilon_of(run, relation, delta_1, self.accountant, TAIL_ORDERS)
        note = epsilon_1.note and f"of each run, at its delta_1 = {delta_1:.2g}: {epsilon_1.note}"
        whole = 3 * epsilon_1 + 3 * math.sqrt(2 * delta_1)
        return make_bound(whole, self.accountant, relation, note=note)

    def trials(self, rng: np.random.Generator, candidates: int) -> list[int]:
        """Draws a geometric number of candidates, at most T."""
        self._check_count(candidates)
        rounds = min(int(rng.geometric(self.stopping)), max(1, int(self.rounds)))
        return rng.integers(candidates, size=rounds).tolist()

    def _check_count(self, candidates: int) -> None:
        if candidates != self.candidates:
            raise ValueError(f"{candidates} candidates: expected {self.candidates}, as planned")


@dataclass(frozen=True)
class repeat_and_select(Tuning):
    """Runs random candidates a random number of times, and keeps the best.

    The number K of runs has a truncated negative binomial distribution, or is Poisson. For shape
    eta and stopping probability gamma, the Renyi divergence of the whole at order lambda is at most

        ``rdp(lambda) + (1 + eta) ((1 - 1/l) rdp(l) + log(1/gamma) / l) + log(E K) / (lambda - 1)``

    for any order l: dp-accounting's `RepeatAndSelectDpEvent`. Each run draws its candidate
    uniformly, with replacement, so any number of candidates costs the same.

    Args:
        mean: E K, the expected number of runs, >= 1; 2 G tries each of G candidates about twice.
        shape: eta: 1 geometric, 0 logarithmic, math.inf Poisson, which may run nothing at all.

    Privacy:
        Bound: that of a run with its score. Relation: that of a run. Event: RepeatAndSelect of the
        run, RDP only. Released: the winner. Not protected: the number of runs, which must not be
        published, nor the losing ones.

    Example:
        >>> import dpjax
        >>> mechanism, sampling = dpjax.methods.dp_sgd(1.0), dpjax.sampling.Poisson.with_rate(0.01)
        >>> plan = repeat_and_select(10).plan(mechanism, sampling, 100, epsilon=2.0, delta=1e-5)
        >>> round(plan.mechanism.noise_multiplier, 3)
        1.05

    Reference: Papernot and Steinke, Hyperparameter Tuning with Renyi Differential Privacy, 2022,
    theorems 2 and 6, https://arxiv.org/abs/2110.03620
    """

    composes: ClassVar[bool] = True

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._set(mean=_checks.positive("mean", self.mean))
        if self.shape != math.inf:
            self._set(shape=_checks.non_negative("shape", self.shape))
        if not self.mean >= 1:
            raise ValueError(f"mean = {self.mean!r}: expected at least 1")

    def event(self, run: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Returns the event of the whole search."""
        return RepeatAndSelectDpEvent(run, self.mean, self.shape)

    def total(
        self, run: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float
    ) -> Bound:
        """Returns the epsilon of the search."""
        return epsilon_of(self.event(run), relation, delta, self.accountant)

    def trials(self, rng: np.random.Generator, candidates: int) -> list[int]:
        """Draws K, and K candidates with replacement."""
        return rng.integers(candidates, size=self._count(rng)).tolist()

    def _count(self, rng: np.random.Generator) -> int:
        """Draws K by the inverse of its distribution, whose terms have a simple ratio."""
        if self.shape == math.inf:
            return int(rng.poisson(self.mean))
        gamma, eta = self._gamma(), self.shape
        if gamma == 1.0:
            return 1
        log_stop, log_go = math.log(gamma), math.log1p(-gamma)
        remaining, count = rng.random(), 1
        log_scale = math.log(-log_stop) if eta == 0 else _log_expm1(-eta * log_stop) - math.log(eta)
        log_term = log_go - log_scale
        # The series is cut far beyond the resolution of 64 random bits.
        while (
            remaining := remaining - math.exp(log_term)
        ) >= 0 and count < 1000 * self.mean + 1000:
            log_term += log_go + math.log((count + eta) / (count + 1))
            count += 1
        return count

    def _gamma(self) -> float:
        """Returns the stopping probability at which E K is the mean."""

        def excess(gamma: float) -> float:
            log = math.log(gamma)
            scale = -log if self.shape == 0 else -math.expm1(self.shape * log) / self.shape
            return (1 / gamma - 1) / scale - self.mean

        largest = 1 - 1e-9
        return 1.0 if excess(largest) >= 0 else float(optimize.brentq(excess, 1e-12, largest))


def _log_expm1(x: float) -> float:
    """Returns ``log(e^x - 1)`` for x > 0 without overflow."""
    return x + math.log(-math.expm1(-x))


@dataclass(frozen=True)
class disjoint_split(Tuning):
    """Trains each candidate on its own part of the data and chooses one by its errors on the last.

    The data fall into G + 1 parts; candidate i is trained on part i, and with z_i errors on the
    last part it is chosen with probability proportional to ``exp(-selection z_i / 2)``. A run's
    score is minus its number of errors on the *last* part; give `Search.run` each candidate
    together with its part.

    Args:
        candidates: G, the number of candidates.
        selection: the epsilon of the choice.

    Privacy:
        Each example is in only one part, so the costs do not add up: the whole is ``(max(eps_1,
        selection), delta)``-DP for runs that are (eps_1, delta)-DP on their part. Relation: that of
        a run, with each row's part chosen by its row number alone. Released: the chosen run,
        without its score. The price is data: each run sees N / (G + 1) examples, and its sampling
        must use that number.

    Example:
        >>> parts = disjoint_split(2, selection=1.0).parts(jax.random.key(0), 10)
        >>> len(parts), sorted(np.concatenate(parts).tolist()) == list(range(10))
        (3, True)

    Reference: Chaudhuri, Monteleoni and Sarwate, Differentially Private Empirical Risk
    Minimization, 2011, section 6, https://arxiv.org/abs/0912.0071; Auto DP-SGD names it for tuning
    its decays.
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
        """Returns the rows of each candidate's part, followed by those used for the choice.

        Args:
            key: draws the part of each row.
            dataset_size: N, the number of rows.
        """
        size = _checks.integer("dataset_size", dataset_size, at_least=self.candidates + 1)
        # By row number, so that adding or removing a row leaves all others in their parts.
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
        """Returns the search; each run gets the whole budget on its own part.

        Raises:
            ValueError: if there is a `scoring`, which the choice itself replaces, or the choice
                alone spends more than `epsilon`.
        """
        if scoring is not None:
            raise ValueError(f"scoring = {scoring!r}: expected None, the choice itself is private")
        if not self.selection <= _checks.positive("epsilon", epsilon):
            raise ValueError(f"selection = {self.selection:g}: expected at most {epsilon:g}")
        found = calibrate(mechanism, sampling, steps, epsilon, delta, self.accountant)
        return Search(self, found, sampling, steps)

    def total(
        self, run: dp_accounting.DpEvent, relation: NeighboringRelation, delta: float
    ) -> Bound:
        """Returns ``max(eps_1, selection)``."""
        epsilon_1 = epsilon_of(run, relation, delta, self.accountant)
        whole = max(epsilon_1, self.selection)
        return make_bound(whole, self.accountant, relation, note=epsilon_1.note)

    def trials(self, rng: np.random.Generator, candidates: int) -> list[int]:
        """Returns every candidate once."""
        del rng
        if candidates != self.candidates:
            raise ValueError(f"{candidates} candidates: expected {self.candidates}, as planned")
        return list(range(candidates))

    def best(self, rng: np.random.Generator, scores: object) -> int:
        """Returns the run that the exponential mechanism draws."""
        errors = -np.asarray(scores, float)
        if not np.all(np.isfinite(errors) & (errors >= 0) & (errors == np.round(errors))):
            raise ValueError(
                f"scores = {scores!r}: expected minus the number of errors of each run"
            )
        weights = np.exp(-self.selection / 2 * (errors - errors.min()))
        return int(rng.choice(errors.size, p=weights / weights.sum()))
