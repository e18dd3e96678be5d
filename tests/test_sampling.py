"""Samplers against what their records claim: inclusion, independence, size; with rejecting arms."""

import hashlib
import math
import re
from fractions import Fraction
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from scipy import stats

from dpjax.sampling import Drawn, FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson, base
from dpjax.sampling import draws as module
from tests.oracles.noise import folded, threefry2x32

N, DRAWS = 50, 20_000
SAMPLERS = {
    "poisson": Poisson(10, N),
    "truncated": TruncatedPoisson(10, N, 12),
    "fixed": FixedSize(10, N),
    "full": FullBatch(N),
}


def marks(drawn: Drawn) -> jax.Array:
    """Returns how often each row is in, from indices and size as a gradient would read them."""
    used = jnp.arange(drawn.indices.shape[0]) < drawn.size
    local = drawn.indices - drawn.start
    return jnp.zeros(drawn.length, jnp.int32).at[local].add(used, mode="drop")


def membership(sampling: Sampling, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Returns (draws, rows) of 0 and 1, under `vmap` over keys."""
    keys = jax.random.split(jax.random.key(seed), draws)
    return np.asarray(jax.jit(jax.vmap(lambda key: marks(sampling.draw(key, 0))))(keys))


def over_steps(sampling: Sampling, steps: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Returns (steps, N) of 0 and 1, as a training loop draws them: one `scan`, one key."""

    return np.asarray(_scanned(sampling, steps)(jax.random.key(seed)))


@cache
def _scanned(sampling: Sampling, steps: int):
    def step(key, t):
        return key, marks(sampling.draw(key, t))

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
    assert np.abs(z_scores(drawn, 0.19, 0.16)).mean() > 3  # a rate five per cent off is seen
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
    first = membership(SAMPLERS["poisson"])
    by_index = np.where(np.cumsum(first, axis=1) <= 12, first, 0)
    assert np.abs(z_scores(by_index, p, p * (1 - p))).max() > 10


def test_a_row_is_in_exactly_when_its_bits_are_below_the_rate():
    """A hundredth more than the rate would pass every statistic above."""
    key, rows, step = jax.random.key(4), 4096, 11
    words = threefry2x32(sampling_key(key, step), 1, np.arange(rows))
    tickets = [(int(high) << 32) | int(low) for high, low in zip(*words, strict=True)]
    for rate in (0.2, 1 / 3, 0.7):
        below = [Fraction(ticket, 2**64) < Fraction(rate) for ticket in tickets]
        more = [Fraction(ticket, 2**64) < Fraction(1.01 * rate) for ticket in tickets]
        drawn = Poisson.with_rate(rate, rows).draw(key, step).rows()
        assert drawn.tolist() == np.flatnonzero(below).tolist()
        assert sum(more) > sum(below)  # the rejecting arm
    assert Poisson(rows, rows).draw(key, step).rows().tolist() == list(range(rows))


def test_the_last_bit_of_a_ticket_counts():
    """A rate that is one row's own ticket leaves it out, and the next larger rate takes it in."""
    key, rows = jax.random.key(4), 64
    high, low = threefry2x32(sampling_key(key, 0), 1, np.arange(rows))
    ticket = (int(high[5]) << 32) | int(low[5])
    for limit, taken in ((ticket, False), (ticket + 1, True)):
        found = module._below_limit(keyed(sampling_key(key, 0)), jnp.arange(rows), limit)
        assert bool(found[5]) is taken


def sampling_key(key, step):
    """The key of a step's tickets, by the oracle: the stream's name, then the step."""
    name = int.from_bytes(hashlib.sha256(b"sampling").digest()[:4], "big")
    return folded(folded(tuple(np.asarray(jax.random.key_data(key))), name), step)


def keyed(words):
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl="threefry2x32")


def test_bits_do_not_follow_a_flag_of_jax():
    key, sampling = jax.random.key(0), Poisson(500, 1000)
    drawn = {}
    for flag in (True, False):
        with jax.threefry_partitionable(flag):
            drawn[flag] = sampling.draw(key, 3).rows().tolist()
            other = jax.random.bits(key, (4,), jnp.uint32).tolist()
        drawn[flag, "jax"] = other
    assert drawn[True] == drawn[False]
    assert drawn[True, "jax"] != drawn[False, "jax"]  # the rejecting arm: JAX's own bits do follow


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
    drawn = membership(FixedSize(size, 7))
    assert np.all(drawn.sum(axis=1) == size)
    assert uniform_over_subsets(drawn, size) > 1e-4
    assert uniform_over_subsets(smallest_of_coarse_tickets(DRAWS, 7, size), size) < 1e-9


