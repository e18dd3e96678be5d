"""Trajectories of the geometric quantile update of Andrew et al. (2021), arXiv:1905.03871."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

LN2 = math.log(2.0)
SQRT2 = math.sqrt(2.0)


def quantile_trajectory(
    stream: Sequence[ArrayLike], c0: float, target: float, lr: ArrayLike
) -> list[float]:
    """C_1, C_2, ... of C <- C exp(-lr (mean_i [n_i <= C] - target)), one batch of norms a step."""
    c, out = c0, []
    for norms, rate in zip(stream, np.broadcast_to(lr, (len(stream),)), strict=True):
        c *= math.exp(-float(rate) * (float(np.mean(np.asarray(norms) <= c)) - target))
        out.append(c)
    return out


def rounds_to_cross(c0: float, value: float, target: float, lr: float) -> int:
    """Noise-free rounds until C first crosses norms that all equal `value`.

    From below no bit is set, and C grows by exp(lr target) a round: ceil(ln(x) / (lr target))
    rounds until C >= value. From C >= value every bit is set, and C shrinks by
    exp(-lr (1 - target)): floor(ln(x) / (lr (1 - target))) + 1 rounds until C < value. x is the
    ratio of the two, target in (0, 1).
    """
    if c0 < value:
        return math.ceil(math.log(value / c0) / (lr * target))
    return math.floor(math.log(c0 / value) / (lr * (1 - target))) + 1


@dataclass(frozen=True)
class PublishedTrajectory:
    """The same batch of 1-d gradients every step, noise-free; both outputs have one entry a step.

    clipped_sums[t] is sum_i clip(g_i, C_t), thresholds[t] is C_{t+1}.
    """

    gradients: tuple[float, ...]
    c0: float
    target: float
    lr: float
    thresholds: tuple[float, ...]
    clipped_sums: tuple[float, ...]


# TensorFlow Privacy (github.com/tensorflow/privacy), tensorflow_privacy/privacy/dp_query/
# quantile_adaptive_clip_sum_query_test.py: test_adaptation_target_{zero,one}_geometric. The
# thresholds are also in quantile_estimator_query_test.py: test_target_{zero,one}_geometric.
TF_PRIVACY_GEOMETRIC = (
    PublishedTrajectory(
        gradients=(5.0, -2.5),
        c0=16.0,
        target=0.0,
        lr=LN2,
        thresholds=(8.0, 4.0, 4.0 / SQRT2, 2.0, 2.0),
        clipped_sums=(2.5, 2.5, 1.5, 4.0 / SQRT2 - 2.5, 0.0),
    ),
    PublishedTrajectory(
        gradients=(-1.5, 3.0),
        c0=0.5,
        target=1.0,
        lr=LN2,
        thresholds=(1.0, 2.0, 2.0 * SQRT2, 4.0, 4.0),
        clipped_sums=(0.0, 0.0, 0.5, 2.0 * SQRT2 - 1.5, 1.5),
    ),
)


@dataclass(frozen=True)
class PublishedConvergence:
    """The same norms every step: |C_{t+1} - limit| <= tolerance for steps t = first..len(lr)-1."""

    norms: tuple[float, ...]
    starts: tuple[float, ...]
    target: float
    lr: tuple[float, ...]
    limit: float
    tolerance: float
    first: int


# TensorFlow Privacy, quantile_estimator_query_test.py: test_linspace and test_all_equal, the
# geometric cases (50 steps, checked for t > 40), from a low and from a high start.
TF_PRIVACY_CONVERGENCE = (
    PublishedConvergence(
        norms=tuple(0.5 * i for i in range(21)),
        starts=(1.0, 10.0),
        target=0.5,
        lr=(1.0,) * 50,
        limit=5.0,
        tolerance=0.25,
        first=41,
    ),
    PublishedConvergence(
        norms=(5.0,) * 20,
        starts=(1.0, 10.0),
        target=0.5,
        lr=tuple(1.0 / math.sqrt(t + 1) for t in range(50)),
        limit=5.0,
        tolerance=0.5,
        first=41,
    ),
)


@dataclass(frozen=True)
class PublishedUpdate:
    """One noise-free update from a known fraction of norms <= C."""

    c: float
    fraction: float
    target: float
    lr: float
    expected: float


# pfl-research (github.com/apple/pfl-research), tests/privacy/test_adaptive_clipping.py:
# test_adaptive_clipping.
PFL_UPDATES = (
    PublishedUpdate(c=3.0, fraction=0.5, target=0.5, lr=0.1, expected=3.0),
    PublishedUpdate(c=3.0, fraction=0.5, target=0.2, lr=0.2, expected=2.825293600752746),
)
