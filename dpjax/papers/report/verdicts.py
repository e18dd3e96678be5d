"""Whether the papers' claims hold in our runs, and how methods rank in print and in our runs."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from dpjax.papers.outcome import Outcome
from dpjax.papers.printed_numbers import PAPERS
from dpjax.papers.report import markdown
from dpjax.papers.report.claims import CLAIMS, PaperClaim
from dpjax.papers.report.result_tables import TITLES

__all__ = ["VERDICTS", "Verdict", "groups", "orders", "verdict_counts", "verdicts"]

CONFIRMED, REFUTED, TIE = "confirmed", "refuted", "tie"
UNDECIDED, ONE_SEED = "undecided", "one seed"
VERDICTS = (CONFIRMED, REFUTED, TIE, UNDECIDED, ONE_SEED)
"""The possible verdicts."""


_LEGEND = """\
A claim of a paper is *confirmed* where the method that is said to win is ahead by more than two
standard errors of the difference, from the seeds' spread; *refuted* where it is behind by more than
that; *undecided* between the two, or a *tie* where the words allow one (≥): a tie is no
confirmation. Nothing is said of *one seed*."""

_DISTINCT = """Two experiments that several tables compare count once."""

_ORDER_LEGEND = """\
Pairs of methods that stand in the same order as printed; ties in print are left out."""


@dataclass(frozen=True)
class Verdict:
    """A claim, and our results for the two methods it compares.

    Attributes:
        claim: the claim.
        winner: our result for the method that the paper says wins.
        loser: our result for the other method.
    """

    claim: PaperClaim
    winner: Outcome
    loser: Outcome

    @property
    def printed(self) -> float:
        """By how many points the winner is ahead in print."""
        return self.winner.cell.value - self.loser.cell.value

    @property
    def ours(self) -> float:
        """By how many points the winner is ahead in our runs."""
        return (self.winner.mean or 0.0) - (self.loser.mean or 0.0)

    @property
    def error(self) -> float | None:
        """The standard error of `ours`, ``sqrt(s_1^2 / n_1 + s_2^2 / n_2)``; None for one seed."""
        parts = []
        for outcome in (self.winner, self.loser):
            if outcome.deviation is None:
                return None
            parts.append(outcome.deviation**2 / len(outcome.records))
        return math.sqrt(sum(parts))

    @property
    def pair(self) -> tuple[str, str, str]:
        """The two experiments that are compared, and the claimed winner."""
        winner, loser = self.winner.records[0], self.loser.records[0]
        return self.winner.cell.paper, winner.experiment, loser.experiment

    @property
    def text(self) -> str:
        """One of `VERDICTS`; a difference counts if it exceeds two standard errors."""
        if self.error is None:
            return ONE_SEED
        if abs(self.ours) <= 2 * self.error:
            return TIE if self.claim.or_equal else UNDECIDED
        return CONFIRMED if self.ours > 0 else REFUTED


def groups(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Returns our results grouped by table, data, network and budget.

    Auto DP-SGD prints a different epsilon for each method; its rows are grouped by sigma_0.
    """
    found: dict[tuple[object, ...], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.records and outcome.cell.is_score:
            cell = outcome.cell
            budget = cell.epsilon if cell.sigma0 is None else cell.sigma0
            key = (cell.table_name, cell.dataset, cell.model, budget, cell.metric)
            found.setdefault(key, []).append(outcome)
    return list(found.values())


def verdicts(outcomes: Sequence[Outcome], claims: Sequence[PaperClaim]) -> list[Verdict]:
    """Returns verdicts on the claims whose two methods both have runs.

    Args:
        outcomes: our results for the cells.
        claims: the claims.
    """
    by_method = [{outcome.cell.method: outcome for outcome in g} for g in groups(outcomes)]
    found = []
    for claim in claims:
        for methods in by_method:
            both = claim.winner in methods and claim.loser in methods
            if both and claim.is_about(methods[claim.winner].cell):
                found.append(Verdict(claim, methods[claim.winner], methods[claim.loser]))
    return found


def orders(outcomes: Sequence[Outcome]) -> str:
    """Returns the verdicts on the papers' claims, and both orders of every group.

    Args:
        outcomes: our results for the cells.
    """
    found = verdicts(outcomes, CLAIMS)
    compared = [group for group in groups(outcomes) if len(group) > 1]
    if not found and not compared:
        return ""
    parts = ["## Who beats whom", _LEGEND]
    parts += _claims(found) if found else ["No claim has runs of both its methods yet."]
    if compared:
        parts += ["### Orders", _ORDER_LEGEND, _order_table(compared)]
    return "\n\n".join(parts)


def verdict_counts(outcomes: Sequence[Outcome]) -> str:
    """Returns how many distinct claims have each verdict, by paper; empty if none.

    Args:
        outcomes: our results for the cells.
    """
    distinct = {one.pair: one for one in verdicts(outcomes, CLAIMS)}.values()
    if not distinct:
        return ""
    rows = []
    for name in PAPERS:
        own = Counter(one.text for one in distinct if one.winner.cell.paper == name)
        if own:
            rows.append([TITLES[name], *(str(own[kind]) for kind in VERDICTS)])
    if len(rows) > 1:
        total = Counter(one.text for one in distinct)
        rows.append(["all", *(str(total[kind]) for kind in VERDICTS)])
    table = markdown.table(["claims of", *VERDICTS], rows)
    return "\n\n".join(["## Who beats whom", f"{_LEGEND} {_DISTINCT}", table])


def _claims(found: Sequence[Verdict]) -> list[str]:
    """Returns a table for each sentence of a paper."""
    sentences: dict[tuple[str, str], list[Verdict]] = {}
    for one in found:
        sentences.setdefault((one.claim.table, one.claim.where), []).append(one)
    parts = []
    for own in sentences.values():
        cell, claim = own[0].winner.cell, own[0].claim
        parts.append(f"**{TITLES[cell.paper]}, table {cell.table}**, {claim.where}:")
        header = ["data", "ε", "claim", "ahead in print", "ahead in ours", "seeds", "verdict"]
        parts.append(markdown.table(header, [_row(one) for one in own]))
    return parts


def _row(one: Verdict) -> list[str]:
    error = "" if one.error is None else f" ± {2 * one.error:.2f}"
    seeds = [len(one.winner.records), len(one.loser.records)]
    return [
        one.winner.cell.dataset,
        one.winner.cell.budget,
        one.claim.text,
        f"{one.printed:+.2f}",
        f"{one.ours:+.2f}{error}",
        str(seeds[0]) if seeds[0] == seeds[1] else f"{seeds[0]} and {seeds[1]}",
        one.text,
    ]


def _order_table(compared: Sequence[Sequence[Outcome]]) -> str:
    rows = []
    for group in compared:
        cell = group[0].cell
        same, pairs = _agreeing(group)
        rows.append(
            [
                f"{TITLES[cell.paper]} {cell.table}",
                f"{cell.dataset}, {cell.model}",
                cell.budget,
                _ranking([(o.cell.value, o.cell.method) for o in group]),
                _ranking([(o.mean or 0.0, o.cell.method) for o in group]),
                f"{same} of {pairs}",
            ]
        )
    header = ["table", "data, model", "ε", "printed, best first", "ours, best first", "pairs"]
    return markdown.table(header, rows)


def _ranking(numbers: Sequence[tuple[float, str]]) -> str:
    ordered = sorted(numbers, key=lambda pair: -pair[0])
    return ", ".join(f"{method} {accuracy:.1f}" for accuracy, method in ordered)


def _agreeing(group: Sequence[Outcome]) -> tuple[int, int]:
    """Returns how many pairs are in the printed order, and how many pairs there are."""
    signs = [
        (a.cell.value - b.cell.value) * ((a.mean or 0.0) - (b.mean or 0.0))
        for a, b in combinations(group, 2)
        if a.cell.value != b.cell.value
    ]
    return sum(sign > 0 for sign in signs), len(signs)