def test_ties_are_drawn_again(monkeypatch):
    """With two bits to a ticket nearly every draw ties, often more than once."""
    fine = module.ticket_words
    monkeypatch.setattr(
        module, "ticket_words", lambda key, rows: tuple(w >> 30 for w in fine(key, rows))
    )
    jax.clear_caches()
    for sampling in (FixedSize(3, 7), TruncatedPoisson(7, 7, 3)):
        drawn = membership(sampling)
        assert np.all(drawn.sum(axis=1) == 3)
        assert uniform_over_subsets(drawn, 3) > 1e-4
    jax.clear_caches()


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

    drawn = membership(TruncatedPoisson(0.4 * rows, rows, most))
    assert min(p_values(drawn)) > 1e-4
    whole = membership(Poisson(0.4 * rows, rows))
    by_index = np.where(np.cumsum(whole, axis=1) <= most, whole, 0)
    size, subsets = p_values(by_index)
    assert size > 1e-4
    assert subsets < 1e-9
    fixed = membership(FixedSize(most, rows))
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
    assert max(poisson_scores(over_steps(SAMPLERS["poisson"]), 0.2).values()) < 5
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
def test_parts_are_slices_of_the_whole_draw(name):
    """Eight parts of seven rows, for fifty; and uneven ones."""

    @partial(jax.jit, static_argnames="length")
    def part(key, start, length):
        return SAMPLERS[name].draw(key, 2, part=(start, length))

    for seed in range(20):
        key = jax.random.key(seed)
        whole = SAMPLERS[name].draw(key, 2).rows()
        parts = [part(key, start, 7) for start in range(0, 56, 7)]
        assert np.array_equal(np.concatenate([each.rows() for each in parts]), whole)
        for each in parts:
            assert np.all(np.asarray(each.indices)[int(each.size) :] == N)  # no row: padding
        uneven = [SAMPLERS[name].draw(key, 2, part=p).rows() for p in ((0, 3), (3, 30), (33, 17))]
        assert np.array_equal(np.concatenate(uneven), whole)


def test_a_part_of_a_poisson_draw_costs_that_part():
    """No array as long as the data set is formed."""
    rows = 1_000_003
    drawn = jax.jit(lambda key, t: Poisson(1000, rows).draw(key, t, part=(500_000, 64)))
    text = drawn.lower(jax.random.key(0), 0).as_text()
    assert "tensor<1000003x" not in text
    whole = jax.jit(Poisson(1000, rows).draw).lower(jax.random.key(0), 0).as_text()
    assert "tensor<1000003x" in whole  # can be told


