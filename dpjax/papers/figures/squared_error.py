"""The expected squared error of a clipped, noisy gradient against C (DC-SGD's section III-D)."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks, noise
from dpjax.data import Dataset
from dpjax.thresholds import ThresholdContext, dc_sgd_p
from dpjax.thresholds.histogram import (
    HistogramState,
    HistogramThreshold,
    midpoints,
    norm_histogram,
)
from dpjax.train import Experiment, Plan, build_program, build_runner, member_key, root_key
from dpjax.train.feed import examples_of
from dpjax.train.step import Examples, TrainState

__all__ = [
    "NoisyGradient",
    "NormsOfRun",
    "SquaredError",
    "best_threshold",
    "estimated_error",
    "gradient_norms",
    "noisy_histogram",
    "percentile_thresholds",
    "picked_thresholds",
    "squared_error",
]


class SquaredError(NamedTuple):
    """The two terms of the error, one number for each threshold."""

    variance: np.ndarray
    bias: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """The sum of both terms."""
        return self.variance + self.bias


class NoisyGradient(NamedTuple):
    """The public numbers of a private gradient.

    Attributes:
        sigma: the gradient's own noise multiplier sigma_T.
        dimension: d.
        batch_size: B.
    """

    sigma: float
    dimension: int
    batch_size: float

    @property
    def scale(self) -> float:
        """``sigma_T^2 d / B^2``; the variance is C^2 times this."""
        return self.sigma**2 * self.dimension / self.batch_size**2


def squared_error(
    thresholds: np.ndarray, norms: np.ndarray, release: NoisyGradient
) -> SquaredError:
    """Returns the error of one example's gradient at several thresholds.

    ``E(C) = sigma_T^2 C^2 d / B^2 + mean_i max(n_i - C, 0)^2``

    Args:
        thresholds: the values of C.
        norms: n_i.
        release: noise, dimension and batch size.

    >>> squared_error(np.array([2.0]), np.array([1.0, 4.0]), NoisyGradient(1.0, 100, 10.0))
    SquaredError(variance=array([4.]), bias=array([2.]))

    Reference: Wei et al., DC-SGD, equation 3.
    """
    c, n = np.asarray(thresholds, np.float64), np.asarray(norms, np.float64)
    lost = np.maximum(n - c[:, None], 0.0)
    return SquaredError(release.scale * c**2, np.mean(lost**2, axis=1))


def best_threshold(norms: np.ndarray, release: NoisyGradient) -> float:
    """Returns the C with the smallest error.

    E is convex, and its derivative is zero where ``scale N C = sum_i max(n_i - C, 0)``. If S_k is
    the sum of the k largest norms, the right side is ``max_k (S_k - k C)``, so
    ``C = max_k S_k / (scale N + k)``.

    >>> best_threshold(np.array([1.0, 4.0]), NoisyGradient(1.0, 100, 10.0))
    1.3333333333333333
    """
    largest = np.sort(np.asarray(norms, np.float64))[::-1]
    counts = np.arange(1, len(largest) + 1)
    return float(np.max(np.cumsum(largest) / (release.scale * len(largest) + counts)))


def noisy_histogram(
    norms: np.ndarray, upper: float, bins: int, sigma_h: float, seed: int = 0
) -> np.ndarray:
    """Returns one private histogram of norms on [0, R], as DC-SGD releases it.

    Args:
        norms: the norms of a batch.
        upper: R.
        bins: b.
        sigma_h: the noise on each bin.
        seed: the seed of the noise.
    """
    rows = norm_histogram(jnp.asarray(norms, jnp.float32), jnp.float32(upper), bins)
    noisy = _noisy(jax.random.key(seed), jnp.sum(rows, axis=0), sigma_h)
    return np.asarray(noisy, np.float64)


def estimated_error(
    thresholds: np.ndarray, histogram: np.ndarray, upper: float, release: NoisyGradient
) -> np.ndarray:
    """Returns the error that DC-SGD-E estimates from a histogram of norms on [0, R].

    Each bin counts as its middle; a negative noisy bin counts as empty.

    Args:
        thresholds: the values of C.
        histogram: the bins, with their noise.
        upper: R.
        release: noise, dimension and batch size.
    """
    bins = np.asarray(histogram, np.float64)
    middles = np.asarray(midpoints(jnp.float32(upper), len(bins)), np.float64)
    c = np.asarray(thresholds, np.float64)
    lost = np.maximum(middles - c[:, None], 0.0) ** 2
    return release.scale * c**2 + lost @ np.maximum(bins, 0.0) / bins.sum()


def percentile_thresholds(fractions: np.ndarray, histogram: np.ndarray, upper: float) -> np.ndarray:
    """Returns the thresholds that DC-SGD-P computes from a histogram on [0, R], one for each p.

    Args:
        fractions: the values of p.
        histogram: the bins, with their noise.
        upper: R.

    >>> percentile_thresholds(np.array([0.2, 0.9]), np.array([1.0, 2.0, 1.0, 0.0]), 8.0)
    array([1., 5.])
    """
    state = HistogramState(jnp.float32(upper / 2), jnp.float32(upper))
    bins = jnp.asarray(histogram, jnp.float32)
    context = ThresholdContext(1.0, 1, jnp.float32(1.0), 1.0)  # the percentile needs none of it
    found = [dc_sgd_p(p=p, bins=len(bins)).update(state, bins, context) for p in fractions.tolist()]
    return np.asarray([one.threshold for one in found], np.float64)


def picked_thresholds(
    rule: HistogramThreshold,
    norms: np.ndarray,
    release: NoisyGradient,
    sigma_h: float,
    steps: int,
    seed: int = 0,
) -> np.ndarray:
    """Returns the thresholds that a rule of `dpjax.thresholds` picks, step after step.

    Each step draws a Poisson batch of the norms, which do not change, and releases its histogram
    with noise; the rule's own update does the rest.

    Args:
        rule: `dc_sgd_p` or `dc_sgd_e`.
        norms: the norms of all examples, at least B.
        release: noise, dimension and batch size.
        sigma_h: the noise on each bin.
        steps: the number of steps.
        seed: the seed of the draws and the noise.
    """
    _checks.integer("steps", steps, at_least=1)
    if release.batch_size > len(norms):
        raise ValueError(f"{len(norms)} norms: expected at least the batch's {release.batch_size}")
    shown = jnp.asarray(norms, jnp.float32)
    context = ThresholdContext(
        release.batch_size, release.dimension, jnp.float32(release.sigma), sigma_h
    )

    def step(state: HistogramState, key: jax.Array) -> tuple[HistogramState, jax.Array]:
        batch, histogram = jax.random.split(key)
        drawn = jax.random.bernoulli(batch, release.batch_size / len(norms), shown.shape)
        total = drawn.astype(jnp.float32) @ rule.statistic(shown, state)
        state = rule.update(state, _noisy(histogram, total, sigma_h), context)
        return state, state.threshold

    _, found = jax.lax.scan(step, rule.init(), jax.random.split(jax.random.key(seed), steps))
    return np.asarray(found, np.float64)


def _noisy(key: jax.Array, histogram: jax.Array, sigma_h: float) -> jax.Array:
    return noise.release(key, histogram, jnp.zeros_like(histogram), sigma_h)


class NormsOfRun(NamedTuple):
    """Gradient norms at some steps of a run. NOT private.

    Attributes:
        plan: the plan of the run.
        dimension: d, the number of trainable parameters.
        norms: the norms, by the step before which they were measured.
    """

    plan: Plan
    dimension: int
    norms: dict[int, np.ndarray]


def gradient_norms(
    experiment: Experiment, dataset: Dataset, steps: Sequence[int], examples: int
) -> NormsOfRun:
    """Trains, and measures the gradient norms of the first training examples at some steps.

    Args:
        experiment: what to train; reproducible with a `run.seed`.
        dataset: its data.
        steps: the steps at which to measure, in increasing order; 0 is before the first step.
        examples: the number of examples.

    Privacy:
        None: the norms of training examples are released without noise.
    """
    program = build_program(experiment, dataset)
    runner = build_runner(program, dataset, experiment.run)
    key = member_key(root_key(experiment.run.seed), program.plan.experiment.identity, 0)
    state = program.init(key)
    probed = jax.device_put(
        jax.tree.map(lambda leaf: leaf[:examples], examples_of(dataset.examples))
    )

    @jax.jit
    def look(state: TrainState, examples: Examples) -> jax.Array:
        return program.gradients_of(state)(state.params, examples).norms

    found: dict[int, np.ndarray] = {}
    for step in steps:
        while (left := step - int(state.step)) > 0:
            state, _ = runner.advance(state, min(left, runner.most))
        norms = np.asarray(look(state, probed), np.float64)
        found[step] = norms[np.isfinite(norms)]
    dimension = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return NormsOfRun(program.plan, dimension, found)
