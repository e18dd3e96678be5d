"""Lower bounds on epsilon from scores, and trade-off curves.

One bound uses Clopper and Pearson's limits on many draws, the other one run with many canaries. A
trade-off curve shows the errors that an attack makes, or the errors that a claim forces it to make.
"""

from collections.abc import Sequence
from types import ModuleType

import numpy as np
from scipy.special import betaincinv

from dpjax import _checks

__all__ = [
    "bound_of_draws",
    "bound_of_one_run",
    "check_confidence",
    "claimed_tradeoff",
    "measured_tradeoff",
]

_CHOOSING = 0.3  # the share of the scores that is used to choose the threshold
_SEED = 0  # selects those scores
_CANDIDATES = 120  # thresholds tried, evenly over the scores, and at either end


def bound_of_draws(
    with_canary: np.ndarray,
    without: np.ndarray,
    confidence: float,
    delta: float,
    suspects: int = 1,
    choosing: tuple[np.ndarray, np.ndarray] | None = None,
) -> float:
    """Returns a lower bound on epsilon from independent draws with and without the canary.

    ``log((P(score > t | with) - delta) / P(score > t | without))``, or with the worlds exchanged,
    with Clopper and Pearson's limits for both probabilities. The threshold t and the direction are
    chosen on draws that the limits do not use.

    With suspects, the canary of each draw is one of m, each equally often, and a score counts only
    if the attack also names the right one; otherwise it is -inf. Without the canary, any name is
    right with probability 1/m whatever the release, so the second probability is
    ``P(score > t | without) / m``. This detects violations m times rarer than one in the number of
    draws.

    Args:
        with_canary: a score for each draw with the canary.
        without: a score for each draw without it.
        confidence: the probability with which the bound holds, such as 0.99.
        delta: the delta of the claim.
        suspects: m, the number of possible canaries.
        choosing: scores of other draws, with and without the canary, used to choose t; None uses
            30% of the scores above.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ones, zeros = rng.normal(1.0, 1.0, 20_000), rng.normal(0.0, 1.0, 20_000)
        >>> 1.5 < bound_of_draws(ones, zeros, 0.99, 1e-3) < 3.14  # the Gaussian mechanism's
        True

    Reference: Nasr et al., Adversary Instantiation: Lower Bounds for Differentially Private Machine
    Learning, 2021, https://arxiv.org/abs/2101.04535; Clopper and Pearson, The Use of Confidence or
    Fiducial Limits, 1934, https://doi.org/10.1093/biomet/26.4.404
    """
    if choosing is None:
        rng = np.random.default_rng(_SEED)
        parts = (_split(scores, rng) for scores in (with_canary, without))
        choosing, (with_canary, without) = zip(*parts, strict=True)
    likely_draws, rare_draws = len(with_canary), len(without)

    def epsilon(likely: np.ndarray, rare: np.ndarray) -> np.ndarray:
        """Returns the bound for shares of draws; each limit gets half of the risk."""
        risk = (1 - confidence) / 2
        k, n = likely * likely_draws, likely_draws
        lower = np.where(k > 0, betaincinv(np.maximum(k, 1e-9), n - k + 1, risk), 0.0)
        k, n = rare * rare_draws, rare_draws
        upper = np.where(k < n, betaincinv(k + 1, np.maximum(n - k, 1e-9), 1 - risk), 1.0)
        return np.log(np.maximum(lower - delta, 1e-300) / upper * suspects)

    best = (-np.inf, 0.0, False)
    for exchanged in (False, True) if suspects == 1 else (False,):
        first, second = _worlds(choosing[0], choosing[1], exchanged)
        at = _thresholds(first, second)
        # Count one more: a score that no draw has reached is not impossible.
        promise = epsilon(_above(first, at), np.minimum(_above(second, at) + 1 / len(second), 1))
        # Of the thresholds that are nearly as good, take the middle one, since few draws decide at
        # the edges. With names, take the highest: past the scores without the canary, a slightly
        # higher score is much rarer.
        room, part = (0.02, 0.5) if suspects == 1 else (0.1, 1.0)
        good = np.flatnonzero(promise >= promise.max() - room)
        place = good[int(part * (len(good) - 1))]
        best = max(best, (float(promise.max()), float(at[place]), exchanged))
    _, threshold, exchanged = best
    shares = (_above(x, np.array([threshold])) for x in _worlds(with_canary, without, exchanged))
    return float(max(0.0, epsilon(*shares)[0]))