@pytest.mark.parametrize("name", ["poisson", "truncated", "fixed"])
def test_a_constant_key_draws_a_new_batch_at_every_step(name):
    key = jax.random.key(0)
    batches = {tuple(SAMPLERS[name].draw(key, t).rows().tolist()) for t in range(50)}
    assert len(batches) == 50


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
            start = jax.lax.axis_index("data") * shard
            return key, marks(SAMPLERS[name].draw(key, t, part=(start, shard)))

        return jax.lax.scan(step, key, jnp.arange(30))[1]

    found = np.asarray(jax.jit(eight)(jax.random.key(0)))
    assert not found[:, N:].any()
    assert np.array_equal(found[:, :N], over_steps(SAMPLERS[name], 30))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_key_for_each_device(mesh, name):
    @partial(jax.shard_map, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    def eight(keys):
        return marks(SAMPLERS[name].draw(keys[0], 0))[None]

    keys = jax.random.split(jax.random.key(0), 8)
    assert np.array_equal(jax.jit(eight)(keys), membership(SAMPLERS[name], 8))


@pytest.mark.parametrize("name", SAMPLERS)
def test_eager_draws_compile_once_and_equal_jitted_ones(name):
    jitted = jax.jit(SAMPLERS[name].draw)
    SAMPLERS[name].draw(jax.random.key(0), 0)
    before = base._drawn._cache_size()
    for t in range(10):
        rows = SAMPLERS[name].draw(jax.random.key(1), t).rows()
        assert isinstance(rows, np.ndarray)
        assert np.array_equal(rows, jitted(jax.random.key(1), t).rows())
        assert np.array_equal(rows, np.unique(rows))
    assert base._drawn._cache_size() <= before + 1  # a Python int as the step is weakly typed


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_draw_sorts(name):
    """A sort of all rows takes as long as a training step."""
    text = jax.jit(SAMPLERS[name].draw).lower(jax.random.key(0), 0).as_text()
    assert "stablehlo.sort" not in text


@pytest.mark.parametrize("name", ["poisson", "truncated", "fixed"])
def test_tickets_are_drawn_once_in_a_compiled_program(name):
    """XLA's CPU compiler draws them again for each use, unless they come out of a loop."""
    compiled = jax.jit(SAMPLERS[name].draw).lower(jax.random.key(0), 0).compile()
    rounds = len(re.findall(r"u32\[\d\d+\]\S* xor\(", compiled.as_text()))
    assert rounds <= (20 if name == "poisson" else 40)  # a choice has tickets of its own


def test_what_is_drawn_carries_its_sampling_and_its_numbers():
    drawn = jax.jit(SAMPLERS["fixed"].draw)(jax.random.key(0), 0)
    assert drawn.sampling == SAMPLERS["fixed"]
    assert jax.tree.map(lambda x: x, drawn).sampling == SAMPLERS["fixed"]
    assert drawn.length == N
    packed = drawn.packed()
    assert packed.sampling == SAMPLERS["fixed"]
    assert packed.indices.tolist() == drawn.rows().tolist()


def test_numbers_of_a_record():
    poisson = Poisson(256, 60_000)
    assert poisson.rate == 256 / 60_000
    assert Poisson.with_rate(256 / 60_000, 60_000) == poisson
    assert Sampling.from_plain(Poisson.with_rate(0.3).to_plain()) == Poisson.with_rate(0.3)
    assert (FixedSize(10, 50).rate, FixedSize(10, 50).batch_size) == (0.2, 10)
    assert (FullBatch(50).rate, FullBatch(50).batch_size) == (1, 50)
    assert TruncatedPoisson(10, 50, 12).rate == 0.2
    assert repr(poisson) == "Poisson(batch_size=256.0, dataset_size=60000)"
    assert repr(Poisson.with_rate(0.25)) == "Poisson.with_rate(0.25)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Poisson(0.1, 50), "batch_size = 0.1: expected the number of examples in a batch"),
        (lambda: Poisson(51, 50), "batch_size = 51: expected .* at most dataset_size = 50"),
        (lambda: Poisson(float("nan"), 50), "batch_size = nan: expected"),
        (lambda: Poisson(4, 0), "dataset_size = 0: expected"),
        (lambda: Poisson.with_rate(0.0), "rate = 0.0: expected"),
        (lambda: Poisson.with_rate(float("nan")), "rate = nan: expected"),
        (lambda: Poisson.with_rate(0.001, 50), "batch_size = 0.05: expected"),
        (lambda: Poisson(10, 50, rate=0.3), "rate = 0.3: expected batch_size / dataset_size = 0.2"),
        (
            lambda: Poisson.with_rate(0.1).draw(jax.random.key(0), 0),
            "dataset_size = None: expected",
        ),
        (lambda: FullBatch().draw(jax.random.key(0), 0), "dataset_size = None: expected"),
        (lambda: Poisson(4, 2**31).draw(jax.random.key(0), 0), "at most 2.31 - 1 rows"),
        (lambda: TruncatedPoisson(10, 50, 60), "max_size = 60: expected at most"),
        (lambda: FixedSize(51, 50), "size = 51: expected at most"),
        (lambda: FixedSize(0, 50), "size = 0: expected"),
        (lambda: FullBatch(50).draw(jax.random.key(0), 0, part=(0, 0)), r"part\[1\] = 0: expected"),
        (lambda: FullBatch(50).draw(jax.random.key(0), 0, part=(-1, 5)), r"part\[0\] = -1"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("key", [None, 3, "seed"])
def test_a_draw_needs_a_key(key):
    with pytest.raises(TypeError, match="expected a JAX random key"):
        SAMPLERS["poisson"].draw(key, 0)
