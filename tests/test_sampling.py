"""Samplers against what their records claim: inclusion, independence, size; with rejecting arms."""

import math
from fractions import Fraction
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from scipy import stats

from dpjax import sampling as module
from dpjax.sampling import Drawn, FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson

N, DRAWS = 50, 20_000
SAMPLERS = {
    "poisson": Poisson(0.2),
    "truncated": TruncatedPoisson(0.2, 12, N),
    "fixed": FixedSize(10, N),
    "full": FullBatch(),
}


def marks(drawn: Drawn, rows: int) -> jax.Array:
    """Returns how often each row is in, from indices and size as a gradient would read them."""
    used = jnp.arange(drawn.indices.shape[0]) < drawn.size
    return jnp.zeros(rows, jnp.int32).at[drawn.indices].add(used, mode="drop")


def membership(sampling: Sampling, draws: int = DRAWS, seed: int = 0, rows: int = N) -> np.ndarray:
    """Returns (draws, rows) of 0 and 1, under `vmap` over keys."""
    keys = jax.random.split(jax.random.key(seed), draws)
    return np.asarray(jax.jit(jax.vmap(lambda key: marks(sampling.draw(key, rows), rows)))(keys))


def over_steps(sampling: Sampling, steps: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Returns (steps, N) of 0 and 1, as a training loop draws them: one `scan`, a folded key."""

    return np.asarray(_scanned(sampling, steps)(jax.random.key(seed)))


@cache
def _scanned(sampling: Sampling, steps: int):
    def step(key, t):
        return key, marks(sampling.draw(jax.random.fold_in(key, t), N), N)

    return jax.jit(lambda key: jax.lax.scan(step, key, jnp.arange(steps))[1])


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


def test_a_row_is_in_exactly_when_its_bits_are_below_the_rate():
    """A hundredth more than the rate would pass every statistic above."""
    key, rows = jax.random.key(4), 4096
    tickets = np.asarray(jax.random.bits(key, (rows,), jnp.uint32)).astype(object)
    for rate in (0.2, 1 / 3, 0.7):
        below = [Fraction(ticket, 2**32) < Fraction(rate) for ticket in tickets]
        more = [Fraction(ticket, 2**32) < Fraction(1.01 * rate) for ticket in tickets]
        drawn = Poisson(rate).draw_on_host(key, rows)
        assert drawn.tolist() == np.flatnonzero(below).tolist()
        assert sum(more) > sum(below)  # the rejecting arm


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """Returns the p-value of the counts."""
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


def uniform_over_subsets(drawn: np.ndarray, size: int) -> float:
    """Returns the p-value of the batches of this size being uniform over all subsets."""
    rows = drawn.shape[1]
    codes = (drawn @ (1 << np.arange(rows)))[drawn.sum(axis=1) == size]
    counts = np.unique(codes, return_counts=True)[1]
    subsets = math.comb(rows, size)
    return chi_square(np.append(counts, np.zeros(subsets - len(counts))), np.ones(subsets))


def smallest_of_coarse_tickets(draws: int, rows: int, size: int) -> np.ndarray:
    """Four ticket values only, and ties go to the lower index: what must not happen."""
    tickets = np.random.default_rng(0).integers(0, 4, (draws, rows))
    winners = np.argsort(tickets, axis=1, kind="stable")[:, :size]
    drawn = np.zeros((draws, rows), int)
    np.put_along_axis(drawn, winners, 1, axis=1)
    return drawn


@pytest.mark.parametrize("size", [1, 3, 6])
def test_fixed_size_is_uniform_over_all_subsets(size):
    drawn = membership(FixedSize(size, 7), rows=7)
    assert np.all(drawn.sum(axis=1) == size)
    assert uniform_over_subsets(drawn, size) > 1e-4
    assert uniform_over_subsets(smallest_of_coarse_tickets(DRAWS, 7, size), size) < 1e-9


def test_ties_are_drawn_again(monkeypatch):
    """With two bits to a ticket nearly every draw ties, often more than once."""
    fine = module._tickets
    monkeypatch.setattr(module, "_tickets", lambda key, rows: fine(key, rows) >> 30)
    for sampling in (FixedSize(3, 7), TruncatedPoisson(1.0, 3, 7)):
        drawn = membership(sampling, rows=7)
        assert np.all(drawn.sum(axis=1) == 3)
        assert uniform_over_subsets(drawn, 3) > 1e-4


def test_order_statistic_is_that_of_a_sort():
    rng = np.random.default_rng(0)
    tickets = rng.integers(0, 2**32, 40, dtype=np.uint32)
    tickets[:6] = [0, 2**32 - 1, 2**31, 2**31 - 1, tickets[7], tickets[8]]
    among = rng.random(40) < 0.7
    ranks = 1 + np.arange(among.sum())
    found = jax.vmap(module._order_statistic, (None, None, 0))(tickets, among, ranks)
    assert np.array_equal(found, np.sort(tickets[among]))


def test_truncated_poisson_is_a_binomial_cut_off_and_uniform_given_its_size():
    rows, most = 7, 4
    p = stats.binom.pmf(np.arange(rows + 1), rows, 0.4)
    expected = np.append(p[:most], p[most:].sum())

    def p_values(drawn):
        sizes = np.bincount(drawn.sum(axis=1), minlength=most + 1)
        given = [uniform_over_subsets(drawn, size) for size in range(1, most + 1)]
        return chi_square(sizes, expected), min(given)

    drawn = membership(TruncatedPoisson(0.4, most, rows), rows=rows)
    assert min(p_values(drawn)) > 1e-4
    whole = membership(Poisson(0.4), rows=rows)
    by_index = np.where(np.cumsum(whole, axis=1) <= most, whole, 0)
    size, subsets = p_values(by_index)
    assert size > 1e-4
    assert subsets < 1e-9
    fixed = membership(FixedSize(most, rows), rows=rows)
    assert chi_square(np.bincount(fixed.sum(axis=1), minlength=most + 1), expected) < 1e-9


def poisson_scores(drawn: np.ndarray, p: float) -> dict[str, float]:
    """Returns z-scores of what independent steps of Poisson sampling would show."""
    steps, rows = drawn.shape
    q = 1 - p
    kurtosis = (1 / (p * q) - 6) / rows  # of the batch size, beyond that of a normal number
    both = (drawn[0::2] * drawn[1::2]).sum(axis=1)  # disjoint pairs of successive steps
    score = (drawn.sum(axis=0) - steps * p) / np.sqrt(steps * p * q)
    return {
        "inclusion": np.abs(score).max(),
        "size": abs(drawn.sum(axis=1).var() / (rows * p * q) - 1) / np.sqrt((2 + kurtosis) / steps),
        "overlap": abs(z_scores(both, rows * p**2, rows * p**2 * (1 - p**2))),
        "counts": abs(stats.norm.ppf(stats.chi2.cdf(np.sum(score**2), rows))),
    }


def shuffled_partition(steps: int, size: int) -> np.ndarray:
    """Every epoch a new shuffle, cut into batches: what is commonly run and is not Poisson."""
    rng = np.random.default_rng(0)
    drawn = np.zeros((steps, N), int)
    for t in range(0, steps, N // size):
        batches = rng.permutation(N).reshape(-1, size)
        drawn[np.arange(t, t + len(batches))[:, None], batches] = 1
    return drawn


def test_steps_of_poisson_are_independent_and_a_shuffled_partition_is_rejected():
    assert max(poisson_scores(over_steps(Poisson(0.2)), 0.2).values()) < 5
    rejected = poisson_scores(shuffled_partition(DRAWS, 10), 0.2)
    assert rejected["inclusion"] < 5  # frequencies alone do not tell
    assert min(rejected[name] for name in ("size", "overlap", "counts")) > 30


@pytest.mark.parametrize("name", ["poisson", "truncated", "fixed"])
def test_steps_and_seeds_are_independent_and_repeat(name):
    first, second = over_steps(SAMPLERS[name], 4000), over_steps(SAMPLERS[name], 4000, seed=1)
    assert np.array_equal(first, over_steps(SAMPLERS[name], 4000))
    p = first.mean()
    for one, other in ((first[0::2], first[1::2]), (first, second)):
        overlap = (one * other).sum(axis=1)
        assert abs(overlap.mean() - N * p**2) < 5 * overlap.std() / np.sqrt(len(overlap))
    same = (first * first).sum(axis=1)  # the rejecting arm: one key for both
    assert same.mean() - N * p**2 > 50 * same.std() / np.sqrt(len(same))


@pytest.mark.parametrize("name", SAMPLERS)
def test_shards_hold_the_whole_draw(name):
    """Eight shards of seven rows, for fifty."""
    shard = -(-N // 8)

    @jax.jit
    def both(key):
        drawn = SAMPLERS[name].draw(key, N)
        return drawn, [drawn.local(start, shard) for start in range(0, 8 * shard, shard)]

    for seed in range(20):
        drawn, parts = both(jax.random.key(seed))
        together = []
        for device, part in enumerate(parts):
            mine, padding = np.split(np.asarray(part.indices), [int(part.size)])
            assert np.all(padding == shard)
            together.append(mine + device * shard)
        assert np.array_equal(np.concatenate(together), drawn.indices[: drawn.size])


def test_local_reads_any_order_and_no_padding():
    drawn = Drawn(jnp.array([9, 3, 5, 4, 3]), jnp.array(3))
    indices, size = drawn.local(jnp.int32(3), 4)
    assert indices.tolist() == [0, 2, 4, 4]
    assert size == 2
    indices, size = drawn.local(0, 3)
    assert (indices.tolist(), int(size)) == ([3, 3, 3], 0)


@pytest.fixture(scope="module")
def mesh():
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    return jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


@pytest.mark.parametrize("name", SAMPLERS)
def test_devices_of_a_mesh_hold_the_batch_of_one(mesh, name):
    """Inside `shard_map` and `scan`, each device by its own index, on rows that do not divide."""
    shard = -(-N // 8)

    @partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P(None, "data"))
    def eight(key):
        def step(key, t):
            drawn = SAMPLERS[name].draw(jax.random.fold_in(key, t), N)
            return key, marks(drawn.local(jax.lax.axis_index("data") * shard, shard), shard)

        return jax.lax.scan(step, key, jnp.arange(30))[1]

    found = np.asarray(jax.jit(eight)(jax.random.key(0)))
    assert not found[:, N:].any()
    assert np.array_equal(found[:, :N], over_steps(SAMPLERS[name], 30))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_key_for_each_device(mesh, name):
    @partial(jax.shard_map, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    def eight(keys):
        return marks(SAMPLERS[name].draw(keys[0], N), N)[None]

    keys = jax.random.split(jax.random.key(0), 8)
    assert np.array_equal(jax.jit(eight)(keys), membership(SAMPLERS[name], 8))


@pytest.mark.parametrize("name", SAMPLERS)
def test_draw_on_host_is_the_draw_and_compiles_once(name):
    module._compiled_draw.cache_clear()
    on_device = jax.jit(lambda key: SAMPLERS[name].draw(key, N))
    for seed in range(10):
        key = jax.device_put(jax.random.key(seed), jax.devices()[-1])
        drawn, rows = on_device(key), SAMPLERS[name].draw_on_host(key, N)
        assert isinstance(rows, np.ndarray)
        assert np.array_equal(rows, drawn.indices[: drawn.size])
        assert np.array_equal(rows, np.unique(rows))
    assert module._compiled_draw.cache_info().misses == 1
    assert module._compiled_draw(SAMPLERS[name], N)._cache_size() == 1


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_draw_sorts(name):
    """A sort of all rows takes as long as a training step."""
    text = jax.jit(lambda key: SAMPLERS[name].draw(key, N)).lower(jax.random.key(0)).as_text()
    assert "stablehlo.sort" not in text


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
