"""Lower bounds on epsilon from scores, by jax-privacy's estimators."""

from typing import Any

import numpy as np

from dpjax import _checks

__all__ = ["bound_of_draws", "bound_of_one_run", "check_confidence"]

_CHOOSING = 0.3  # the part of the scores that chooses their threshold
_SEED = 0  # which scores those are


def bound_of_draws(
    with_canary: np.ndarray, without: np.ndarray, confidence: float, delta: float
) -> float:
    """Returns a lower bound on epsilon from independent draws of either world.

    ``log((P(score > t | with) - delta) / P(score > t | without))``, or with the worlds exchanged,
    with Clopper and Pearson's limits for both probabilities; t is chosen on draws that the limits
    are not computed from.

    Args:
        with_canary: a score for each draw with the canary.
        without: a score for each draw without it.
        confidence: the probability with which the bound holds, as 0.99.
        delta: the delta of the claim.

    Reference: Nasr et al., Adversary instantiation, 2021.
    """
    auditing = _auditing()
    found = auditing.CanaryScoreAuditor(with_canary, without).epsilon_clopper_pearson(
        1 - confidence,
        delta,
        one_sided=False,
        threshold_strategy=auditing.Split(_CHOOSING, seed=_SEED),
    )
    return float(found)


def bound_of_one_run(
    included: np.ndarray, excluded: np.ndarray, confidence: float, delta: float
) -> float:
    """Returns a lower bound on epsilon from one run with many canaries, each in by a fair coin.

    Args:
        included: scores of the canaries that were trained on.
        excluded: scores of those that were not.
        confidence: the probability with which the bound holds.
        delta: the delta of the claim.

    Reference: Steinke, Nasr and Jagielski, Privacy auditing with one training run, 2023.
    """
    auditing = _auditing()
    found = auditing.CanaryScoreAuditor(included, excluded).epsilon_one_run(
        1 - confidence, delta, threshold_strategy=auditing.Split(_CHOOSING, seed=_SEED)
    )
    return float(found)


def check_confidence(confidence: float) -> None:
    """Refuses a confidence that is no better than a coin.

    >>> check_confidence(0.4)
    Traceback (most recent call last):
    ...
    ValueError: confidence = 0.4: expected a number in (0.5, 1), as 0.99
    """
    if not _checks.fraction("confidence", confidence) > 0.5:
        raise ValueError(f"confidence = {confidence}: expected a number in (0.5, 1), as 0.99")


def _auditing() -> Any:
    try:
        from jax_privacy import auditing  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise ImportError("audits need jax-privacy: pip install dpjax[audit]") from error
    return auditing
