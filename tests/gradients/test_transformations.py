"""Per-example gradients and their private update under jit, scan and vmap."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from tests.gradients import softmax
from tests.gradients.compare import assert_close
from tests.gradients.drawn import drawn_of, rows_of
from tests.registry import METHODS

B = 12
PARAMS = softmax.make_params()
DATA = softmax.make_data(40)
GRADS_OF = dpjax.per_example_grads(softmax.loss, "vmap", chunk=5)
MECHANISM = dpjax.methods.dc_sgd_e(1.0)


def step_of(method, key, learning_rate=0.1):
    """Returns the chain and a training step over drawn rows."""
    tx = optax.chain(method.transformation(B, key), optax.sgd(learning_rate, momentum=0.5))

    def step(carry, drawn):
        params, state = carry
        indices, count = drawn
        grads_of = dpjax.per_example_grads(softmax.loss, "vmap", chunk=5)
        grads = grads_of(params, DATA, drawn_of(indices, count, rows_of(DATA)))
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), updates

    return tx, step


def draws(steps, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.permutation(40)[:16] for _ in range(steps)])
    return jnp.asarray(rows), jnp.asarray(np.resize([9, 0, 16, 3], steps), jnp.int32)


def test_jit_changes_nothing():
    tx = dpjax.privatize(dpjax.Mechanism(dpjax.rules.abadi(), 1.0, 1.0), B, jax.random.key(0))
    grads_of = dpjax.per_example_grads(lambda w, x: jnp.sum(w * x), chunk=5)
    w = jnp.zeros(softmax.FEATURES)

    def step(state, x):
        return tx.update(grads_of(w, x), state, w)

    assert_close(jax.jit(step)(tx.init(w), DATA["x"]), step(tx.init(w), DATA["x"]))


# One for each kind of state: a histogram, iterates, moments.
SCANNED = ("dc_sgd_e", "psasc_momentum", "adaclip")


@pytest.mark.parametrize("name", SCANNED)
def test_a_scan_over_steps_is_the_loop(name):
    tx, step = step_of(METHODS[name](1.0), jax.random.key(0))
    drawn = draws(4)
    scanned, updates = jax.jit(partial(jax.lax.scan, step))((PARAMS, tx.init(PARAMS)), drawn)
    carry, looped = (PARAMS, tx.init(PARAMS)), jax.jit(step)
    for t in range(4):
        carry, update = looped(carry, jax.tree.map(lambda x, t=t: x[t], drawn))
        assert_close(jax.tree.map(lambda u, t=t: u[t], updates), update)
    assert_close(scanned, carry)


def test_vmap_over_seeds_gives_independent_noise():
    grads = jax.tree.map(lambda p: jnp.zeros((2, *p.shape)), PARAMS)

    def noise(key):
        tx = dpjax.privatize(MECHANISM, B, key)
        return tx.update(grads, tx.init(PARAMS), PARAMS)[0]

    keys = jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(noise))(keys)
    apart = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(jax.jit(noise), keys))
    assert_close(together, apart)
    for one, other in ((0, 1), (0, 2), (1, 2)):  # on a grid, some are equal by chance
        assert np.mean(together["w"][one] == together["w"][other]) < 0.2


def test_vmap_over_parameters_data_and_dynamic_count():
    params = jax.tree.map(lambda *p: jnp.stack(p), *(softmax.make_params(s) for s in range(3)))
    data = jax.tree.map(lambda *d: jnp.stack(d), *(softmax.make_data(20, s) for s in range(3)))
    indices = jnp.asarray(np.stack([np.random.default_rng(s).permutation(20) for s in range(3)]))
    counts = jnp.array([0, 7, 20])
    tx = dpjax.privatize(MECHANISM, B, jax.random.key(0))

    def run(params, data, indices, count):
        grads = GRADS_OF(params, data, drawn_of(indices, count, 20))
        update, state = tx.update(grads, tx.init(params), params)
        return grads.norms, update, state.threshold

    members = (params, data, indices, counts)
    found = jax.jit(jax.vmap(run))(*members)
    for m in range(3):
        member = jax.tree.map(lambda x, m=m: x[m], members)
        assert_close(jax.tree.map(lambda x, m=m: x[m], found), jax.jit(run)(*member))
        used = np.asarray(indices[m])[: int(counts[m])]
        rows = jax.tree.map(lambda x, u=used: np.asarray(x)[u], member[1])
        norms = softmax.norms(softmax.gradients(member[0], rows)[1])
        np.testing.assert_allclose(found[0][m][: len(used)], norms, rtol=1e-5, atol=1e-6)
        assert not np.any(found[0][m][len(used) :])


@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, None), (None, None, 0)])
def test_vmap_over_one_argument(axes):
    params = [softmax.make_params(s) for s in range(2)]
    data = [softmax.make_data(8, s) for s in range(2)]
    masks = [np.array([1, 1, 0, 1, 1, 1, 1, 0]), np.zeros(8)]
    arguments = [
        jax.tree.map(lambda *x: jnp.stack(x), *options) if axis == 0 else options[0]
        for options, axis in zip((params, data, masks), axes, strict=True)
    ]

    def run(params, data, mask):
        return GRADS_OF(params, data, mask=mask).aggregate(lambda n: (1 / (1 + n), n > 1)).rounded

    total, count = jax.jit(jax.vmap(run, in_axes=axes))(*arguments)
    for m in range(2):
        p, d, mask = (
            options[m if axis == 0 else 0]
            for options, axis in zip((params, data, masks), axes, strict=True)
        )
        grads = softmax.gradients(p, d)[1]
        norms = softmax.norms(grads)
        expected = softmax.weighted_sum(grads, mask / (1 + norms))
        assert_close(jax.tree.map(lambda t, m=m: t[m], total), expected, atol=1e-5)
        assert count[m] == np.sum(mask * (norms > 1))


def test_vmap_over_thresholds_and_noise():
    """Numbers of the mechanism's state may be batched too: one program for a sweep of C."""
    tx = dpjax.privatize(MECHANISM, B, jax.random.key(0))
    state = tx.init(PARAMS)

    def run(threshold):
        changed = state._replace(threshold=state.threshold._replace(threshold=threshold))
        return dpjax.clipped_sum(MECHANISM, GRADS_OF(PARAMS, DATA), changed).gradient

    thresholds = jnp.array([0.1, 1.0, 1e4])
    found = jax.jit(jax.vmap(run))(thresholds)
    grads = softmax.gradients(PARAMS, DATA)[1]
    for m, c in enumerate(np.asarray(thresholds, np.float64)):
        expected = softmax.weighted_sum(grads, np.minimum(1, c / softmax.norms(grads)))
        assert_close(jax.tree.map(lambda f, m=m: f[m], found), expected, atol=1e-4)


def test_donating_the_state_leaves_the_key_and_init_usable():
    key = jax.random.key(0)
    tx = dpjax.privatize(dpjax.Mechanism(dpjax.rules.abadi(), 1.0, 1.0), B, key)
    step = jax.jit(lambda state, grads: tx.update(grads, state)[1], donate_argnums=0)
    step(tx.init(jnp.zeros(2)), jnp.ones((3, 2)))
    assert not key.is_deleted()
    assert not tx.init(jnp.zeros(2)).key.is_deleted()
