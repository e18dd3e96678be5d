"""The ledger: an append-only record of all releases, from which epsilon is recomputed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self, TypeAlias

import dp_accounting
from dp_accounting import NeighboringRelation

from dpjax import _checks
from dpjax._record import Record
from dpjax.accounting.bound import Bound, epsilon_of, make_bound, upper_epsilon_of
from dpjax.accounting.events import event
from dpjax.accounting.queries import DeclaredQuery, GaussianQuery, LaplaceQuery, Query
from dpjax.accounting.relation import as_relation, check_accountant
from dpjax.accounting.tuning import Search
from dpjax.mechanism import Mechanism
from dpjax.sampling import FixedSize, FullBatch, Sampling

__all__ = ["Ledger", "Steps", "Together", "published_together"]


class _EntryRecord(Record):
    role: ClassVar[str] = "ledger entry"


@dataclass(frozen=True)
class Steps(_EntryRecord):
    """A ledger entry: training steps that were released.

    Args:
        mechanism: the mechanism that ran.
        sampling: the sampling that drew its batches.
        steps: how many steps, >= 1.
        start: how many steps the same run had released before.
        run: the id of the run, with which `Ledger.add_steps` can continue it; None for a separate
            run.

    Raises:
        TypeError: as for `dpjax.accounting.event`.
        ValueError: as for `dpjax.accounting.event`, because every entry must be accountable.

    Privacy:
        Event: `dpjax.accounting.event` of these steps.

    Example:
        >>> import dpjax
        >>> Steps(dpjax.methods.dp_sgd(1.0), dpjax.sampling.FullBatch(), steps=10).start
        0
    """

    mechanism: Mechanism
    sampling: Sampling
    steps: int
    start: int = 0
    run: str | None = None

    def __post_init__(self) -> None:
        """Checks the fields, and that the steps can be accounted."""
        self._set(
            steps=_checks.integer("steps", self.steps, at_least=1),
            start=_checks.integer("start", self.start, at_least=0),
        )
        if self.run is not None and (not isinstance(self.run, str) or not self.run.strip()):
            raise ValueError(f"run = {self.run!r}: expected the id of a run, or None")
        event(self.mechanism, self.sampling, self.steps, self.start)


Entry: TypeAlias = Steps | Query | Search
"""An entry of a ledger: steps, a query or a search."""


class _LedgerRecord(Record):
    role: ClassVar[str] = "ledger"


@dataclass(frozen=True)
class Ledger(_LedgerRecord):
    """A list of everything released about one data set.

    A ledger is immutable: adding an entry returns a new ledger, and entries cannot be removed.

    Args:
        dataset: the name of the data set, for the privacy statement.
        unit: what one example represents, which is the unit of protection.
        entries: the releases in order: `Steps`, queries and searches.

    Raises:
        TypeError: if an entry is not one of these.
        ValueError: if a name is empty.

    Privacy:
        Epsilon is that of the composition of all entries, recomputed from their mechanisms and
        samplings. Not counted: anything released without being entered.

    Example:
        >>> import dpjax
        >>> mechanism, sampling = dpjax.methods.dp_sgd(1.0), dpjax.sampling.Poisson.with_rate(0.01)
        >>> ledger = Ledger("digits").add_steps(mechanism, sampling, 600, run="first")
        >>> ledger = ledger.add_steps(mechanism, sampling, 400, run="first")
        >>> len(ledger.entries), round(ledger.epsilon(delta=1e-5), 2)
        (1, 1.83)
        >>> Ledger.from_json(ledger.to_json()) == ledger
        True
    """

    dataset: str
    unit: str = "one example"
    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        """Checks the fields."""
        for field in ("dataset", "unit"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{field} = {value!r}: expected a name")
        if not isinstance(self.entries, list | tuple):
            raise TypeError(f"entries = {self.entries!r}: expected a list")
        self._set(entries=tuple(self.entries))
        for i, entry in enumerate(self.entries):
            if not isinstance(entry, Steps | Query | Search):
                raise TypeError(f"entries[{i}] = {entry!r}: expected Steps, a query or a Search")

    def add(self, entry: Entry) -> Self:
        """Returns the ledger with one more entry.

        Args:
            entry: `Steps`, a query or a search.
        """
        return self.replace(entries=(*self.entries, entry))

    def add_steps(
        self,
        mechanism: Mechanism,
        sampling: Sampling,
        steps: int = 1,
        run: str | None = None,
    ) -> Self:
        """Returns the ledger with more steps.

        Args:
            mechanism: the mechanism that ran.
            sampling: the sampling that drew its batches.
            steps: how many steps, >= 1.
            run: the id of the run. If the ledger already has steps of that run, the new ones
                continue after them, including their place in schedules, whatever was entered in
                between. Without an id they form a separate run from step 0.
        """
        entry = Steps(mechanism, sampling, steps, self._end_of(run), run)
        last = self.entries[-1] if self.entries else None
        if isinstance(last, Steps) and _follows(entry, last):
            longer = last.replace(steps=last.steps + entry.steps)
            return self.replace(entries=(*self.entries[:-1], longer))
        return self.add(entry)

    def _end_of(self, run: str | None) -> int:
        """Returns the number of steps a run has released."""
        for entry in reversed(self.entries):
            if run is not None and isinstance(entry, Steps) and entry.run == run:
                return entry.start + entry.steps
        return 0

    @property
    def relation(self) -> NeighboringRelation:
        """The neighbouring relation: replace-one if any batch had a fixed size."""
        samplers = [e.sampling for e in self.entries if isinstance(e, Steps | Search)]
        fixed = [s for s in samplers if isinstance(s, FixedSize)]
        return as_relation(None, fixed[0] if fixed else FullBatch())

    def epsilon(
        self,
        delta: float,
        accountant: str = "pld",
        *,
        relation: str | NeighboringRelation | None = None,
    ) -> Bound:
        """Returns the epsilon of everything in the ledger; 0 if it is empty.

        Args:
            delta: the target delta, in (0, 1).
            accountant: as for `dpjax.accounting.epsilon`; a `repeat_and_select` search needs "rdp".
            relation: "add_or_remove_one", "replace_one", or None for the ledger's own.

        Raises:
            ValueError: if the accountant knows no bound for an entry under this relation, or the
                declared queries use up delta.
        """
        happened, relation, left, declared = self._composed(delta, accountant, relation)
        rest = epsilon_of(happened, relation, left, accountant) if happened.events else None
        lower = rest.lower if rest is not None and not declared else 0.0
        note = _joined([declared.note, "" if rest is None else rest.note])
        guarantee = rest is None or rest.guarantee
        return make_bound(
            (rest or 0.0) + declared, accountant, relation, lower, note, guarantee=guarantee
        )

    def upper_epsilon(self, delta: float, accountant: str = "pld") -> float:
        """Returns the upper bound of `epsilon` without its lower bound, in half the time.

        Args:
            delta: the target delta, in (0, 1).
            accountant: as for `epsilon`.
        """
        happened, relation, left, declared = self._composed(delta, accountant, None)
        if not happened.events:
            return declared.upper
        return declared + upper_epsilon_of(happened, relation, left, accountant)

    def _composed(
        self, delta: float, accountant: str, relation: str | NeighboringRelation | None
    ) -> tuple[dp_accounting.DpEvent, NeighboringRelation, float, Bound]:
        """Returns the composed event, its relation and delta, and the epsilon of other entries."""
        delta = _checks.fraction("delta", delta)
        check_accountant(accountant)
        relation = self.relation if relation is None else as_relation(relation, FullBatch())
        declared, left = self._declared(delta, relation, accountant)
        parts = [self._event(entry, relation, accountant) for entry in self.entries]
        happened = dp_accounting.ComposedDpEvent([part for part in parts if part is not None])
        return happened, relation, left, declared

    def _declared(
        self, delta: float, relation: NeighboringRelation, accountant: str
    ) -> tuple[Bound, float]:
        """Returns the epsilon of entries with their own guarantee, and the remaining delta."""
        queries = [e for e in self.entries if isinstance(e, DeclaredQuery)]
        searches = [e for e in self.entries if isinstance(e, Search) and not e.tuning.composes]
        left = delta - sum(query.delta for query in queries)
        if not left > 0:
            raise ValueError(
                f"delta = {delta:g}: expected more than {delta - left:g}, which declared queries "
                "take"
            )
        for query in queries:
            if as_relation(query.relation, FullBatch()) is not relation:
                raise ValueError(
                    f"{query!r} in a ledger under {relation.name.lower()}: expected a guarantee "
                    "under that relation"
                )
        # Each such search gets an equal share of delta; all other entries together get one share.
        rest = len(self.entries) > len(queries) + len(searches)
        share = left / max(1, len(searches) + rest)
        costs = [search.epsilon(share, relation) for search in searches]
        spent = sum(query.epsilon for query in queries) + sum(costs)
        note = _joined([cost.note for cost in costs])
        return make_bound(spent, accountant, relation, note=note), share if rest else left

    def _event(
        self, entry: Entry, relation: NeighboringRelation, accountant: str
    ) -> dp_accounting.DpEvent | None:
        if isinstance(entry, Steps):
            return event(
                entry.mechanism,
                entry.sampling,
                entry.steps,
                entry.start,
                relation=relation,
                accountant=accountant,
            )
        if isinstance(entry, GaussianQuery | LaplaceQuery):
            return entry.event(relation, accountant)
        if isinstance(entry, Search) and entry.tuning.composes:
            return entry.event(relation, accountant)
        return None

    def to_json(self) -> str:
        """Returns the ledger as JSON text, for `from_json`."""
        return json.dumps(self.to_plain(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Returns the ledger that `to_json` wrote.

        Args:
            text: the JSON text.

        Raises:
            TypeError: if it is the plain form of something else.
            ValueError: if it is not valid JSON, or holds an unknown or missing field.
        """
        try:
            return cls.from_plain(json.loads(text))
        except RecursionError as error:
            raise ValueError("ledger: expected less nesting") from error


