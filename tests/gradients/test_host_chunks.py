"""A logical batch that reaches the device in parts: one sum, one noise, one step."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from tests.gradients import softmax
from tests.gradients.compare import assert_close, assert_same
from tests.registry import METHODS

NAMES = ("dp_sgd", "dc_sgd_e", "adaclip", "auto_dp_sgd")
B = 12
CUTS = ((0, 5), (5, 5), (5, 11), (11, 12))  # one part is empty
PARAMS = softmax.make_params()
DATA = softmax.make_data(B)
KEY = jax.random.key(0)


def padded(data, start, stop, size=6):
    """Rows start..stop of `data` as a host would send them: padded to one size, with a mask."""
    rows = jax.tree.map(lambda x: np.asarray(x)[start:stop], data)
    fill = size - (stop - start)
    mask = np.concatenate([np.ones(stop - start), np.zeros(fill)]).astype(np.float32)
    return jax.tree.map(
        lambda x: np.concatenate([x, np.zeros((fill, *x.shape[1:]), x.dtype)]), rows
    ), mask


class Runner:
    """A method with both ways of taking a batch, each as a jitted function."""

    def __init__(self, method, loss):
        grads_of = dpjax.per_example_grads(loss, "vmap", chunk=4)
        tx = optax.chain(method.transformation(B, KEY), optax.sgd(1.0))

        def whole(params, state, data):
            return tx.update(grads_of(params, data), state, params)

        def part(params, state, data, mask):
            return method.clipped_sum(grads_of(params, data, mask=mask), state)

        self.init, self.finish = tx.init, jax.jit(tx.update)
        self.whole, self.part = jax.jit(whole), jax.jit(part)

    def in_parts(self, params, state, data):
        total = None
        for cut in CUTS:
            piece = self.part(params, state, *padded(data, *cut))
            total = piece if total is None else total + piece
        return self.finish(total, state, params)


@cache
def softmax_runner(name):
    return Runner(METHODS[name](1.0), softmax.loss)


def test_the_parts_cover_the_batch_once():
    assert sum(stop - start for start, stop in CUTS) == B
    assert [start for start, _ in CUTS[1:]] == [stop for _, stop in CUTS[:-1]]


@pytest.mark.parametrize("name", NAMES)
def test_parts_give_the_update_and_the_state_of_the_whole(name):
    run = softmax_runner(name)
    params, state = PARAMS, run.init(PARAMS)
    other, other_state = params, state
    for _ in range(3):
        updates, state = run.whole(params, state, DATA)
        other_updates, other_state = run.in_parts(other, other_state, DATA)
        assert_close(other_updates, updates, rtol=2e-5, atol=2e-5)
        assert_close(other_state, state, rtol=2e-5, atol=2e-5)
        params = optax.apply_updates(params, updates)
        other = optax.apply_updates(other, other_updates)


def linear(params, example):
    return sum(jnp.sum(params[name] * example[name]) for name in params)


EXACT = {
    # Thresholds beyond every norm: weights of exactly 1, and sums of integers are exact.
    "dp_sgd": dpjax.methods.dp_sgd(1.0, 1024.0),
    "dc_sgd_e": dpjax.methods.dc_sgd_e(1.0, c0=1024.0),
    "auto_dp_sgd": METHODS["auto_dp_sgd"](1.0),
}


@pytest.mark.parametrize("name", EXACT)
def test_where_sums_are_exact_the_parts_give_the_same_bits(name):
    """Gradients (3k, 4k), of norm 5k: sum, noise, update and state agree bit for bit."""
    k = np.arange(1, B + 1, dtype=np.float32)
    data = {"a": 3 * k[:, None], "b": 4 * k[:, None]}
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    run = Runner(EXACT[name], linear)
    state = run.init(params)
    whole, parts = run.whole(params, state, data), run.in_parts(params, state, data)
    assert_same(parts, whole)
    without_noise = -np.array([3.0, 4.0]) * k.sum() / B
    found = np.array([whole[0]["a"][0], whole[0]["b"][0]])
    assert np.all(found != without_noise)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "auto_dp_sgd"])
def test_parts_of_padding_alone_give_the_noise_bit_for_bit(name):
    run = softmax_runner(name)
    state = run.init(PARAMS)
    data, _ = padded(DATA, 0, 6)
    nothing = run.part(PARAMS, state, data, np.zeros(6, np.float32))
    once = run.finish(nothing, state, PARAMS)
    thrice = run.finish(nothing + nothing + nothing, state, PARAMS)
    assert_same(thrice, once)
    assert all(np.all(leaf != 0) for leaf in jax.tree.leaves(once[0]))


def test_the_noise_of_three_parts_has_the_variance_of_one():
    method, keys = METHODS["dp_sgd"](2.0), jax.random.split(KEY, 500)
    params = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
    rng = np.random.default_rng(0)
    grads = {"a": rng.standard_normal((6, 3)), "b": rng.standard_normal((6, 2))}
    grads = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), grads)

    @jax.jit
    @jax.vmap
    def both(key):
        tx = method.transformation(B, key)
        state = tx.init(params)

        def part(start, stop):
            rows = jax.tree.map(lambda g: g[start:stop], grads)
            return method.clipped_sum(rows, state)

        total = part(0, 2) + part(2, 3) + part(3, 6)
        return tx.update(grads, state, params)[0], tx.update(total, state, params)[0]

    one, three = jax.tree.map(lambda x: np.asarray(x, np.float64), both(keys))
    assert_close(three, one, rtol=0, atol=1e-6)  # the noise itself is of size 2 / 12
    length = np.sqrt(sum(np.sum(np.square(g), axis=1) for g in map(np.asarray, grads.values())))
    weights = np.minimum(1, 1 / length)
    for name, rows in grads.items():
        noise = three[name] - weights @ np.asarray(rows, np.float64) / B
        samples = noise.size
        # A mean of squares of n normal numbers has standard deviation sqrt(2 / n): 5 of them.
        assert abs(np.mean(noise**2) / (2 / B) ** 2 - 1) < 5 * np.sqrt(2 / samples)


def test_a_method_that_needs_its_full_batch_says_so():
    method = METHODS["psasc_momentum_full_batch"](1.0)
    state = method.transformation(B, KEY).init(PARAMS)
    with pytest.raises(ValueError, match=r"expected the whole batch in one tx\.update"):
        method.clipped_sum(jax.tree.map(lambda p: p[None], PARAMS), state)
