"""One more example moves the sum by its own contribution, and hardly by rounding the others anew.

A zero gradient is put in front of the batch: every other row moves by one place, into another chunk
or onto another device, and the sum should not move. Lengths are in units of the threshold C = 1.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import dpjax
from dpjax.batch_sums import Limits, summed_over_devices

B, D, CHUNK, DEVICES = 4096, 2000, 64, 8
ROOM = B + 2 * DEVICES  # rows on the devices, padding included
MECHANISM = dpjax.Mechanism(dpjax.rules.abadi(), 1.0, 1.0)
STATE = dpjax.privatize(MECHANISM, B, jax.random.key(0)).init(jnp.zeros(D))


@cache
def batch(spread, front=0):
    """Returns rows about one direction, with zeros in front, and a mask for the padding behind."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal(D) + spread * rng.standard_normal((B, D))
    rows *= rng.uniform(0.5, 3, (B, 1)) / np.sqrt(D)
    padded = np.zeros((ROOM, D), np.float32)
    padded[front : front + B] = rows
    return padded, (np.arange(ROOM) < front + B).astype(np.float32)


def value(total):
    return np.float64(total.gradient) + np.float64(total.gradient_low)


def linear(w, x):
    return jnp.dot(x[None], w)[0]


def clip(engine, chunk, rows, mask):
    if engine == "plain":
        return dpjax.clipped_sum(MECHANISM, rows, STATE, mask=mask)
    grads_of = dpjax.per_example_grads(linear, engine, chunk=chunk)
    return dpjax.clipped_sum(MECHANISM, grads_of(jnp.zeros(D), rows, mask=mask), STATE)


def over_devices(engine, devices):
    def part(rows, mask):
        total = clip(engine, CHUNK, rows, mask)
        return summed_over_devices(total, "data", STATE.key, Limits(1.0, 0.0))

    mesh = Mesh(np.asarray(jax.devices()[:devices]), ("data",))
    return jax.shard_map(part, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P())


def automatically(engine, chunk):
    """Under automatic SPMD; the rows in front of others move those to other devices."""
    mesh = Mesh(np.asarray(jax.devices()[:DEVICES]), ("data",))
    step = jax.jit(partial(clip, engine, chunk))
    return lambda *given: step(*jax.device_put(given, NamedSharding(mesh, P("data"))))


ROUTES = {
    "plain": partial(clip, "plain", None),
    "vmap": partial(clip, "vmap", CHUNK),
    "ghost": partial(clip, "ghost", CHUNK),
    "ghost_two_pass": partial(clip, "ghost_two_pass", CHUNK),
    "devices": over_devices("vmap", DEVICES),
    "ghost_devices": over_devices("ghost", DEVICES),
}

AUTOMATIC = {
    "automatic": automatically("plain", None),
    "automatic_vmap": automatically("vmap", 8 * CHUNK),
    "automatic_ghost": automatically("ghost", 8 * CHUNK),
}


@cache
def compiled(route):
    return AUTOMATIC[route] if route in AUTOMATIC else jax.jit(ROUTES[route])


