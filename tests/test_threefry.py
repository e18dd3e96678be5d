"""The fused draws are JAX's own, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import noise
from dpjax._threefry import _threefry2x32, fused


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (100_003,)])
def test_the_same_bits(width, shape):
    key = jax.random.key(5)
    dtype = f"uint{width}"
    expected = jax.random.bits(key, shape, dtype)
    np.testing.assert_array_equal(jax.random.bits(fused(key), shape, dtype), expected)


def test_the_same_bits_in_64():
    with jax.enable_x64(True):
        key = jax.random.key(5)
        expected = jax.random.bits(key, (999,), "uint64")
        np.testing.assert_array_equal(jax.random.bits(fused(key), (999,), "uint64"), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_normals(dtype):
    with jax.enable_x64(dtype == "float64"):
        for seed in range(3):
            key = jax.random.fold_in(jax.random.key(seed), 9)
            draw = jax.jit(lambda k: jax.random.normal(k, (1000,), dtype))
            np.testing.assert_array_equal(draw(fused(key)), draw(key))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_later_part_of_a_draw(dtype):
    with jax.enable_x64(dtype == "float64"):
        key = jax.random.key(8)
        whole = jax.random.normal(key, (40,), dtype)
        np.testing.assert_array_equal(jax.random.normal(fused(key, 13), (27,), dtype), whole[13:])


def test_a_part_around_the_end_of_the_low_word():
    """The counter has 64 bits: block 2^32 + 1 is (1, 1)."""
    key = jax.random.key(8)
    words = jax.random.key_data(key)
    found = jax.random.bits(fused(key, 2**32 - 1), (3,))
    for i, (high, low) in enumerate([(0, 2**32 - 1), (1, 0), (1, 1)]):
        a, b = _threefry2x32((words[0], words[1]), (jnp.uint32(high), jnp.uint32(low)))
        assert int(found[i]) == int(a) ^ int(b)


def test_a_fused_key_is_for_one_draw():
    with pytest.raises(TypeError, match="for one draw"):
        jax.random.split(fused(jax.random.key(0)))
    with pytest.raises(TypeError, match="for one draw"):
        jax.random.fold_in(fused(jax.random.key(0)), 1)


def test_noise_in_pieces_is_one_draw(monkeypatch):
    tree = [jnp.zeros(3), jnp.zeros((2, 4)), jnp.zeros(()), jnp.zeros(0), jnp.zeros(7)]
    expected = jax.random.normal(jax.random.key(2), (19,))
    for piece in (1, 4, 100):
        monkeypatch.setattr(noise, "_PIECE", piece)
        found = noise.add_gaussian(jax.random.key(2), tree, 1.0)
        np.testing.assert_array_equal(jnp.concatenate([x.ravel() for x in found]), expected)


def test_known_answers_of_random123():
    """From the generator's own distribution, `kat_vectors`: threefry2x32, 20 rounds."""
    ones, pi = 0xFFFFFFFF, [0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3]
    for key, block, answer in (
        ([0, 0], [0, 0], [0x6B200159, 0x99BA4EFE]),
        ([ones, ones], [ones, ones], [0x1CB996FC, 0xBB002BE7]),
        (pi[:2], pi[2:], [0xC4923A9C, 0x483DF7A0]),
    ):
        found = _threefry2x32(*((jnp.uint32(a), jnp.uint32(b)) for a, b in (key, block)))
        assert [int(word) for word in found] == answer
