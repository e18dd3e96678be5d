"""Whether what a paper claims holds in our runs, as far as the seeds can tell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpjax.reproduce.outcome import Outcome
from dpjax.reproduce.report.claims import Claim

__all__ = ["VERDICTS", "Verdict", "groups", "verdicts"]

CONFIRMED, REFUTED = "confirmed", "not confirmed"
WITHIN, ONE_SEED = "within the seeds' spread", "one seed"
VERDICTS = (CONFIRMED, REFUTED, WITHIN, ONE_SEED)
"""What can come of a claim."""


@dataclass(frozen=True)
class Verdict:
    """A claim, and two of our numbers that it is about.

    Attributes:
        claim: the claim.
        winner: what came of the method that is said to win.
        loser: what came of the other.
    """

    claim: Claim
    winner: Outcome
    loser: Outcome

    @property
    def printed(self) -> float:
        """By how many points the winner is ahead in print."""
        return self.winner.cell.accuracy - self.loser.cell.accuracy

    @property
    def ours(self) -> float:
        """By how many points it is ahead in our runs."""
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
    def text(self) -> str:
        """One of `VERDICTS`: beyond two standard errors the seeds decide."""
        if self.error is None:
            return ONE_SEED
        if abs(self.ours) <= 2 * self.error:
            return CONFIRMED if self.claim.or_equal else WITHIN
        return CONFIRMED if self.ours > 0 else REFUTED


def groups(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Returns our numbers by table, data, network and budget, with those that stand alone.

    Auto DP-SGD prints another epsilon for each method: its rows have their first noise in common.
    """
    found: dict[tuple[object, ...], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.records:
            cell = outcome.cell
            budget = cell.epsilon if cell.sigma0 is None else cell.sigma0
            key = (cell.table_name, cell.dataset, cell.model, budget, cell.metric)
            found.setdefault(key, []).append(outcome)
    return list(found.values())


def verdicts(outcomes: Sequence[Outcome], claims: Sequence[Claim]) -> list[Verdict]:
    """Returns what came of the claims whose two methods both have runs.

    Args:
        outcomes: what came of the cells.
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
