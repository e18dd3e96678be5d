"""Releases other than training steps: private evaluations, counts and the like."""

from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
from dp_accounting import NeighboringRelation

from dpjax import _checks
from dpjax._record import Record
from dpjax.accounting.relation import as_relation
from dpjax.sampling import FullBatch

__all__ = ["DeclaredQuery", "GaussianQuery", "LaplaceQuery", "Query"]


class Query(Record):
    """A release other than a training step: `GaussianQuery`, `LaplaceQuery` or `DeclaredQuery`.

    It records what was released for a `Ledger`; the release itself is made elsewhere.

    Attributes:
        what: what was released, in words; it appears in the privacy statement.
    """

    role: ClassVar[str] = "query"

    what: str

    def _check_what(self) -> None:
        if not isinstance(self.what, str) or not self.what.strip():
            raise ValueError(f"what = {self.what!r}: expected words that say what was released")


class _NoisyQuery(Query):
    role: ClassVar[str] = "query"

    noise_multiplier: float
    count: int

    def event(self, relation: NeighboringRelation, accountant: str) -> dp_accounting.DpEvent:
        """Returns the dp-accounting event of all `count` releases.

        Args:
            relation: the neighbouring relation.
            accountant: the accountant that will read the event; under replace-one, "rdp" gets half
                the noise.
        """
        halved = relation is NeighboringRelation.REPLACE_ONE and accountant == "rdp"
        one = self._one(self.noise_multiplier / 2 if halved else self.noise_multiplier)
        return dp_accounting.SelfComposedDpEvent(one, self.count)

    def _one(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        raise NotImplementedError

    def _check_noise(self) -> None:
        self._check_what()
        self._set(
            noise_multiplier=_checks.positive("noise_multiplier", self.noise_multiplier),
            count=_checks.integer("count", self.count, at_least=1),
        )


@dataclass(frozen=True)
class GaussianQuery(_NoisyQuery):
    """A sum over all the data, a number or a vector, released with Gaussian noise.

    ``sum_i f(x_i) + N(0, (noise_multiplier * b)^2 I)``, where |f(x_i)| <= b in the L2 norm.

    Args:
        what: what was released, in words.
        noise_multiplier: the standard deviation of the noise over b, > 0.
        count: how many such releases there were, >= 1.

    Raises:
        ValueError: if `what` is empty, or a number is outside its range.

    Privacy:
        Bound: b, on the caller's word; nothing here checks it. Relation: add or remove one example;
        under replace-one the sum can change by 2 b, which is accounted. Event: one Gaussian per
        release, without amplification. Not protected: anything, if f(x_i) can exceed b.

    Example:
        >>> GaussianQuery("right answers on held-out examples", noise_multiplier=50.0).count
        1
    """

    what: str
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_noise()

    def _one(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        return dp_accounting.GaussianDpEvent(noise_multiplier)


@dataclass(frozen=True)
class LaplaceQuery(_NoisyQuery):
    """A sum over all the data, a number or a vector, released with Laplace noise.

    ``sum_i f(x_i) + Laplace(noise_multiplier * b)`` in every coordinate, where |f(x_i)| <= b in the
    L1 norm.

    Args:
        what: what was released, in words.
        noise_multiplier: the scale of the noise over b, > 0.
        count: how many such releases there were, >= 1.

    Raises:
        ValueError: if `what` is empty, or a number is outside its range.

    Privacy:
        Bound: b, on the caller's word; nothing here checks it. Relation: add or remove one example;
        under replace-one the sum can change by 2 b, which is accounted. Event: one Laplace release
        each, of epsilon ``1 / noise_multiplier``, without amplification. Not protected: anything,
        if f(x_i) can exceed b.

    Example:
        >>> from dpjax.accounting import Ledger
        >>> ledger = Ledger("digits").add(LaplaceQuery("number of sevens", noise_multiplier=10.0))
        >>> ledger.epsilon(delta=1e-5) <= 0.1 + 1e-3
        True
    """

    what: str
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_noise()

    def _one(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        return dp_accounting.LaplaceDpEvent(noise_multiplier)


@dataclass(frozen=True)
class DeclaredQuery(Query):
    """A release with a declared (epsilon, delta), which dpjax does not check.

    Args:
        what: what was released, in words.
        epsilon: its epsilon, > 0.
        delta: its delta, in [0, 1); 0 for pure differential privacy.
        relation: the neighbouring relation they hold for, "add_or_remove_one" or "replace_one"; a
            ledger under the other relation raises an error.

    Raises:
        ValueError: if `what` is empty, a number is outside its range, or the relation is unknown.

    Privacy:
        Bound: none is checked. Relation: `relation`. Event: none; the guarantee is added to the
        rest by basic composition: epsilons add up, and so do deltas. Not protected: anything, if
        the declared guarantee does not hold.

    Example:
        >>> from dpjax.accounting import Ledger
        >>> ledger = Ledger("digits").add(DeclaredQuery("a census table", epsilon=0.5))
        >>> float(ledger.epsilon(delta=1e-5))
        0.5
    """

    what: str
    epsilon: float
    delta: float = 0.0
    relation: str = "add_or_remove_one"

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._check_what()
        self._set(
            epsilon=_checks.positive("epsilon", self.epsilon),
            delta=_checks.fraction("delta", self.delta, zero=True),
            relation=as_relation(self.relation, FullBatch()).name.lower(),
        )
