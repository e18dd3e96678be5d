"""The host's parts against the draw and the gather on the device; threads, order and memory.

What happens at the same time is told by events, never by seconds: a load on the machine cannot
change it. A wait that runs into its generous limit is a failure.
"""

import threading
from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import dpjax
from dpjax.sampling import FixedSize, FullBatch, Poisson, TruncatedPoisson
from dpjax.train.feed import host_parts
from tests.gradients import softmax
from tests.gradients.compare import assert_close

N, CHUNK, STEPS, LIMIT = 40, 4, 12, 60.0
KEY = jax.random.key(3)
DATA = jax.tree.map(np.asarray, softmax.make_data(N))
SAMPLERS = {
    "poisson": Poisson(8, N),
    "truncated": TruncatedPoisson(8, N, 9),
    "fixed": FixedSize(8, N),
    "full": FullBatch(N),
    "small": Poisson(1, N),
}


def feed_of(data=DATA, sampling=SAMPLERS["poisson"], chunk=CHUNK, start=0, stop=STEPS, **options):
    return host_parts(data, sampling, KEY, chunk, start=start, stop=stop, **options)


def batches(feed):
    """Yields each step with its parts, as they come."""

    def parts(first):
        yield first
        while not first.last:
            first = next(feed)
            yield first

    with closing(feed):
        for first in feed:
            yield first.step, parts(first)


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("dpjax-host-feed")]


@pytest.fixture(autouse=True)
def _no_thread_survives():
    assert not threads()
    yield
    assert not threads()


class Watched(np.ndarray):
    """An array that reports every gather before it happens."""

    def __getitem__(self, index):
        if isinstance(index, np.ndarray):
            self.report()
        return np.asarray(self)[index]


def watched(report, width=3):
    data = np.arange(N * width, dtype=np.float32).reshape(N, width).view(Watched)
    data.report = report
    return data


class Gathers:
    """Counts gathers; the consumer can wait for a number of them."""

    def __init__(self):
        self.count, self._changed = 0, threading.Condition()

    def __call__(self):
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def reach(self, count, limit=LIMIT):
        with self._changed:
            return self._changed.wait_for(lambda: self.count >= count, limit)


