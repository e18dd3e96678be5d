"""Scores that tell two worlds apart, fitted to some releases and used on others.

Scores say whether the canary was there. Guesses also say which of several canaries it was; they
detect what is rare but revealing, such as noise that is missing now and then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

__all__ = ["FittedScore", "Guess", "LargestCoordinate", "NearestAtom", "by_mean", "by_spread"]

Guess: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Maps releases (n, D) to guesses of which canary it was, indices (n,), and scores (n,)."""

_CERTAIN = 1e12  # the score of a release that only one world makes


@dataclass(frozen=True, eq=False)
class FittedScore:
    """A score ``sum_j (linear_j x_j + quadratic_j x_j^2)``, larger with the canary than without.

    A coordinate that is not finite is evidence for the world that produces more of them.

    Attributes:
        linear: (D,).
        quadratic: (D,).
        centre: (D,), subtracted from x first; also replaces coordinates that are not finite.
        broken: what each coordinate that is not finite adds to the score.
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


def by_mean(without: np.ndarray, with_canary: np.ndarray) -> FittedScore:
    """Fits Fisher's linear score ``(mu_1 - mu_0)^T S^-1 x``, with S the pooled covariance.

    It is the likelihood ratio of two Gaussians with the same covariance, as in a sound release.
    Noise that cancels between coordinates shows as a direction without variance.

    Args:
        without: releases (n, D) of the world without the canary.
        with_canary: releases of the world with it.
    """
    centre, broken = _common(without, with_canary)
    zeros, ones = (_filled(x, centre) - centre for x in (without, with_canary))
    shift = ones.mean(0) - zeros.mean(0)
    covariance = (np.cov(zeros.T) + np.cov(ones.T)) / 2
    ridge = 1e-9 * np.trace(covariance) / len(shift) + 1e-30
    linear = np.linalg.solve(covariance + ridge * np.eye(len(shift)), shift)
    return FittedScore(linear, np.zeros_like(linear), centre, broken)


def by_spread(without: np.ndarray, with_canary: np.ndarray) -> FittedScore:
    """Fits a Gaussian to each coordinate in each world, and scores by their likelihood ratio.

    ``sum_j ((x_j - mu_0j)^2 / v_0j - (x_j - mu_1j)^2 / v_1j) / 2``. Unlike a linear score, it
    detects noise whose scale depends on the data.

    Args:
        without: releases (n, D) of the world without the canary.
        with_canary: releases of the world with it.
    """
    centre, broken = _common(without, with_canary)
    zeros, ones = (_filled(x, centre) - centre for x in (without, with_canary))
    floor = 1e-12 * max(zeros.var(0).max(), ones.var(0).max()) + 1e-30
    v0, v1 = zeros.var(0) + floor, ones.var(0) + floor
    m0, m1 = zeros.mean(0), ones.mean(0)
    return FittedScore(m1 / v1 - m0 / v0, (1 / v0 - 1 / v1) / 2, centre, broken)


@dataclass(frozen=True, eq=False)
class NearestAtom:
    """Names the canary whose noiseless release is nearest; the nearer, the higher the score.

    ``-min_i |(x - a_i) / s|`` over the gradient's coordinates, where the atom a_i is the mean
    release with canary i and s the noise's standard deviation per coordinate. A release without its
    noise lies on its atom; in eight dimensions hardly any other release is near one. Rounding to a
    grid much finer than the noise changes distances little.

    Attributes:
        atoms: (m, D), in standard deviations from the centre.
        centre: (D,).
        scale: (D,).
    """

    atoms: np.ndarray
    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, without: np.ndarray, with_each: np.ndarray) -> "NearestAtom":
        """Fits atoms and scale.

        Args:
            without: gradients (n, D) released without a canary.
            with_each: gradients (k, m, D) released with each of m canaries.
        """
        centre, scale = _centre_and_scale(without)
        atoms = np.where(np.isfinite(with_each), with_each, centre).mean(0)
        return cls((atoms - centre) / scale, centre, scale)

    def __call__(self, releases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the names, indices (n,), and scores (n,) of gradients (n, D)."""
        x = _standard(releases, self.centre, self.scale)
        squares = np.sum(self.atoms**2, axis=1) - 2 * x @ self.atoms.T
        names = np.argmin(squares, axis=1)
        distances = np.linalg.norm(x - self.atoms[names], axis=1)
        return names, -distances


@dataclass(frozen=True, eq=False)
class LargestCoordinate:
    """Names the canary along the most extreme coordinate; the more extreme, the higher the score.

    ``max_j |x_j - c_j| / s_j`` over the gradient's coordinates. If the noise in any coordinate has
    a short tail, it alone does not reach as far as noise and canary together.

    Attributes:
        up: (D,), the canary that raises a coordinate most.
        down: (D,), the canary that lowers it most.
        centre: (D,).
        scale: (D,).
    """

    up: np.ndarray
    down: np.ndarray
    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, without: np.ndarray, with_each: np.ndarray) -> "LargestCoordinate":
        """Fits the effect of each canary; arguments as for `NearestAtom.fit`."""
        atoms = NearestAtom.fit(without, with_each)
        up, down = np.argmax(atoms.atoms, axis=0), np.argmin(atoms.atoms, axis=0)
        return cls(up, down, atoms.centre, atoms.scale)

    def __call__(self, releases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the names, indices (n,), and scores (n,) of gradients (n, D)."""
        x = _standard(releases, self.centre, self.scale)
        places = np.argmax(np.abs(x), axis=1)
        found = x[np.arange(len(x)), places]
        return np.where(found > 0, self.up[places], self.down[places]), np.abs(found)


def _centre_and_scale(without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    kept = without[np.isfinite(without).all(1)]
    if not len(kept):
        return np.zeros(without.shape[1]), np.ones(without.shape[1])
    spread = kept.std(0)
    # Deviations that differ only by chance are set equal, so that a cut tail ends at one place.
    alike = np.abs(spread - np.median(spread)) <= 4 * np.median(spread) / np.sqrt(2 * len(kept))
    spread = np.where(alike, spread[alike].mean() if alike.any() else 0.0, spread)
    return kept.mean(0), spread + 1e-9 * spread.max() + 1e-30


def _standard(x: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip((np.where(np.isfinite(x), x, centre) - centre) / scale, -_CERTAIN, _CERTAIN)


def _common(without: np.ndarray, with_canary: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the mean over both worlds, and the score of a coordinate that is not finite."""
    both = np.concatenate([without, with_canary])
    finite = np.isfinite(both)
    centre = np.where(finite, both, 0.0).sum(0) / np.maximum(finite.sum(0), 1)
    more = np.mean(~np.isfinite(with_canary)) - np.mean(~np.isfinite(without))
    return centre, float(_CERTAIN * np.sign(more))


def _filled(x: np.ndarray, centre: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, centre)
