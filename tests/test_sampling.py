"""Samplers against what their records claim: inclusion, independence, size; with rejecting arms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.sampling import Drawn, FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson

N, DRAWS = 50, 20_000
SAMPLERS = {
    "poisson": Poisson(0.2),
    "truncated": TruncatedPoisson(0.2, 12, N),
    "fixed": FixedSize(10, N),
    "full": FullBatch(),
}


def membership(sampling: Sampling, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Returns (draws, N) of 0 and 1, from indices and size as a gradient would read them."""

    def one(key: jax.Array) -> jax.Array:
        indices, size = sampling.draw(key, N)
        used = jnp.arange(indices.shape[0]) < size
        return jnp.zeros(N, jnp.int32).at[indices].add(used, mode="drop")

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(seed), draws)))


def z_scores(sample: np.ndarray, mean: float, variance: float) -> np.ndarray:
    return (sample.mean(axis=0) - mean) / np.sqrt(variance / len(sample))


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_row_at_most_once_and_round_trip(name):
    drawn = membership(SAMPLERS[name], draws=2000)
    assert set(np.unique(drawn)) <= {0, 1}
    assert Sampling.from_plain(SAMPLERS[name].to_plain()) == SAMPLERS[name]


def test_poisson_inclusion_independence_and_size():
    drawn = membership(SAMPLERS["poisson"])
    assert np.abs(z_scores(drawn, 0.2, 0.16)).max() < 5
    assert np.abs(z_scores(drawn, 0.19, 0.16)).min() > 1  # a rate five per cent off is seen
    assert np.abs(z_scores(drawn, 0.19, 0.16)).mean() > 3
    pairs = np.corrcoef(drawn.T)[np.triu_indices(N, 1)] * np.sqrt(DRAWS)
    assert np.abs(pairs).max() < 5.5
    sizes = drawn.sum(axis=1)
    assert sizes.var() == pytest.approx(N * 0.16, rel=5 * np.sqrt(2 / DRAWS))


def test_fixed_size_is_told_from_poisson():
    """The rejecting arm: the same statistics on a sampler that is not Poisson."""
    drawn = membership(SAMPLERS["fixed"])
    assert np.abs(z_scores(drawn, 0.2, 0.16)).max() < 5
    assert np.all(drawn.sum(axis=1) == 10)
    pairs = np.corrcoef(drawn.T)[np.triu_indices(N, 1)] * np.sqrt(DRAWS)
    assert pairs.mean() == pytest.approx(-np.sqrt(DRAWS) / (N - 1), rel=0.05)


def test_truncation_drops_at_random_and_not_by_index():
    drawn = membership(SAMPLERS["truncated"])
    assert drawn.sum(axis=1).max() == 12
    p = drawn.mean()
    assert p < 0.2
    assert np.abs(z_scores(drawn, p, p * (1 - p))).max() < 5
    first = membership(Poisson(0.2))
    by_index = np.where(np.cumsum(first, axis=1) <= 12, first, 0)
    assert np.abs(z_scores(by_index, p, p * (1 - p))).max() > 10


def test_poisson_never_exceeds_its_rate():
    """2^-33 is below the resolution: nothing is drawn, rather than too much."""
    assert not membership(Poisson(2.0**-33), draws=50).any()
    assert membership(Poisson(1.0), draws=50).all()


def test_drawn_feeds_per_example_grads():
    indices, size = FullBatch().draw(jax.random.key(0), 4)
    assert Drawn(indices, size).rows == {"indices": indices, "count": size}
    with pytest.raises(ValueError, match="dataset_size = 4: expected 50"):
        SAMPLERS["fixed"].draw(jax.random.key(0), 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Poisson(0.0), "rate = 0.0: expected"),
        (lambda: Poisson(float("nan")), "rate = nan: expected"),
        (lambda: TruncatedPoisson(0.1, 60, 50), "max_size = 60: expected at most"),
        (lambda: FixedSize(51, 50), "size = 51: expected at most"),
        (lambda: FixedSize(0, 50), "size = 0: expected"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()
