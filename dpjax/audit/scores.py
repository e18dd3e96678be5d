"""What tells two worlds apart: scores fitted to some releases, for use on others."""

from dataclasses import dataclass

import numpy as np

__all__ = ["Fitted", "by_mean", "by_spread"]

_CERTAIN = 1e12  # the score of a release that one world alone makes


@dataclass(frozen=True, eq=False)
class Fitted:
    """A score ``sum_j (linear_j x_j + quadratic_j x_j^2)``; larger where the canary is.

    A coordinate that is not finite counts as evidence by itself: for the world that makes more of
    them.

    Attributes:
        linear: (D,).
        quadratic: (D,).
        centre: (D,), what is subtracted from x first, and stands for what is not finite.
        broken: what each coordinate that is not finite adds.
    """

    linear: np.ndarray
    quadratic: np.ndarray
    centre: np.ndarray
    broken: float

    def __call__(self, releases: np.ndarray) -> np.ndarray:
        """Returns the scores of releases (n, D), as (n,)."""
        finite = np.isfinite(releases)
        x = np.where(finite, releases, self.centre) - self.centre
        smooth = x @ self.linear + np.square(x) @ self.quadratic
        scores = smooth + self.broken * np.sum(~finite, axis=1)
        return np.clip(scores, -_CERTAIN, _CERTAIN)


def by_mean(without: np.ndarray, with_canary: np.ndarray) -> Fitted:
    """Fits Fisher's linear score ``(mu_1 - mu_0)^T S^-1 x``, S the covariance both worlds share.

    It is the likelihood ratio of two Gaussians of one covariance: of a sound release in particular.
    Noise that cancels between coordinates shows as a direction without variance.

    Args:
        without: releases (n, D) of the world without the canary.
        with_canary: releases of the other.
    """
    centre, broken = _common(without, with_canary)
    zeros, ones = (_filled(x, centre) - centre for x in (without, with_canary))
    shift = ones.mean(0) - zeros.mean(0)
    covariance = (np.cov(zeros.T) + np.cov(ones.T)) / 2
    ridge = 1e-9 * np.trace(covariance) / len(shift) + 1e-30
    linear = np.linalg.solve(covariance + ridge * np.eye(len(shift)), shift)
    return Fitted(linear, np.zeros_like(linear), centre, broken)


def by_spread(without: np.ndarray, with_canary: np.ndarray) -> Fitted:
    """Fits a Gaussian to each coordinate in each world, and scores by their likelihood ratio.

    ``sum_j ((x_j - mu_0j)^2 / v_0j - (x_j - mu_1j)^2 / v_1j) / 2``: it sees noise whose scale
    depends on the data, which no linear score does.

    Args:
        without: releases (n, D) of the world without the canary.
        with_canary: releases of the other.
    """
    centre, broken = _common(without, with_canary)
    zeros, ones = (_filled(x, centre) - centre for x in (without, with_canary))
    floor = 1e-12 * max(zeros.var(0).max(), ones.var(0).max()) + 1e-30
    v0, v1 = zeros.var(0) + floor, ones.var(0) + floor
    m0, m1 = zeros.mean(0), ones.mean(0)
    return Fitted(m1 / v1 - m0 / v0, (1 / v0 - 1 / v1) / 2, centre, broken)


def _common(without: np.ndarray, with_canary: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the mean over both worlds, and what a coordinate that is not finite says."""
    both = np.concatenate([without, with_canary])
    finite = np.isfinite(both)
    centre = np.where(finite, both, 0.0).sum(0) / np.maximum(finite.sum(0), 1)
    more = np.mean(~np.isfinite(with_canary)) - np.mean(~np.isfinite(without))
    return centre, float(_CERTAIN * np.sign(more))


def _filled(x: np.ndarray, centre: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, centre)