@pytest.mark.parametrize(
    ("route", "most"),
    [
        ("plain", 1e-9),
        ("vmap", 1e-9),
        ("devices", 1e-9),
        ("automatic", 5e-4),
        pytest.param("automatic_vmap", 5e-4, marks=pytest.mark.slow),
        ("automatic_ghost", 5e-4),
        ("ghost", 1e-4),
        ("ghost_devices", 1e-4),
        pytest.param("ghost_two_pass", 1e-4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_a_zero_row_in_front_does_not_move_the_sum(route, most, spread):
    if jax.device_count() < DEVICES:
        pytest.skip(f"needs {DEVICES} devices")
    before = compiled(route)(*batch(spread))
    after = compiled(route)(*batch(spread, front=1))
    move = np.linalg.norm(value(before) - value(after))
    assert move < most
    # What the noise is enlarged by covers it; without a figure it is below the noise's rounding.
    assert move <= max(float(before.rerounding), 1e-9)
    if "ghost" not in route and "automatic" not in route:
        assert float(before.rerounding) < 1e-9


@pytest.mark.parametrize("where", [slice(1, None), slice(None, -1)], ids=["in front", "behind"])
@pytest.mark.parametrize("engine", ["vmap", "ghost"])
def test_of_a_drawn_batch_the_figure_covers_a_row_that_moves_all_others(engine, where):
    """130 rows a device: with one more row, every device holds others."""
    if jax.device_count() < DEVICES:
        pytest.skip(f"needs {DEVICES} devices")
    rows = 130 * DEVICES
    mesh = Mesh(np.asarray(jax.devices()[:DEVICES]), ("data",))
    by_row, key = NamedSharding(mesh, P("data")), jax.random.key(0)
    grads_of = dpjax.per_example_grads(linear, engine, chunk=8 * CHUNK, sharding=by_row)

    @partial(jax.jit, static_argnums=1)
    def clipped(data, size):
        drawn = dpjax.sampling.FullBatch(size).draw(key, 0, sharding=by_row)
        return dpjax.clipped_sum(MECHANISM, grads_of(jnp.zeros(D), data, drawn), STATE)

    given = np.zeros((rows + DEVICES, D), np.float32)
    given[1 : rows + 1] = batch(0.0)[0][:rows]
    before = clipped(jax.device_put(given[1 : rows + 1], by_row), rows)
    data = given if where.start else np.roll(given, -1, axis=0)
    after = clipped(jax.device_put(data, by_row), rows + 1)
    move = np.linalg.norm(value(before) - value(after))
    assert 1e-6 < move <= float(before.rerounding) < 1e-2


@pytest.mark.parametrize("engine", ["vmap", "ghost"])
def test_the_figure_of_a_batch_in_parts_does_not_tell_how_many(engine):
    """The batch's own size is private, and the released bound holds the figure."""
    sampling, data = dpjax.sampling.Poisson(40, 200), batch(0.1)[0][:200]
    tx = dpjax.privatize(MECHANISM, sampling, jax.random.key(0))
    grads_of = dpjax.per_example_grads(linear, engine, chunk=8)
    state = tx.init(jnp.zeros(D))

    @jax.jit
    def clipped(rows, packed):
        return dpjax.clipped_sum(MECHANISM, grads_of(jnp.zeros(D), rows, packed), state)

    parts, bounds = [], []
    for t in range(4):
        drawn = sampling.draw(jax.random.key(1), t)
        packed = [drawn.packed().part(i, 8) for i in range(0, len(drawn.rows()), 8)]
        sums = [clipped(data[np.minimum(part.indices, 199)], part) for part in packed]
        _, new = jax.jit(tx.update)(sum(sums[1:], start=sums[0]), state)
        parts.append(len(packed))
        bounds.append(float(new.released.bound))
    whole = grads_of(jnp.zeros(D), data, sampling.draw(jax.random.key(1), 0))
    _, new = tx.update(whole, state)
    assert len(set(parts)) > 1
    assert set(bounds) == {float(new.released.bound)}
    assert (bounds[0] > 1) == (engine == "ghost")


def convolution(params, example):
    image, weight = example
    kernel, dense = params
    hidden = jax.lax.conv_general_dilated(image[None, None], kernel, (1, 1), "SAME")
    return weight * jnp.sum(jnp.tanh(jax.nn.relu(hidden).reshape(-1) @ dense))


def perceptron(params, example):
    image, weight = example
    first, last = params
    return weight * jnp.sum(jnp.tanh(jnp.tanh(image.reshape(-1) @ first) @ last))


NETWORKS = {
    "convolution": (convolution, ((4, 1, 3, 3), (256, 3))),
    "perceptron": (perceptron, ((64, 20), (20, 3))),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("engine", ["vmap", "ghost"])
def test_nor_does_it_move_that_of_a_network(network, engine):
    """An example's gradient does not depend on its place; the example in front has weight 0."""
    loss, shapes = NETWORKS[network]
    rng = np.random.default_rng(0)
    params = tuple(jnp.asarray(rng.normal(size=s, scale=0.3), jnp.float32) for s in shapes)
    images = np.zeros((260, 8, 8), np.float32)
    images[1:257] = rng.normal(size=(256, 8, 8))
    grads_of = dpjax.per_example_grads(loss, engine, chunk=20)
    state = dpjax.privatize(MECHANISM, 256, jax.random.key(0)).init(params)

    @jax.jit
    def clipped(images, weights):
        return dpjax.clipped_sum(MECHANISM, grads_of(params, (images, weights)), state)

    place = np.arange(260)
    after = clipped(images, ((place > 0) & (place < 257)).astype(np.float32))
    before = clipped(np.roll(images, -1, axis=0), (place < 256).astype(np.float32))
    sums = [
        np.concatenate([np.float64(x).ravel() for x in jax.tree.leaves(half)])
        for half in (before.gradient, before.gradient_low, after.gradient, after.gradient_low)
    ]
    move = np.linalg.norm(sums[0] + sums[1] - sums[2] - sums[3])
    assert np.linalg.norm(sums[0]) > 10
    assert move <= max(float(before.rerounding), 1e-9)


def test_the_sums_of_one_two_and_eight_devices_agree():
    one, *others = (jax.jit(over_devices("vmap", n))(*batch(0.1)) for n in (1, 2, DEVICES))
    assert np.linalg.norm(value(one)) > B / 4  # so that 1e-9 is a relative 1e-12
    for total in others:
        assert np.linalg.norm(value(total) - value(one)) < 1e-9
        assert int(total.positions) == ROOM
        # Rounded to float32 they differ in a coordinate that lies next to the middle, if at all.
        assert np.mean(np.asarray(total.gradient) != np.asarray(one.gradient)) < 1e-3


def test_rows_that_cancel_within_themselves_stay_within_the_figure():
    """Ghost adds the terms of an example apart; here they are 4000 times as long as their sum."""
    rng = np.random.default_rng(0)
    rows, positions, width = 128, 16, 128
    a = np.repeat(1 + np.abs(rng.standard_normal((rows, 1, width))), positions, axis=1)
    b = rng.standard_normal((rows, positions, width))
    b += 1e-3 * rng.standard_normal(b.shape) - b.mean(axis=1, keepdims=True)
    data = [x.astype(np.float32) for x in (a, b)]
    params = jnp.zeros((width, width))
    state = dpjax.privatize(MECHANISM, rows, jax.random.key(0)).init(params)
    grads_of = dpjax.per_example_grads(lambda w, ab: jnp.sum((ab[0] @ w) * ab[1]), "ghost", 16)
    clipped = jax.jit(lambda *ab: dpjax.clipped_sum(MECHANISM, grads_of(params, ab), state))
    before = clipped(*data)
    after = clipped(*(np.concatenate([np.zeros_like(x[:1]), x]) for x in data))
    move = np.linalg.norm(value(before) - value(after))
    of_rows_alone = np.sqrt(rows) * 16 * 2.0**-23
    assert of_rows_alone < move < float(before.rerounding)


@pytest.mark.parametrize(("engine", "enlarged"), [("vmap", 0.0), ("ghost", 2.0**-23 * 2.0**18)])
def test_the_noise_is_enlarged_by_the_figure(engine, enlarged):
    """4096 rows in one chunk; the release of zeros is the noise itself, on its grid."""
    size, params, key = 2**14, jnp.zeros(2**14), jax.random.key(0)
    tx = dpjax.privatize(MECHANISM, 1, key)
    grads_of = dpjax.per_example_grads(linear, engine)

    @jax.jit
    def released(rows):
        return tx.update(grads_of(params, rows), tx.init(params), params)

    update, state = released(jnp.zeros((4096, size)))
    plain, _ = tx.update(jnp.zeros((1, size)), tx.init(params), params)
    assert float(state.released.bound) == pytest.approx(1 + enlarged, rel=1e-6)
    ratio = np.linalg.norm(np.float64(update)) / np.linalg.norm(np.float64(plain))
    assert ratio == pytest.approx(1 + enlarged, abs=1e-3)


def test_parts_add_in_two_floats():
    total = clip("plain", None, *batch(0.1))
    rows, mask = batch(0.1)
    part = jax.jit(partial(clip, "vmap", CHUNK))
    cuts = np.array_split(np.arange(ROOM), 4)
    parts = [part(rows[cut], mask[cut]) for cut in cuts]
    summed = parts[0] + parts[1] + parts[2] + parts[3]
    assert np.linalg.norm(value(summed) - value(total)) < 1e-9
    assert int(summed.positions) == ROOM


def test_statistics_are_summed_in_two_floats():
    """Counts beyond 2^24 with fractions: what float32 would lose is in the low half."""
    grads = dpjax.gradients.as_per_example_grads(jnp.ones((200, 1)))
    values = np.random.default_rng(0).uniform(1e5, 1e6, 200).astype(np.float32)
    sums = grads.aggregate(lambda n: (n, jnp.asarray(values)))
    found = np.float64(sums.statistic.hi) + np.float64(sums.statistic.lo)
    assert found == values.astype(np.float64).sum()
    assert float(sums.statistic.hi) != found
