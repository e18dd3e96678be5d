"""What an audit found: a claim, a lower bound, and the scores behind it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Finding"]


@dataclass(frozen=True, eq=False)
class Finding:
    """One attack on one method.

    Attributes:
        name: the method's name.
        attack: "step", "one run" or "final model".
        detail: which pair and score, or how many canaries.
        claimed: the epsilon that is claimed at `delta`.
        source: who claims it: "accounted", or "printed" where there is no guarantee.
        bound: the lower bound on epsilon.
        confidence: the probability with which the bound holds, together with the others that were
            computed of the same draws.
        tried: how many bounds hold together with that confidence; the best is reported.
        delta: the delta of both.
        draws: how many scores there are of each world.
        included: scores with the canary; -inf where the attack named another one.
        excluded: scores without it.
        claim_at: the epsilon that is claimed at another delta.
    """

    name: str
    attack: str
    detail: str
    claimed: float
    source: str
    bound: float
    confidence: float
    delta: float
    draws: int
    included: np.ndarray = field(repr=False)
    excluded: np.ndarray = field(repr=False)
    claim_at: Callable[[float], float] = field(repr=False)
    tried: int = 1

    @property
    def refuted(self) -> bool:
        """Whether the lower bound lies above the claim."""
        return not self.bound <= self.claimed

    @property
    def verdict(self) -> str:
        """One word on it: "holds" says no more than that this attack did not refute the claim."""
        return "REFUTED" if self.refuted else "holds"
