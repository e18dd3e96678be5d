"""Other releases about the same data: private evaluations, counts, and the like."""

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
    """A release that is no training step. Subclasses are frozen dataclasses with a `what`."""

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
        """Returns the event, written for an accountant."""
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
    """A number or vector, released with Gaussian noise over all the data.

    Args:
        what: what was released, in words.
        noise_multiplier: the noise's standard deviation over the L2 norm of what one example adds.
        count: how many times.

    Privacy:
        Bound: as the caller says by `noise_multiplier`. Relation: add or remove one example; under
        replace-one the change is two bounds, and is accounted so. Event: a Gaussian per release.

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
    """A number or vector, released with Laplace noise over all the data.

    Args:
        what: what was released, in words.
        noise_multiplier: the noise's scale over the L1 norm of what one example adds.
        count: how many times.

    Privacy:
        Bound: as the caller says by `noise_multiplier`; epsilon is its inverse. Relation: as for
        `GaussianQuery`. Event: a Laplace release each.
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
    """A release with a guarantee of its own, which is taken at its word.

    Args:
        what: what was released, in words.
        epsilon: its epsilon.
        delta: its delta; 0 for pure differential privacy.
        relation: the relation that both are for; a ledger under another one refuses it.

    Privacy:
        Added to the rest by basic composition: epsilons add up, deltas add up.
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