def _joined(notes: Sequence[str]) -> str:
    """Returns the notes that say something, each once."""
    return "; ".join(dict.fromkeys(note for note in notes if note))


def _follows(entry: Steps, last: Steps) -> bool:
    same = (entry.mechanism, entry.sampling) == (last.mechanism, last.sampling)
    one_run = entry.run is not None and entry.run == last.run
    return same and one_run and entry.start == last.start + last.steps


class Together(NamedTuple):
    """The cost of several runs on the same data.

    Attributes:
        each: the epsilon of each run alone.
        all_published: the epsilon of publishing all of them.
    """

    each: tuple[Bound, ...]
    all_published: Bound


def published_together(
    ledgers: Sequence[Ledger], delta: float, accountant: str = "pld"
) -> Together:
    """Returns what several runs on the same data cost, each alone and all published.

    A table that shows several seeds, methods or hyper-parameters has released all of those runs:
    its cost is that of their composition.

    Args:
        ledgers: one per run, all of the same data set and unit.
        delta: the target delta, in (0, 1).
        accountant: as for `dpjax.accounting.epsilon`.

    Raises:
        ValueError: if there are no ledgers, or they are of different data sets or units.

    Privacy:
        Event: the composition of all entries of all ledgers. It assumes that no two runs share
        noise or batches: give each its own key.

    Example:
        >>> import dpjax
        >>> mechanism, sampling = dpjax.methods.dp_sgd(1.0), dpjax.sampling.Poisson.with_rate(0.01)
        >>> runs = [Ledger("digits").add_steps(mechanism, sampling, 1000)] * 3
        >>> cost = published_together(runs, delta=1e-5)
        >>> f"each {cost.each[0]:.2f}, all published {cost.all_published:.2f}"
        'each 1.83, all published 3.19'

    Reference: Papernot and Steinke, Hyperparameter Tuning with Renyi Differential Privacy, 2022,
    https://arxiv.org/abs/2110.03620, on what runs cost that are only compared;
    `dpjax.accounting.tuning` has searches that publish one of them for less.
    """
    if not ledgers:
        raise ValueError("ledgers: expected at least one")
    names = {(ledger.dataset, ledger.unit) for ledger in ledgers}
    if len(names) > 1:
        raise ValueError(f"ledgers of {sorted(names)}: expected one data set and unit")
    whole = ledgers[0].replace(entries=tuple(e for ledger in ledgers for e in ledger.entries))
    each = tuple(ledger.epsilon(delta, accountant) for ledger in ledgers)
    return Together(each, whole.epsilon(delta, accountant))
