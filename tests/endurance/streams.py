"""Hostile streams of gradient norms, and adaptive thresholds run through them for a long time."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpjax.thresholds import Threshold, ThresholdContext
from tests.oracles import thresholds as oracle

# A batch is 16 norms, each of which stands for 32 examples: as cheap as 16, as calm as 512.
ROWS, COPIES = 16, 32
B, D, SIGMA = ROWS * COPIES, 5000, 1.0

SANE = stats.lognorm(s=0.5, scale=np.e).ppf((np.arange(ROWS) + 0.5) / ROWS)
HUGE = float(np.finfo(np.float32).max)


def hostile_streams(steps: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns streams of norms by name, (steps, ROWS) float32 each."""
    rng = np.random.default_rng(seed)
    shape = (steps, ROWS)
    zero, huge = np.zeros(shape), np.full(shape, HUGE)
    even = (np.arange(steps) % 2 == 0)[:, None]
    cauchy = np.abs(rng.standard_cauchy(shape)) ** 3  # heavier than Cauchy's: up to 1e18 and more
    broken = rng.choice([np.nan, np.inf, -np.inf, HUGE, 0.0], shape)
    streams = {
        "zero": zero,
        "huge": huge,
        "subnormal": np.full(shape, 1e-42),
        "alternating": np.where(even, zero, huge),
        "cauchy": np.minimum(cauchy, HUGE),
        "pareto": np.minimum(rng.pareto(0.1, shape), HUGE),
        "nan and inf": broken,
    }
    return {name: stream.astype(np.float32) for name, stream in streams.items()}


class Paths(NamedTuple):
    """C_t and the rest of the state over a stream, (steps, streams), and during the recovery."""

    hostile: np.ndarray
    rest: np.ndarray
    recovery: np.ndarray


def run(threshold: Threshold, streams: np.ndarray, recovery: int, seed: int = 0) -> Paths:
    """Runs a threshold through streams side by side, then through sane norms.

    Args:
        threshold: the adaptive threshold.
        streams: (streams, steps, ROWS).
        recovery: how many sane batches follow.
        seed: of the noise on the statistic, which all streams share.
    """
    sigma_s = threshold.sigma_statistic(SIGMA, B)
    context = ThresholdContext(B, D, jnp.float32(oracle.sigma_gradient(SIGMA, sigma_s)), sigma_s)
    width = threshold.statistic(jnp.ones(1), threshold.init()).shape[1]
    scale = threshold.sensitivity * sigma_s

    def path(state: Any, norms: Any, noise: Any) -> Any:
        def step(state: Any, batch: Any) -> Any:
            norms, noise = batch
            total = COPIES * jnp.sum(threshold.statistic(norms, state), axis=0)
            state = threshold.update(state, total + scale * noise, context)
            return state, state

        return jax.lax.scan(step, state, (norms, noise))

    @jax.jit
    def both(streams: Any, sane: Any, key: Any) -> Any:
        first, second = jax.random.split(key)
        noise = jax.random.normal(first, (streams.shape[1], width))
        after = jax.random.normal(second, (recovery, width))

        def one(norms: Any) -> Any:
            state, seen = path(threshold.init(), norms, noise)
            return seen, path(state, sane, after)[1]

        return jax.vmap(one)(streams)

    sane = jnp.broadcast_to(jnp.asarray(SANE, jnp.float32), (recovery, ROWS))
    seen, recovered = both(jnp.asarray(streams), sane, jax.random.key(seed))
    rest = seen.range if hasattr(seen, "range") else seen.threshold
    return Paths(*(np.asarray(x).T for x in (seen.threshold, rest, recovered.threshold)))


SANE_BATCH = np.repeat(SANE, COPIES)


def oracle_path(
    name: str, c: float, upper: float, steps: int, norms: np.ndarray = SANE_BATCH
) -> np.ndarray:
    """Returns C_t of the float64 oracle without noise, on the same B norms from a given start."""
    sigma_t = oracle.sigma_gradient(SIGMA, oracle.sigma_h(SIGMA))
    path = []
    for _ in range(steps):
        if name == "quantile":
            total = oracle.quantile_statistic(norms, c).sum(0)
            c = oracle.quantile_update(c, total, B, 0.5, 0.2, 1e-8, 1e8)
        elif name == "dc_sgd_p":
            total = oracle.histogram_statistic(norms, upper, 20).sum(0)
            c, upper = oracle.dc_sgd_p_update(c, upper, total, 0.5)
        elif name.startswith("dc_sgd_e"):
            total = oracle.histogram_statistic(norms, upper, 20).sum(0)
            c, upper = oracle.dc_sgd_e_update(c, upper, total, sigma_t, D, B)
        elif name == "private_mean":
            total = oracle.private_mean_statistic(norms, c, 2.0).sum(0)
            c = oracle.private_mean_update(c, total, B, 1.0, 2.0, 1e-8, 1e8)
        else:
            total = oracle.global_z_statistic(norms, c, 1.0).sum(0)
            c = oracle.global_z_update(c, total, B, 0.1, 1e-8, 1e8)
        path.append(c)
    return np.asarray(path)