def _split(scores: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    shuffled = rng.permutation(scores)
    chosen = int(_CHOOSING * len(scores))
    return shuffled[:chosen], shuffled[chosen:]


def _worlds(ones: np.ndarray, zeros: np.ndarray, exchanged: bool) -> tuple[np.ndarray, np.ndarray]:
    return (-zeros, -ones) if exchanged else (ones, zeros)


def _thresholds(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns scores spread over their whole range, and all of the highest ones."""
    every = np.sort(np.concatenate([first, second]))
    even = every[np.linspace(0, len(every) - 1, _CANDIDATES).astype(int)]
    at = np.unique(np.concatenate([even, every[-_CANDIDATES:], np.sort(second)[-_CANDIDATES:]]))
    return at[np.isfinite(at)]  # -inf marks a wrong name, and never counts


def _above(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Returns the share of scores above each threshold."""
    return 1 - np.searchsorted(np.sort(scores), thresholds, side="right") / len(scores)


def bound_of_one_run(
    included: np.ndarray, excluded: np.ndarray, confidence: float, delta: float
) -> float:
    """Returns a lower bound on epsilon from one run with many canaries, each included by a coin.

    Args:
        included: scores of the canaries that were trained on.
        excluded: scores of the canaries that were not.
        confidence: the probability with which the bound holds.
        delta: the delta of the claim.

    Reference: Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, 2023,
    https://arxiv.org/abs/2305.08846
    """
    auditing = _auditing()
    found = auditing.CanaryScoreAuditor(included, excluded).epsilon_one_run(
        1 - confidence, delta, threshold_strategy=auditing.Split(_CHOOSING, seed=_SEED)
    )
    return float(found)


def check_confidence(confidence: float) -> None:
    """Raises ValueError unless a confidence lies between 0.5 and 1.

    >>> check_confidence(0.4)
    Traceback (most recent call last):
    ...
    ValueError: confidence = 0.4: expected a number in (0.5, 1), as 0.99
    """
    if not _checks.fraction("confidence", confidence) > 0.5:
        raise ValueError(f"confidence = {confidence}: expected a number in (0.5, 1), as 0.99")


def _auditing() -> ModuleType:
    try:
        from jax_privacy import auditing  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise ImportError("audits need jax-privacy: pip install dpjax[audit]") from error
    return auditing


def measured_tradeoff(included: np.ndarray, excluded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns false positive and false negative rates of ``score > t``, for t over all scores.

    Args:
        included: scores with the canary.
        excluded: scores without it.

    Example:
        >>> false_positive, false_negative = measured_tradeoff(np.array([2, 3]), np.array([1, 2]))
        >>> false_positive.tolist(), false_negative.tolist()
        ([1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 1.0])

    Reference: Dong, Roth and Su, Gaussian Differential Privacy, 2019,
    https://arxiv.org/abs/1905.02383
    """
    at = np.concatenate([[-np.inf], np.union1d(included, excluded)])
    ones, zeros = np.sort(included), np.sort(excluded)
    false_negative = np.searchsorted(ones, at, side="right") / len(ones)
    false_positive = 1 - np.searchsorted(zeros, at, side="right") / len(zeros)
    return false_positive, false_negative


def claimed_tradeoff(
    claims: Sequence[tuple[float, float]], false_positive: np.ndarray
) -> np.ndarray:
    """Returns the smallest false negative rate that claims allow at given false positive rates.

    ``max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))``, the largest over the claims.

    Args:
        claims: pairs of epsilon and delta that all hold.
        false_positive: a, in [0, 1].

    Example:
        >>> claimed_tradeoff([(0.0, 0.1)], np.array([0.0, 0.5, 1.0])).tolist()
        [0.9, 0.4, 0.0]

    Reference: Dong, Roth and Su, Gaussian Differential Privacy, 2019,
    https://arxiv.org/abs/1905.02383
    """
    least = np.zeros_like(false_positive, dtype=np.float64)
    for epsilon, delta in claims:
        rest = 1 - delta
        least = np.maximum(least, rest - np.exp(min(epsilon, 700.0)) * false_positive)
        least = np.maximum(least, np.exp(-epsilon) * (rest - false_positive))
    return least
