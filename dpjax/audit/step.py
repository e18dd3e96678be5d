"""White-box audit of a release: gradient canaries, the exact neighbouring pair, many draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax

from dpjax import _checks
from dpjax.audit.bounds import bound_of_draws, check_confidence
from dpjax.audit.claims import Claim, claim_of, with_noise_times
from dpjax.audit.finding import Finding
from dpjax.audit.pairs import PAIRS, Pair
from dpjax.audit.releases import Auditable, Draw, releases_of
from dpjax.audit.scores import Fitted, by_mean, by_spread
from dpjax.audit.watched import watched
from dpjax.methods import Method

__all__ = ["StepAudit", "audit_release", "audit_step"]


@dataclass(frozen=True)
class StepAudit:
    """How much is drawn, and what is asked.

    Args:
        draws: releases of each world behind the bound.
        pilot: releases of each world and pair that choose the attack; none of them counts later.
        confidence: the probability with which the bound holds.
        delta: the delta at which claim and bound are compared. One release of a few thousand draws
            shows what happens with a probability of one in a thousand, not of 1e-5.
    """

    draws: int = 100_000
    pilot: int = 8_000
    confidence: float = 0.99
    delta: float = 1e-3

    def __post_init__(self) -> None:
        """Checks the fields."""
        for field in ("draws", "pilot"):
            _checks.integer(field, getattr(self, field), at_least=100)
        check_confidence(self.confidence)
        _checks.fraction("delta", self.delta)


class _Attack(NamedTuple):
    pair: Pair
    kind: str
    score: Fitted
    promise: float


def audit_step(
    method: Method,
    key: jax.Array,
    audit: StepAudit = StepAudit(),  # noqa: B008  a record of numbers
    *,
    rate: float = 1.0,
    steps: int = 1,
    noise: float = 1.0,
) -> Finding:
    """Audits what a method releases in a step against what the accounting claims for it.

    Args:
        method: the method; of one that stores every example, a data set of `dpjax.audit.ROWS`.
        key: the key of all draws.
        audit: how much is drawn.
        rate: the probability with which a step takes the canary.
        steps: how many steps are watched and claimed for.
        noise: what the noise is multiplied by, behind the back of the claim.

    Example:
        >>> import dpjax, jax
        >>> method = dpjax.methods.dp_sgd(noise_multiplier=1.0)
        >>> few = StepAudit(draws=4_000, pilot=4_000)
        >>> audit_step(method, jax.random.key(0), few).verdict
        'holds'
        >>> audit_step(method, jax.random.key(0), few, noise=0.25).verdict
        'REFUTED'
    """
    return audit_release(
        method.name,
        watched(with_noise_times(method, noise)),
        lambda delta: claim_of(method, rate, steps, delta),
        key,
        audit,
        [pair.repeated(steps) for pair in PAIRS],
        rate,
    )


def audit_release(
    name: str,
    subject: Auditable,
    claims: Callable[[float], Claim],
    key: jax.Array,
    audit: StepAudit = StepAudit(),  # noqa: B008  a record of numbers
    pairs: Sequence[Pair] = PAIRS,
    rate: float = 1.0,
) -> Finding:
    """Returns a lower bound on the epsilon of what is released for some neighbouring pairs.

    Every pair is tried with every score on pilot draws. The best of them is then used on fresh
    draws, which alone the bound is computed from.

    Args:
        name: the name in the finding.
        subject: what is audited; `dpjax.audit.watched` shows the noisy statistic too.
        claims: what is claimed for all steps of a pair, by delta.
        key: the key of all draws.
        audit: how much is drawn.
        pairs: the pairs, all of as many steps.
        rate: the probability with which a step takes the canary.
    """
    claim = claims(audit.delta)
    pilot, final = jax.random.split(key)
    draw = releases_of(subject, rate)
    best = max(
        (attack for pair in pairs for attack in _attacks(draw, pair, pilot, audit)),
        key=lambda attack: attack.promise,
    )
    excluded, included = (
        best.score(draw(best.pair, bool(world), jax.random.fold_in(final, world), audit.draws))
        for world in (0, 1)
    )
    return Finding(
        name,
        "step",
        f"{best.pair.name}; {best.kind}",
        claim.epsilon,
        claim.source,
        bound_of_draws(included, excluded, audit.confidence, audit.delta),
        audit.confidence,
        audit.delta,
        audit.draws,
        included,
        excluded,
        lambda delta: claims(delta).epsilon,
    )


def _attacks(draw: Draw, pair: Pair, key: jax.Array, audit: StepAudit) -> list[_Attack]:
    """Returns the scores that half of the pilot draws gave, and what the other half promises."""
    worlds = [draw(pair, bool(w), jax.random.fold_in(key, w), audit.pilot) for w in (0, 1)]
    half = audit.pilot // 2
    found = []
    for kind, fit in (("mean", by_mean), ("spread", by_spread)):
        score = fit(*(world[:half] for world in worlds))
        zeros, ones = (score(world[half:]) for world in worlds)
        promise = bound_of_draws(ones, zeros, audit.confidence, audit.delta)
        found.append(_Attack(pair, kind, score, promise))
    return found
