"""Neighbouring relations, and which accountant supports which sampling."""

from dp_accounting import NeighboringRelation

from dpjax import _checks
from dpjax.sampling import FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson

__all__ = [
    "ACCOUNTANTS",
    "SUPPORTED",
    "as_relation",
    "check_accountant",
    "check_supported",
    "relation_of",
]

_ADD, _REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE

ACCOUNTANTS = ("pld", "rdp", "tcdp", "gdp")

SUPPORTED: dict[type[Sampling], dict[NeighboringRelation, tuple[str, ...]]] = {
    Poisson: {_ADD: ("pld", "rdp", "tcdp", "gdp"), _REPLACE: ("pld",)},
    TruncatedPoisson: {_ADD: ("pld", "rdp"), _REPLACE: ("pld",)},
    FixedSize: {_ADD: (), _REPLACE: ("rdp", "tcdp")},
    FullBatch: {_ADD: ACCOUNTANTS, _REPLACE: ACCOUNTANTS},
}
"""The accountants that give a number for a sampler under a relation; docs/accounting.md shows it.

Add-or-remove-one is not defined for batches of fixed size, whose sampling depends on the size of
the data set. Poisson under replace-one has a known worst case for PLD only.
"""


def as_relation(
    relation: NeighboringRelation | str | None, sampling: Sampling
) -> NeighboringRelation:
    """Returns the neighbouring relation: the one given, or the sampler's own.

    >>> as_relation(None, FixedSize(2, 10)).name, as_relation("replace_one", FullBatch()).name
    ('REPLACE_ONE', 'REPLACE_ONE')
    """
    if relation is None:
        return relation_of(sampling)
    if isinstance(relation, str):
        names = {member.name.lower(): member for member in (_ADD, _REPLACE)}
        if relation not in names:
            raise ValueError(f"relation = {relation!r}: {_checks.nearest(relation, names)}")
        return names[relation]
    if not isinstance(relation, NeighboringRelation) or relation not in (_ADD, _REPLACE):
        raise ValueError(f"relation = {relation!r}: expected add_or_remove_one or replace_one")
    return relation


def relation_of(sampling: Sampling) -> NeighboringRelation:
    """Returns the relation a sampler is accounted under unless another one is asked for."""
    return _REPLACE if isinstance(sampling, FixedSize) else _ADD


def check_accountant(accountant: str) -> str:
    """Returns the accountant's name, or refuses an unknown one."""
    return _checks.choice("accountant", accountant, ACCOUNTANTS)


def check_supported(sampling: object, accountant: str, relation: NeighboringRelation) -> None:
    """Refuses a pair of sampler and accountant without a known bound, and names what works."""
    if not isinstance(sampling, Sampling) or type(sampling) not in SUPPORTED:
        known = ", ".join(kind.__name__ for kind in SUPPORTED)
        raise TypeError(f"sampling = {sampling!r}: expected one of {known}")
    check_accountant(accountant)
    works = SUPPORTED[type(sampling)]
    if accountant not in works[relation]:
        ways = [f"{name!r} under {other.name.lower()}" for other in works for name in works[other]]
        raise ValueError(
            f"accountant = {accountant!r} with {type(sampling).__name__} under "
            f"{relation.name.lower()}: no bound is known; expected {' or '.join(ways)}"
        )
