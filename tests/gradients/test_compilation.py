"""A train step compiles once whatever the batch's size, and lowers for other devices."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import dpjax
from tests.gradients.drawn import drawn_of, rows_of

ROWS, LARGEST, CHUNK = 30, 16, 4
BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"


class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.GroupNorm(4, num_groups=2, rngs=rngs)
        self.head = nnx.Linear(64, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.norm(self.conv(x))).reshape(-1))


@pytest.fixture(scope="module")
def training():
    """The step (dynamic chunks, DC-SGD-E, Adam), its first state and the data."""
    graph, params = nnx.split(Net(nnx.Rngs(0)))
    method = dpjax.methods.dc_sgd_e(noise_multiplier=1.0)
    tx = optax.chain(method.transformation(8, jax.random.key(0)), optax.adam(1e-3))

    def loss(params, example):
        logits = nnx.merge(graph, params)(example["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, example["label"])

    grads_of = dpjax.per_example_grads(loss, chunk=CHUNK)

    def step(params, state, data, indices, count):
        grads = grads_of(params, data, drawn_of(indices, count, rows_of(data)))
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    rng = np.random.default_rng(0)
    data = {
        "image": jnp.asarray(rng.standard_normal((ROWS, 8, 8, 1)), jnp.float32),
        "label": jnp.asarray(rng.integers(0, 3, ROWS), jnp.int32),
    }
    return step, params, tx.init(params), data


@pytest.fixture
def compilations():
    """A list that grows by one whenever the backend compiles a program."""
    seen = []

    def listen(event, duration, **_):
        if event == BACKEND_COMPILE:
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def test_batches_of_any_size_compile_once(training, compilations):
    step, params, state, data = training
    step = jax.jit(step)
    rng = np.random.default_rng(1)
    # An empty batch, one row, and each number of chunks from 0 to 4.
    sizes = [8, 0, 1, 4, 5, 12, 13, 16, *rng.integers(0, LARGEST + 1, 42)]
    assert {-(-int(n) // CHUNK) for n in sizes} == {0, 1, 2, 3, 4}
    after_first = None
    for size in sizes:
        indices = rng.permutation(ROWS)[:LARGEST].astype(np.int32)
        params, state = step(params, state, data, indices, np.int32(size))
        after_first = len(compilations) if after_first is None else after_first
    assert len(sizes) == 50
    assert after_first > 0, "the listener hears nothing: the test would pass in vain"
    assert len(compilations) == after_first
    assert int(state[0].step) == 50
    for leaf in jax.tree.leaves((params, state[0].threshold, state[0].released)):
        assert np.all(np.isfinite(leaf))


def test_only_the_chunks_in_use_run():
    grads_of = dpjax.per_example_grads(lambda w, x: w * x, chunk=CHUNK)
    ran = []

    def fn(norms):
        jax.debug.callback(lambda n: ran.append(n.shape[0]), norms)
        return norms, norms

    @jax.jit
    def run(count):
        grads = grads_of(jnp.float32(0), jnp.ones(ROWS), drawn_of(jnp.arange(LARGEST), count, ROWS))
        return grads.aggregate(fn).rounded

    for count in (0, 1, 4, 5, 16, 100):
        ran.clear()
        total, _ = run(count)
        jax.effects_barrier()
        used = min(count, LARGEST)
        assert float(total) == pytest.approx(used, rel=5e-6)
        assert ran == [CHUNK] * -(-used // CHUNK)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_step_lowers_without_the_device(training, platform):
    """Typed keys in the state are no obstacle; nothing has to be unwrapped at the boundary."""
    step, params, state, data = training
    indices, count = jnp.arange(LARGEST), jnp.int32(3)
    exported = jax.export.export(jax.jit(step), platforms=[platform])
    lowered = exported(params, state, data, indices, count)
    assert lowered.platforms == (platform,)
    expected = jax.eval_shape(step, params, state, data, indices, count)
    assert [(a.shape, a.dtype) for a in lowered.out_avals] == [
        (leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(expected)
    ]
    assert "stablehlo.while" in lowered.mlir_module()  # the chunk loop is there, and dynamic