@pytest.mark.parametrize("name", SAMPLERS)
def test_parts_are_the_draw_and_gather_of_the_device(name):
    sampling = SAMPLERS[name]
    draw = jax.jit(lambda t: sampling.draw(KEY, t))
    seen = []
    for t, lazy in batches(feed_of(sampling=sampling, start=5, stop=9)):
        parts, drawn = list(lazy), draw(t)
        assert len(parts) == max(1, -(-int(drawn.size) // CHUNK))
        real = np.concatenate([np.arange(CHUNK) < part.packed.size for part in parts])
        assert np.array_equal(real, np.arange(len(real)) < drawn.size)
        numbers = np.concatenate([part.packed.indices for part in parts])
        assert np.array_equal(numbers[real], drawn.rows())
        assert all(part.packed.sampling == sampling for part in parts)
        for field, values in DATA.items():
            rows = np.concatenate([part.rows[field] for part in parts])
            used = np.asarray(drawn.indices)[: int(drawn.size)]
            assert np.array_equal(rows[real], values[used])
            assert np.all(rows[~real] == values[0])
        seen.append(t)
    assert seen == [5, 6, 7, 8]


def test_one_compilation_for_all_steps_and_sizes():
    traces, sizes = [], set()

    @jax.jit
    def consumer(rows, packed):
        traces.append(1)
        return jnp.sum(rows["x"]) + packed.size

    for _, parts in batches(feed_of()):
        part_sizes = []
        for part in parts:
            assert isinstance(part.packed.size, jax.Array)
            consumer(part.rows, part.packed)
            part_sizes.append(int(part.packed.size))
        sizes.add(sum(part_sizes))
    assert len(sizes) > 4
    assert len(traces) == 1


METHODS = {
    "dp_sgd": dpjax.methods.dp_sgd(noise_multiplier=1.0, threshold=0.5),
    "dc_sgd_e": dpjax.methods.dc_sgd_e(noise_multiplier=1.0),
}


@pytest.mark.parametrize("name", METHODS)
def test_training_on_parts_is_training_on_the_device(name):
    """Over batches of no part, of one and of several."""
    method, sampling = METHODS[name], Poisson(2, N)
    grads_of = dpjax.per_example_grads(softmax.loss, chunk=CHUNK)
    tx = optax.chain(method.transformation(8, jax.random.key(0)), optax.sgd(0.1))

    @jax.jit
    def on_device(params, state, t):
        return tx.update(grads_of(params, DATA, sampling.draw(KEY, t)), state, params)

    @jax.jit
    def add(total, params, state, rows, packed):
        clipped = method.clipped_sum(grads_of(params, rows, packed), state)
        return clipped if total is None else total + clipped

    finish = jax.jit(tx.update)
    params, sizes = softmax.make_params(), set()
    state = tx.init(params)
    for t, parts in batches(feed_of(sampling=sampling, chunk=2)):
        total, size = None, 0
        for part in parts:
            total = add(total, params, state, part.rows, part.packed)
            size += int(part.packed.size)
        sizes.add(size)
        updates, after = finish(total, state, params)
        assert_close((updates, after), on_device(params, state, t), rtol=2e-5, atol=2e-5)
        assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(updates))
        params, state = optax.apply_updates(params, updates), after
    assert min(sizes) == 0
    assert max(sizes) > 2  # more than one part of two rows


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_depth_parts_are_gathered_while_the_consumer_works_and_no_more(depth):
    gathers, width = Gathers(), 11 + depth  # a shape of its own among the live arrays
    taken = 0
    for part in feed_of(watched(gathers, width), FixedSize(8, N), depth=depth):
        taken += 1
        assert part.rows.shape == (CHUNK, width)
        ahead = min(taken + depth, 2 * STEPS)
        assert gathers.reach(ahead)  # without the thread it would stay at `taken`
        if taken == 4:  # time enough for one too many
            assert not gathers.reach(ahead + 1, limit=0.3)
        assert gathers.count == ahead
        live = sum(array.shape == (CHUNK, width) for array in jax.live_arrays())
        assert live <= 1 + depth
    assert taken == gathers.count == 2 * STEPS


def test_the_first_part_arrives_while_later_ones_of_its_step_are_not_gathered():
    gathers, gate = Gathers(), threading.Event()

    def report():
        gathers()
        if gathers.count == 2:
            assert gate.wait(LIMIT)

    for _, parts in batches(feed_of(watched(report), FixedSize(12, N), stop=1, depth=3)):
        assert next(parts).packed.size == CHUNK
        assert gathers.count <= 2
        gate.set()
        assert len(list(parts)) == 2


def test_order_is_that_of_the_steps_however_deep():
    def values(depth):
        return [(part.step, part.rows["y"].tolist()) for part in feed_of(depth=depth)]

    assert values(1) == values(2) == values(64)


def test_memory_map_and_devices(tmp_path):
    stored = np.memmap(tmp_path / "x", np.float32, "w+", shape=DATA["x"].shape)
    stored[:] = DATA["x"]
    mesh = jax.make_mesh((CHUNK,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    for device in (jax.devices()[1], NamedSharding(mesh, P("data"))):
        expected, where = feed_of(), set()
        feed = feed_of({"x": stored}, device=device)
        for part, other in zip(feed, expected, strict=True):
            assert np.array_equal(part.rows["x"], other.rows["x"])
            where |= {*part.rows["x"].devices(), *part.packed.indices.devices()}
        assert where == ({device} if isinstance(device, jax.Device) else device.device_set)


def test_leaving_early_ends_the_thread():
    gathers = Gathers()
    with closing(feed_of(watched(gathers), FullBatch(N), depth=2)) as feed:
        next(feed)
        assert gathers.reach(3)  # nothing is left to it but to wait
    assert not threads()
    assert list(feed) == []


def test_an_error_of_the_consumer_ends_the_thread():
    def consume():
        with closing(feed_of()) as feed:
            next(feed)
            raise KeyError("of the consumer")

    with pytest.raises(KeyError):
        consume()
    assert not threads()


def test_an_error_of_the_thread_is_raised_in_place():
    gathers = Gathers()

    def report():
        gathers()
        if gathers.count == 4:
            raise OSError("the disk is gone")

    feed = feed_of(watched(report), FixedSize(8, N))
    assert [next(feed).step for _ in range(3)] == [0, 0, 1]
    with pytest.raises(OSError, match="the disk is gone"):
        next(feed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, "chunk = 0: expected an integer >= 1"),
        ({"start": -1}, "start = -1: expected an integer >= 0"),
        ({"start": 3, "stop": 2}, "stop = 2: expected an integer >= 3"),
        ({"depth": 0}, "depth = 0: expected an integer >= 1"),
        ({"sampling": FixedSize(3, 50)}, "data has 40 rows: expected 50"),
        ({"data": {"x": np.zeros(3), "y": np.zeros(4)}}, "data is ragged"),
        ({"data": np.zeros((0, 3))}, "data has no rows"),
    ],
)
def test_bad_values(options, message):
    with pytest.raises(ValueError, match=message):
        feed_of(**options)


def test_a_sampling_is_expected():
    with pytest.raises(TypeError, match=r"sampling = 0\.1: expected"):
        feed_of(sampling=0.1)
