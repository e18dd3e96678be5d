"""Random bits, normals and the public grid, against NumPy, exact fractions and the Gaussian law."""

import importlib.util
import math
import sys
from fractions import Fraction
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax import noise
from dpjax.noise import gaussian
from tests.oracles import noise as oracle

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_noise.py"
spec = importlib.util.spec_from_file_location("check_noise", SCRIPT)
check = importlib.util.module_from_spec(spec)
sys.modules["check_noise"] = check
spec.loader.exec_module(check)

KEY = jax.random.key(0)
WORDS = tuple(int(word) for word in np.asarray(jax.random.key_data(KEY)))


def keyed(*words):
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl="threefry2x32")


@pytest.mark.parametrize(
    ("key", "counter", "answer"),
    [  # Random123's kat_vectors, threefry2x32 with 20 rounds
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers_of_random123(key, counter, answer):
    found = noise.random_words(keyed(*key), *(jnp.uint32(word) for word in counter))
    assert tuple(int(word) for word in found) == answer
    assert tuple(int(word) for word in oracle.threefry2x32(key, *counter)) == answer


@pytest.mark.parametrize("number", [0, 1, 2**31, 2**32 - 1])
def test_fold_is_that_of_jax_and_of_the_oracle(number):
    folded = noise.fold(KEY, number)
    assert tuple(int(w) for w in jax.random.key_data(folded)) == oracle.folded(WORDS, number)
    assert noise.fold(KEY, jnp.uint32(number)) == folded
    assert jax.random.fold_in(KEY, np.uint32(number)) == folded


@pytest.mark.parametrize("own", [False, True], ids=["together", "two in their own shape"])
def test_normals_are_those_of_the_oracle_leaf_by_leaf(own, monkeypatch):
    """At both ends of each leaf; `own` lowers the size from which a leaf is drawn alone."""
    if own:
        monkeypatch.setattr(gaussian, "_OWN_DRAW", 150)
    tree = [jnp.zeros(()), jnp.zeros((3, 50)), jnp.zeros((70, 1000)), jnp.zeros(0), jnp.zeros(129)]
    drawn = [draw.number for draw in gaussian.draws_of(tree) if isinstance(draw, gaussian.OwnDraw)]
    assert drawn == ([1, 2] if own else [])
    found = jax.jit(lambda key: noise.standard_normal(key, tree))(KEY)
    for leaf, z in enumerate(found):
        assert (z.shape, z.dtype) == (tree[leaf].shape, jnp.float32)
        flat = np.asarray(z, np.float64).ravel()
        at = sorted({*range(min(flat.size, 200)), *range(max(0, flat.size - 200), flat.size)})
        want = oracle.normals(WORDS, leaf, at)
        np.testing.assert_allclose(flat[at], want, rtol=5 * 2**-24)


def test_normals_of_float64_leaves():
    with jax.enable_x64(True):
        tree = [jnp.zeros(300, jnp.float64), jnp.zeros(300, jnp.float32)]
        found = jax.jit(lambda key: noise.standard_normal(key, tree))(KEY)
        assert [z.dtype for z in found] == [jnp.float64, jnp.float32]
        for leaf, (z, tolerance) in enumerate(zip(found, (1e-13, 5 * 2**-24), strict=True)):
            want = oracle.normals(WORDS, leaf, range(300))
            np.testing.assert_allclose(np.asarray(z, np.float64), want, rtol=tolerance)


def test_indices_beyond_a_word():
    """Shapes that nobody can hold here: the index arithmetic alone, against Python's integers."""
    rng = np.random.default_rng(0)
    for b in (1, 2**16, 2**31 + 7, 2**32 - 1):
        a = rng.integers(0, 2**32, 200, dtype=np.uint64)
        high, low = gaussian._multiplied(jnp.asarray(a, jnp.uint32), b)
        for x, h, low_word in zip(a, high, low, strict=True):
            assert (int(h) << 32) | int(low_word) == int(x) * b
    assert jax.eval_shape(lambda: gaussian._row_major_words((3, 2**31))[0]).shape == (3, 2**31)
    with pytest.raises(ValueError, match=r"expected fewer than 2\^39"):
        jax.eval_shape(
            noise.standard_normal, KEY, jax.ShapeDtypeStruct((2**20, 2**19), jnp.float32)
        )


def test_no_two_numbers_share_a_block():
    """The counters of leaves of different sizes, drawn together or alone, are all different."""
    seen = set()
    for leaf, shape in enumerate([(), (5,), (300, 300), (7, 3)]):
        high, low = gaussian._row_major_words(shape)
        for h, word in zip(np.ravel(high), np.ravel(low), strict=True):
            blocks = {
                ((leaf << 8) + ((int(h) << 1) | (int(word) >> 31)), 2 * int(word) + b)
                for b in (0, 1)
            }
            assert not blocks & seen
            seen |= blocks
    assert len(seen) == 2 * (1 + 5 + 90_000 + 21)


@pytest.mark.parametrize("size", [1000, 2**16])
def test_the_same_normals_under_vmap_jit_and_flags(size):
    like = jnp.zeros(size)
    alone = noise.standard_normal(KEY, like)
    keys = jnp.stack([jax.random.key(5), KEY])
    mapped = jax.jit(jax.vmap(lambda key: noise.standard_normal(key, like)))(keys)
    np.testing.assert_array_equal(mapped[1], alone)
    with jax.threefry_partitionable(False):
        assert np.array_equal(jax.jit(lambda k: noise.standard_normal(k, like))(KEY), alone)


def test_a_sharded_leaf_draws_its_own_part_without_collectives():
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    like = jnp.zeros((512, 256))
    draw = partial(noise.standard_normal, KEY)
    alone = jax.jit(draw)(like)
    sharded = (
        jax.jit(lambda: draw(like), out_shardings=NamedSharding(mesh, P("a", "b")))
        .lower()
        .compile()
    )
    text = sharded.as_text()
    assert not any(word in text for word in ("all-reduce", "all-gather", "collective-permute"))
    assert "512,256" not in text  # no device forms the whole leaf
    np.testing.assert_array_equal(sharded(), alone)


EXTREME = (0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)


def test_extreme_words_give_the_support_and_never_zero():
    """Every combination of extreme words: finite, not zero, within the support."""
    grid = np.stack(np.meshgrid(*[np.array(EXTREME, np.uint64)] * 4), axis=-1).reshape(-1, 4)
    columns = [jnp.asarray(column, jnp.uint32) for column in grid.T]
    z = np.asarray(gaussian.normal_of_words(tuple(columns[:3]), columns[3], jnp.dtype("float32")))
    assert np.all(np.isfinite(z))
    assert np.all(z != 0)
    assert np.abs(z).max() == pytest.approx(noise.SUPPORT, rel=1e-6)
    assert noise.SUPPORT > 9
    np.testing.assert_allclose(z, oracle.normal_of_words(grid), rtol=5 * 2**-24)
    flipped = gaussian.normal_of_words(tuple(columns[:3]), columns[3] ^ 1, jnp.dtype("float32"))
    assert np.array_equal(-z, np.asarray(flipped))  # symmetric, bit for bit


def test_the_map_is_accurate_everywhere():
    """Words by leading zeros and ones, so that every octave of u and 1 - u is met."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, (6000, 4), dtype=np.uint64)
    for i, row in enumerate(words):
        shift = i % 97
        bits = ((int(row[0]) << 64) | (int(row[1]) << 32) | int(row[2])) >> shift
        bits = bits if i % 2 else bits ^ (2**96 - 1)
        row[:3] = [(bits >> s) & 0xFFFFFFFF for s in (64, 32, 0)]
    columns = [jnp.asarray(column, jnp.uint32) for column in words.T]
    z = gaussian.normal_of_words(tuple(columns[:3]), columns[3], jnp.dtype("float32"))
    want = oracle.normal_of_words(words)
    np.testing.assert_allclose(np.asarray(z, np.float64), want, rtol=5 * 2**-24)


def test_the_tail_of_the_map_is_gaussian_to_1e_5():
    limits = np.array([0.5, 1, 2, 3, 4, 5, 6, 7])
    ratio = check.tail_of_the_map(limits, angles=2**11) / scipy.stats.norm.sf(limits)
    assert np.abs(ratio - 1).max() < 1e-5
    wrong = scipy.stats.norm.sf(limits * (1 + 1e-6)) / scipy.stats.norm.sf(limits)
    assert np.abs(wrong - 1).max() > 1e-5  # the rejecting arm: a millionth too wide is seen


def test_the_end_of_the_tail_is_off_by_half_a_radius_at_most():
    """What the proof in missing_mass.py says of the part beyond 10.5 sigma."""
    limits = np.array([10.5, 10.75, 11, 11.1, 11.2, 11.3, 11.4, 11.5, 11.55, 11.59])
    gaussian = scipy.stats.norm.sf(limits)
    off = np.abs(check.tail_of_the_map(limits) - gaussian)
    assert np.all(off <= 2.0**-98 + 4e-5 * gaussian)
    assert 0.1 * gaussian[-3] < off[-3] < 0.2 * gaussian[-3]  # r itself is not small there


def test_cells_differ_from_the_gaussian_by_what_the_page_says():
    """The largest r, where an edge is a float32 number, and the smallest."""
    for total, std, least, most in ((0.0, 0.77, 1e-6, 3e-6), (0.3, 1.0, 1e-7, 3e-7)):
        z, mass, r = check.cell_errors(total, std, angles=2**11)
        assert least < np.sqrt(np.average(r**2, weights=mass)) < most
        assert abs(np.sum(mass * r * z)) < 1e-7


LIMITS = np.array([0.5, 1, 2, 3, 4, 5, 6, 7])


def numpy_normal(words, g_bits, contracted, sqrt_ulps):
    """The map in float32 without XLA, products and sums fused or not, the square root off.

    A product of two float32 numbers is exact in float64, so rounding once afterwards is a fused
    multiply-add, but for one case in 2^29.
    """
    f32 = np.float32

    def fused(a, b, c):
        if contracted:
            return (np.float64(a) * np.float64(b) + np.float64(c)).astype(f32)
        return (a * b + c).astype(f32)

    def polynomial(coefficients, x):
        total = np.full_like(x, coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = fused(total, x, f32(coefficient))
        return total

    upper = words[0] >= 2**31
    a, b, c = (np.where(upper, ~word, word).astype(np.uint32) for word in words)
    parts = (c & 0xFFFFFF, ((b & 0xFFFF) << 8) | (c >> 24), ((a & 0xFF) << 16) | (b >> 16), a >> 8)
    near = f32(2.0**-97)
    for part, power in zip(parts, (-96, -72, -48, -24), strict=True):
        near = (near + part.astype(f32) * f32(2.0**power)).astype(f32)
    offset = near.view(np.int32) - gaussian._SQRT_HALF_BITS
    low_f = ((offset & 0x7FFFFF) + gaussian._SQRT_HALF_BITS).astype(np.int32).view(f32) - f32(1)
    far = near > f32(1 - math.sqrt(0.5))
    f = np.where(upper, np.where(far, f32(1) - f32(2) * near, -near), low_f)
    e = np.where(upper, np.where(far, -1, 0), offset >> 23).astype(f32)
    correction = f * f * fused(f, polynomial(gaussian._LOG, f), f32(-0.5))
    log = fused(e, f32(gaussian._LOG2[0]), f + fused(e, f32(gaussian._LOG2[1]), correction))
    root = np.sqrt(f32(-2 * (1 - 2.0**-24)) * log)
    for _ in range(abs(sqrt_ulps)):
        root = np.nextafter(root, f32(np.copysign(np.inf, sqrt_ulps)))
    g = (g_bits.astype(f32) + f32(0.5)) * f32(2.0**-31)
    return root * (g * polynomial(gaussian._SINE, g * g))


def law_in_numpy(contracted, sqrt_ulps, angles=2**11):
    """``P(Z > t)`` over the Gaussian's, by bisection as in `check.tail_of_the_map`."""
    rng = np.random.default_rng(0)
    g_bits = ((np.arange(angles) + 0.5) / angles * 2**31).astype(np.uint32)
    g_bits = g_bits ^ rng.integers(0, 2**9, angles, np.uint32)
    words = np.zeros((3, LIMITS.size, angles), np.uint32)
    for i in range(96):
        trial = words.copy()
        trial[i // 32] |= np.uint32(1 << (31 - i % 32))
        beyond = numpy_normal(trial, g_bits, contracted, sqrt_ulps) > LIMITS[:, None]
        words = np.where(beyond, trial, words)
    u = sum(word * 2.0 ** (-32 * (i + 1)) for i, word in enumerate(words.astype(float)))
    return u.mean(axis=1) / 2 / scipy.stats.norm.sf(LIMITS)


@pytest.mark.parametrize("contracted", [False, True])
@pytest.mark.parametrize("sqrt_ulps", [-2, 0, 2])
def test_the_law_does_not_depend_on_the_platforms_arithmetic(contracted, sqrt_ulps):
    """Another platform may fuse products and sums, and have a square root that is a little off."""
    assert np.abs(law_in_numpy(contracted, sqrt_ulps) - 1).max() < 1e-5


def test_a_square_root_off_by_six_ulps_is_seen():
    assert np.abs(law_in_numpy(True, 6) - 1).max() > 1e-5


def test_the_numpy_map_is_that_of_the_library():
    words = np.random.default_rng(3).integers(0, 2**32, (4, 4000), dtype=np.uint32)
    columns = [jnp.asarray(column) for column in words]
    want = np.abs(gaussian.normal_of_words(tuple(columns[:3]), columns[3], jnp.dtype("float32")))
    for contracted in (False, True):
        found = numpy_normal(words[:3], words[3] >> 1, contracted, 0)
        np.testing.assert_allclose(found, want, rtol=5 * 2**-24)


def test_cells_of_the_grid_have_gaussian_probability():
    edges = (np.arange(0, 80, 6) + 0.5) / 16
    r = np.diff(check.tail_of_the_map(edges)) / np.diff(scipy.stats.norm.sf(edges)) - 1
    assert np.abs(r).max() < 5e-6


def count_check(draw, draws, unit):
    return check.plausible(check.tail_counts(draw, draws), check.expected_counts(draws, unit))


def test_the_tail_that_leaves_update():
    """Through `tx.update`, 3e7 draws; noise cut at 4.5 sigma is the arm that is rejected."""
    draws, draw = 30 * 2**20, check.through_update(2**20)
    assert np.all(count_check(draw, draws, 1 / 16))
    assert not np.all(count_check(lambda t: jnp.clip(draw(t), -4.5, 4.5), draws, 1 / 16))


def test_where_the_normals_of_jax_end():
    """Why there is a sampler here: the smallest of its uniform numbers is the largest it draws."""
    smallest = float(np.nextafter(np.float32(-1), np.float32(0)))
    assert abs(float(math.sqrt(2) * jax.lax.erf_inv(jnp.float32(smallest)))) < 5.43


@pytest.mark.slow
def test_a_thousand_million_draws_and_the_old_noise_rejected():
    draws = 239 * 2**22  # 1e9
    assert np.all(count_check(check.through_update(), draws, 1 / 16))
    old = count_check(check.jax_normal(), draws, 0.0)
    assert not np.all(old)
    assert not old[list(check.BEYOND).index(5.5)]


@pytest.mark.slow
def test_an_output_beyond_the_old_support_no_longer_proves_presence():
    """One step, sigma 0.5, an example that moves one coordinate by a bound of 1 (two sigma)."""
    sigma, draws, limit = 0.5, 6_000_000, 5.25
    ours = np.asarray(jax.jit(lambda: noise.standard_normal(KEY, jnp.zeros(2**24)))()[:draws])
    theirs = np.asarray(jax.random.normal(KEY, (draws,)))
    for z, private in ((ours, True), (theirs, False)):
        without, present = np.sum(z > limit), np.sum(z + 1 / sigma > limit)
        assert present > 3000
        if private:  # what a Gaussian shows, in both worlds
            mean = draws * scipy.stats.norm.sf(limit)
            assert without <= scipy.stats.poisson.isf(1e-6, mean)
    # JAX's largest uniform number in (-1, 1) is 1 - 2^-22: without the example there is none, ever.
    assert math.sqrt(2) * float(jax.lax.erf_inv(jnp.float32(1 - 2.0**-22))) < limit


@settings(max_examples=200, deadline=None)
@given(
    st.floats(2.0**-10, 2.0**10, width=32),
    st.floats(-1e4, 1e4, width=32),
    st.floats(-0.5, 0.5, width=32),
    st.floats(-8, 8, width=32),
)
def test_the_grid_is_exact_rounding(std, high, low, z):
    """Against fractions: the nearest multiple of the exact sum, or one that is as near to 1e-6."""
    std, high = np.float32(std), np.float32(std * high)  # as a sum over its bound
    low = np.float32(low * np.spacing(high))
    unit = noise.grid_unit(std)
    assert Fraction(float(unit)) == oracle.grid_unit(float(std))
    added = np.float32(std * np.float32(z))
    y = Fraction(float(_on_grid(high, low, added, unit)))
    exact = Fraction(float(high)) + Fraction(float(low)) + Fraction(float(added))
    assert y % Fraction(float(unit)) == 0
    nearest = oracle.nearest_multiple(exact, Fraction(float(unit)))
    distance = abs(y - exact) / Fraction(float(unit))
    assert y in nearest or distance <= Fraction(1, 2) + Fraction(1, 10**6)


_on_grid = jax.jit(noise.on_grid)


def test_two_halves_of_a_sum_count():
    """A float32 sum alone would round 2^24 + 1 away."""
    found = _on_grid(jnp.float32(2**24), jnp.float32(1.25), jnp.float32(0.5), jnp.float32(2.0))
    assert float(found) == 2**24 + 2


def test_a_release_draws_leaves_in_their_own_shape_with_their_own_numbers(monkeypatch):
    """What is released is the oracle's normals on the grid, whichever way they are drawn."""
    tree = [jnp.zeros(40), jnp.zeros((20, 30)), jnp.zeros(600)]
    together = jax.jit(lambda key: noise.release(key, tree, tree, 1.0))(KEY)
    monkeypatch.setattr(gaussian, "_OWN_DRAW", 600)
    apart = jax.jit(lambda key: noise.release(key, tree, tree, 1.0))(KEY)
    for leaf, (one, two) in enumerate(zip(together, apart, strict=True)):
        want = np.round(oracle.normals(WORDS, leaf, range(one.size)) * 16) / 16
        np.testing.assert_array_equal(np.ravel(one), want)
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("std", check.STDS)
def test_no_output_belongs_to_one_neighbour_only(std):
    """Ordinary and hostile pairs of sums; the plain float32 release is the arm that is rejected."""
    assert check.impossible(check.on_the_grid, check.PAIRS, std).max() == 0
    assert check.impossible(check.plain_sum, check.PAIRS, std).max() > 0.2


def in_32_bits(radius, angle):
    """A sampler that ends at 6.8 sigma."""
    return check.normal_of_words(radius * jnp.array([1, 0, 0], jnp.uint32)[:, None, None], angle)


@pytest.mark.parametrize("std", check.STDS)
def test_the_sampler_reaches_every_output(std):
    """Bits are exhibited for each grid point within 11 sigma of a sum; 32 bits are rejected."""
    for total in (0.0, -2.9, 3e6 + 0.9, -5e7 + 1.2):
        assert check.unreached(total, std) == 0
    assert check.unreached(0.0, std, in_32_bits) > 0.3


def test_zero_has_one_sign():
    found = _on_grid(jnp.float32(-0.1), jnp.float32(0), jnp.float32(0.05), jnp.float32(1))
    assert not np.signbit(found)


def test_without_noise_there_is_no_grid():
    total = {"w": jnp.array([0.1, 0.7])}
    low = {"w": jnp.zeros(2)}
    np.testing.assert_array_equal(noise.release(KEY, total, low, 0.0)["w"], total["w"])


@pytest.mark.parametrize("std", [1e-36, 1e-20, 1.0, 1e20, 1e36])
def test_every_noise_that_a_mechanism_admits_has_a_grid(std):
    out = np.asarray(noise.release(KEY, jnp.zeros(100), jnp.zeros(100), std), np.float64)
    assert np.all(np.isfinite(out))
    assert np.std(out) == pytest.approx(std, rel=0.4)
    unit = float(noise.grid_unit(std))
    assert std / 32 < unit <= std / 16
    assert np.all(np.round(out / unit) == out / unit)
