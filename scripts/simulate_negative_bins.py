"""Measures what DC-SGD-E does with negative noisy bins; prints the tables of its docs page.

    python scripts/simulate_negative_bins.py

Norms are log-normal (median 3, spread 0.5) and batches are Poisson. d grows with B^2, so that the
best threshold is the same for every B. Each cell is computed over 40 seeds.
"""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.noise import sigma_gradient
from dpjax.thresholds import ThresholdContext, dc_sgd_e
from dpjax.thresholds.histogram import HistogramState

SIGMA, SIGMA_H, STEPS, SEEDS = 1.0, 5.0, 300, 40
MODES = ("nonneg", "raw", "threshold")
NOISE_SHARE = 0.1  # d / B^2


def context(batch_size: int) -> ThresholdContext:
    """Returns the public numbers of a run at this batch size."""
    dimension = int(NOISE_SHARE * batch_size**2)
    return ThresholdContext(batch_size, dimension, sigma_gradient(SIGMA, SIGMA_H), SIGMA_H)


def histogram(key: jax.Array, batch_size: int, upper: jax.Array, rule: dc_sgd_e) -> jax.Array:
    """Returns the noise-free histogram of a Poisson batch out of ten times as many examples."""
    draw, size = jax.random.split(key)
    norms = 3.0 * jnp.exp(0.5 * jax.random.normal(draw, (10 * batch_size,)))
    present = jax.random.bernoulli(size, 0.1, norms.shape)
    one_hot = rule.statistic(norms, HistogramState(jnp.float32(1.0), upper))
    return jnp.sum(one_hot * present[:, None], axis=0)


def trained(mode: str, batch_size: int, noise: float) -> np.ndarray:
    """Returns the mean threshold over the last 100 of 300 steps, for every seed."""
    rule = dc_sgd_e(sigma_h=SIGMA_H, negative=mode)

    def run(key: jax.Array) -> jax.Array:
        def step(state: HistogramState, key: jax.Array) -> tuple[HistogramState, jax.Array]:
            draw, noisy = jax.random.split(key)
            bins = histogram(draw, batch_size, state.range, rule)
            bins += noise * SIGMA_H * jax.random.normal(noisy, bins.shape)
            state = rule.update(state, bins, context(batch_size))
            return state, state.threshold

        _, path = jax.lax.scan(step, rule.init(), jax.random.split(key, STEPS))
        return jnp.mean(path[-100:])

    return np.asarray(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), SEEDS)))


def ran_away(mode: str, batch_size: int, ratio: float) -> float:
    """Returns how often one update takes C from 3 to below 0.3, if R is `ratio` medians."""
    rule = dc_sgd_e(sigma_h=SIGMA_H, negative=mode)
    start = HistogramState(jnp.float32(3.0), jnp.float32(3.0 * ratio))

    def run(key: jax.Array) -> jax.Array:
        draw, noisy = jax.random.split(key)
        bins = histogram(draw, batch_size, start.range, rule)
        bins += SIGMA_H * jax.random.normal(noisy, bins.shape)
        return rule.update(start, bins, context(batch_size)).threshold < 0.3

    return float(jnp.mean(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(1), 2000))))


def exact_optimum() -> float:
    """Returns the threshold with the least expected squared error, from a million exact norms."""
    norms = 3.0 * np.exp(0.5 * np.random.default_rng(0).normal(size=1_000_000))
    sigma_t = float(sigma_gradient(SIGMA, SIGMA_H))
    grid = np.linspace(2.0, 6.0, 401)
    bias = [np.mean(np.maximum(norms - c, 0.0) ** 2) for c in grid]
    return float(grid[np.argmin(NOISE_SHARE * sigma_t**2 * grid**2 + bias)])


def main() -> None:
    """Prints both tables as Markdown."""
    print(f"Best threshold, from the norms themselves: {exact_optimum():.2f}\n")
    print("| B | without noise | " + " | ".join(MODES) + " |")
    print("|---" * (2 + len(MODES)) + "|")
    for batch_size in (32, 64, 128, 256, 1024):
        cells = [trained("raw", batch_size, 0.0).mean()]
        spread = [trained(mode, batch_size, 1.0) for mode in MODES]
        row = [f"{cells[0]:.2f}"] + [f"{c.mean():.2f} ± {c.std():.2f}" for c in spread]
        print(f"| {batch_size} | " + " | ".join(row) + " |")
    print()
    print("| B | R over the median norm | " + " | ".join(MODES) + " |")
    print("|---" * (2 + len(MODES)) + "|")
    for batch_size in (64, 256):
        for ratio in (5.0, 20.0, 40.0):
            cells = [f"{100 * ran_away(mode, batch_size, ratio):.1f}%" for mode in MODES]
            print(f"| {batch_size} | {ratio:g} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
