"""Plain `jit` on arrays that a mesh splits: data parallel, FSDP-like and tensor parallel.

Against the same program on one device, and against the collectives of a step without privacy.
"""

import math
import re
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import dpjax
from dpjax.devices import grid_sum, one_limb
from dpjax.noise import standard_normal
from dpjax.sampling import FixedSize, Poisson, TruncatedPoisson
from dpjax.twofloat import TwoFloat
from tests.hlo import collective_bytes

DEVICES = 8
pytestmark = pytest.mark.skipif(jax.device_count() < DEVICES, reason=f"needs {DEVICES} devices")

INPUTS, HIDDEN, CLASSES, BATCH, ROWS, CHUNK = 32, 128, 16, 64, 512, 16
KEY = jax.random.key(0)
SAMPLING = Poisson(BATCH, ROWS)
CLIP = dpjax.Mechanism(dpjax.rules.abadi(), 0.5, 0.0)  # releases the clipped sum itself
AXES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


class Layout(NamedTuple):
    """A mesh, and how it splits the parameters."""

    shape: dict[str, int]
    specs: dict[str, P]


LAYOUTS = {
    "data": Layout({"data": 8}, dict.fromkeys(("a", "b", "u", "v"), P())),
    "fsdp": Layout(
        {"data": 8}, {"a": P(None, "data"), "b": P("data"), "u": P("data"), "v": P("data")}
    ),
    "tensor": Layout(
        {"data": 4, "model": 2}, {"a": P(None, "model"), "b": P("model"), "u": P("model"), "v": P()}
    ),
}


def start():
    rng = np.random.default_rng(0)
    shapes = {"a": (INPUTS, HIDDEN), "b": (HIDDEN,), "u": (HIDDEN, CLASSES), "v": (CLASSES,)}
    return {k: (rng.standard_normal(s) / 8).astype(np.float32) for k, s in shapes.items()}


def examples(rows):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, INPUTS)) * np.exp(rng.standard_normal((rows, 1)))
    return x.astype(np.float32), rng.integers(0, CLASSES, rows).astype(np.int32)


def loss(params, example):
    x, y = example
    hidden = jnp.tanh(x @ params["a"] + params["b"])
    return -jax.nn.log_softmax(hidden @ params["u"] + params["v"])[y]


def mesh_of(layout, axes):
    shape = LAYOUTS[layout].shape
    return jax.make_mesh(tuple(shape.values()), tuple(shape), axis_types=(AXES[axes],) * len(shape))


def laid_out(layout, mesh, params):
    return {
        k: jax.device_put(x, NamedSharding(mesh, LAYOUTS[layout].specs[k]))
        for k, x in params.items()
    }


def rows_over(mesh):
    return NamedSharding(mesh, P("data"))


def private_step(engine, chunk, sharding, drawn, mechanism=CLIP):
    """Returns a step and its transformation; `drawn` says whether it draws its batches itself."""
    tx = dpjax.privatize(mechanism, SAMPLING if drawn else BATCH, KEY)
    grads_of = dpjax.per_example_grads(loss, engine, chunk, sharding=sharding)

    def step(params, state, data):
        batch = SAMPLING.draw(KEY, state.step, sharding=sharding) if drawn else None
        updates, state = tx.update(grads_of(params, data, batch), state, params)
        return optax.apply_updates(params, updates), state

    return step, tx


def plain_step(sharding, params, data):
    """A step without privacy, whose activations stay with their rows."""

    def mean(params):
        x, y = data
        stay = lambda rows: jax.lax.with_sharding_constraint(rows, sharding)  # noqa: E731
        hidden = stay(jnp.tanh(x @ params["a"] + params["b"]))
        logits = stay(hidden @ params["u"]) + params["v"]
        return -jnp.mean(jnp.sum(jax.nn.one_hot(y, CLASSES) * jax.nn.log_softmax(logits), axis=1))

    return jax.tree.map(lambda p, g: p - g, params, jax.grad(mean)(params))


@cache
def plain_bytes(layout, rows):
    mesh = mesh_of(layout, "auto")
    params = laid_out(layout, mesh, start())
    step = partial(plain_step, NamedSharding(mesh, P("data", P.UNCONSTRAINED)))
    data = jax.device_put(examples(rows), rows_over(mesh))
    out = jax.tree.map(lambda p: p.sharding, params)
    text = jax.jit(step, out_shardings=out).lower(params, data).compile().as_text()
    return collective_bytes(text).total()


@cache
def on_one_device(drawn):
    """Returns the parameters after a step, in one piece."""
    step, tx = private_step("vmap", None, None, drawn)
    params = start()
    return jax.jit(step)(params, tx.init(params), examples(ROWS if drawn else BATCH))[0]


@cache
def arithmetic(rows):
    """Returns the floating-point operations of a step over so many rows on one device."""
    step, tx = private_step("vmap", None, None, drawn=False)
    params = start()
    lowered = jax.jit(step).lower(params, tx.init(params), examples(rows))
    return lowered.compile().cost_analysis()["flops"]


CASES = list(
    product(["vmap", "ghost", "ghost_two_pass"], LAYOUTS, AXES, [None, CHUNK], [False, True])
)
# FSDP is that of `fit`, below.
DEFAULT = [("vmap", "data", "auto", CHUNK, True), ("ghost", "tensor", "explicit", CHUNK, True)]


@pytest.mark.parametrize(
    ("engine", "layout", "axes", "chunk", "drawn"),
    [
        pytest.param(
            *case,
            id="-".join(map(str, case)),
            marks=() if case in DEFAULT else pytest.mark.slow,
        )
        for case in CASES
    ],
)
def test_a_mesh_takes_the_step_of_one_device(engine, layout, axes, chunk, drawn):
    mesh = mesh_of(layout, axes)
    sharding = rows_over(mesh)
    step, tx = private_step(engine, chunk, sharding, drawn)
    params = laid_out(layout, mesh, start())
    data = jax.device_put(examples(ROWS if drawn else BATCH), sharding)
    where = jax.tree.map(lambda p: p.sharding, params)
    arguments = (params, tx.init(params), data)
    compiled = jax.jit(step, out_shardings=(where, None)).lower(*arguments).compile()
    found, _ = compiled(*arguments)

    expected = on_one_device(drawn)
    for name, leaf in found.items():
        assert leaf.sharding.is_equivalent_to(where[name], leaf.ndim)
        # In units of the threshold, as the stated figures are.
        off = np.linalg.norm(np.asarray(leaf) - np.asarray(expected[name])) * BATCH / 0.5
        assert off < 1e-4

    # What travels: the gradient once, in 4 bytes a number, and two norms for every row and leaf.
    shards = mesh.shape["data"]
    share = BATCH / shards
    each = CHUNK // shards if chunk else math.ceil(share + 4 * math.sqrt(share) if drawn else share)
    most = int(SAMPLING.draw(KEY, 0, sharding=sharding).size.max()) if drawn else BATCH // shards
    turns = -(-most // each)
    norms = 2 * 4 * len(params) * turns * each
    passes = 2 if engine == "ghost_two_pass" else 1  # over the activations of tensor parallelism
    budget = 1.1 * plain_bytes(layout, passes * turns * each * shards) + norms + 128
    text = compiled.as_text()
    looks = -(-each // 8)
    assert collective_bytes(text, turns, min, looks).total() <= budget
    # A batch with rows of extreme norms takes other branches, which look at rows again, eight of
    # each device at a time. Gradients and operands stay where they are: a few more numbers travel
    # for every row and leaf (largest entries, norms, allowances), and which rows are left.
    rows = turns * looks * min(each, 8)
    more = 4 * (5 * len(params) + shards + 1) * rows
    assert collective_bytes(text, turns, max, looks).total() <= budget + more
    # A device computes its own rows only: twice as many cost it what its share of them does. (Noise
    # is drawn in other ways on a mesh, and what a loop does is counted once.)
    if chunk is None and not drawn and engine == "vmap":
        data = jax.device_put(examples(2 * BATCH), sharding)
        twice = jax.jit(step, out_shardings=(where, None)).lower(*arguments[:2], data).compile()
        more = twice.cost_analysis()["flops"] - compiled.cost_analysis()["flops"]
        share = BATCH // shards
        assert more < 1.1 * (arithmetic(2 * share) - arithmetic(share))


def test_a_chunk_is_split_over_the_devices():
    """The rows that one turn of the loop passes over, read off the compiled program."""
    sizes = {}
    for devices in (1, DEVICES):
        mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
        step, tx = private_step("vmap", CHUNK, None, drawn=False)
        params = jax.device_put(start(), NamedSharding(mesh, P()))
        data = jax.device_put(examples(BATCH), rows_over(mesh))
        text = jax.jit(step).lower(params, tx.init(params), data).compile().as_text()
        # The gradients by `a`, which this engine forms for each row of a chunk.
        found = re.findall(rf"f32\[(\d+),(?:1,)?{INPUTS},{HIDDEN}\]", text)
        sizes[devices] = max(map(int, found))
    assert sizes == {1: CHUNK, DEVICES: CHUNK // DEVICES}


@pytest.mark.parametrize("axes", [pytest.param("auto", marks=pytest.mark.slow), "explicit"])
def test_norms_and_sums_for_people(axes):
    mesh = mesh_of("tensor", axes)
    params = laid_out("tensor", mesh, start())
    data = jax.device_put(examples(BATCH), rows_over(mesh))

    @jax.jit
    def look(params, data):
        grads = dpjax.per_example_grads(loss, "vmap", CHUNK)(params, data)
        return grads.norms, grads.losses, grads.weighted_sum(grads.norms)

    norms, losses, total = look(params, data)
    each = jax.vmap(jax.value_and_grad(loss), (None, 0))
    expected_losses, grads = each(start(), examples(BATCH))
    flat = [np.asarray(g, np.float64).reshape(BATCH, -1) for g in jax.tree.leaves(grads)]
    expected = np.linalg.norm(np.concatenate(flat, axis=1), axis=1)
    np.testing.assert_allclose(norms, expected, rtol=1e-5)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4, atol=1e-5)
    for name, leaf in total.items():
        by_hand = np.tensordot(expected, np.asarray(grads[name], np.float64), axes=1)
        np.testing.assert_allclose(leaf, by_hand, rtol=1e-4, atol=1e-4)
        if axes == "explicit":
            assert leaf.sharding.is_equivalent_to(params[name].sharding, leaf.ndim)


@pytest.mark.parametrize(
    "sampling",
    [
        Poisson(40, 1001),
        pytest.param(FixedSize(40, 1001), marks=pytest.mark.slow),
        pytest.param(TruncatedPoisson(40, 1001, 38), marks=pytest.mark.slow),
    ],
    ids=lambda sampling: type(sampling).__name__,
)
def test_each_device_draws_its_own_rows_of_the_batch(sampling):
    """1001 rows over 8 devices: 126 each, of which the last seven do not exist."""
    sharding = rows_over(mesh_of("data", "explicit"))
    draw = jax.jit(lambda step: sampling.draw(KEY, step, sharding=sharding))
    for step in range(3):
        drawn = draw(step)
        assert drawn.length == 8 * 126
        assert drawn.rows().tolist() == sampling.draw(KEY, step).rows().tolist()
    assert collective_bytes(draw.lower(0).compile().as_text()).total() == 0


def test_noise_is_drawn_where_the_parameter_lies():
    """The same bits however leaves are split, and nothing is sent: small leaves and a large one."""
    mesh = mesh_of("tensor", "auto")
    specs = {"bias": P("model"), "table": P("data", "model"), "kernel": P(None, "model")}
    shapes = {"bias": (16,), "table": (256, 64), "kernel": (24, 10)}
    where = {k: NamedSharding(mesh, spec) for k, spec in specs.items()}
    like = {k: jax.device_put(jnp.zeros(shape), where[k]) for k, shape in shapes.items()}
    compiled = jax.jit(partial(standard_normal, KEY), out_shardings=where).lower(like).compile()
    assert collective_bytes(compiled.as_text()).total() == 0
    whole = jax.jit(partial(standard_normal, KEY))({k: np.zeros(s) for k, s in shapes.items()})
    for name, leaf in compiled(like).items():
        assert np.array_equal(leaf, whole[name])


@pytest.mark.parametrize("axes", [pytest.param("auto", marks=pytest.mark.slow), "explicit"])
def test_fit_keeps_data_and_parameters_where_they_are(axes):
    mesh = mesh_of("fsdp", axes)
    params = laid_out("fsdp", mesh, start())
    data = jax.device_put(examples(ROWS), rows_over(mesh))
    mechanism = dpjax.methods.dc_sgd_e(1.0, c0=0.5)
    found = [
        dpjax.fit(
            loss,
            each,
            rows,
            mechanism,
            SAMPLING,
            optax.sgd(0.1),
            2,
            KEY,
            engine="ghost",
            chunk=CHUNK,
        )
        for each, rows in ((params, data), (start(), examples(ROWS)))
    ]
    for name, leaf in found[0].params.items():
        assert leaf.sharding.is_equivalent_to(params[name].sharding, leaf.ndim)
        # Sums that differ by rounding may lie in neighbouring cells of the release's grid.
        unit = 0.1 * 2 * float(found[1].released.bound.max()) / 8 / BATCH
        np.testing.assert_allclose(leaf, found[1].params[name], atol=unit)
    np.testing.assert_allclose(found[0].released.threshold, found[1].released.threshold, rtol=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-80, 110), st.sampled_from([1.0, 1e-3, 1.7, 9.0]))
def test_one_limb_neither_overflows_nor_depends_on_the_order(seed, exponent, size):
    """Above the limit, sums are cut off: a larger part never gives a smaller sum."""
    rng = np.random.default_rng(seed)
    most = float(np.float32(2.0**exponent * rng.uniform(1, 2)))
    parts = size * most / DEVICES * rng.uniform(-1, 1, (DEVICES, 50))
    parts[:, 0] = size * most / DEVICES
    hi = parts.astype(np.float32)
    lo = (parts - hi).astype(np.float32)
    found = [
        np.float64(pair.hi) + np.float64(pair.lo)
        for pair in (
            grid_sum(TwoFloat(hi, lo), most, DEVICES),
            grid_sum(TwoFloat(hi[::-1], lo[::-1]), most, DEVICES),
        )
    ]
    assert np.array_equal(*found)
    # A public unit, of 2^-31 of a power of two up to twice the limit; half of one for each part.
    unit = 2.0 * 1.001 * most * 2.0**-31
    share = 2.0 * most / DEVICES  # what is cut off lies beyond what the limit allows a part
    exact = np.clip(parts, -share, share).sum(axis=0)
    if size <= 1:
        assert np.all(np.abs(found[0] - exact) <= DEVICES / 2 * unit + 2.0**-45 * most)
    assert found[0][0] >= 0.99 * most * min(size, 1)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.5, 1), st.integers(1, 5000), st.floats(0, 2.2))
@example(0, 0.51, 1024, 0.3)
def test_one_limb_moves_no_two_parts_apart_by_more_than_its_figure(seed, bound, rows, place):
    """Parts on both sides of where rounding turns, in the middle of the range and beyond it."""
    rng = np.random.default_rng(seed)
    d, most = 16, float(np.float32(rows * bound))
    unit = 2.0 ** (np.floor(np.log2(1.001 * most)) + 1 - 31)
    middle = np.round(rng.choice([-1, 1], d) * place * most / DEVICES / unit) + 0.5
    first, second = ((middle + side * rng.uniform(0.01, 0.1, d)) * unit for side in (-1, 1))
    totals = []
    for part in (first, second):
        hi = np.zeros((DEVICES, d), np.float32)
        hi[3] = part
        lo = np.zeros_like(hi)
        lo[3] = part - hi[3]
        total = grid_sum(TwoFloat(hi, lo), most, DEVICES)
        totals.append(np.float64(total.hi) + np.float64(total.lo))
    apart = np.linalg.norm(totals[0] - totals[1])
    assert apart <= np.linalg.norm(first - second) + one_limb(d, rows) * bound
    if place < 1:
        assert apart == np.sqrt(d) * unit  # the figure is reached
    if place > 2.1:
        assert apart == 0


def test_rows_that_cannot_be_split_evenly_are_refused():
    sharding = rows_over(mesh_of("data", "auto"))
    grads_of = dpjax.per_example_grads(loss, sharding=sharding)
    params = jax.device_put(start(), NamedSharding(sharding.mesh, P()))

    @jax.jit
    def norms(params, data):
        return grads_of(params, jax.tree.map(lambda x: x[:30] + 0 * x[0], data)).norms

    with pytest.raises(ValueError, match="30 rows: expected a multiple of 8"):
        norms(params, jax.device_put(examples(BATCH), sharding))
    with pytest.raises(ValueError, match=r"part = \(0, 8\) with a sharding"):
        SAMPLING.draw(KEY, 0, part=(0, 8), sharding=sharding)
    with pytest.raises(ValueError, match="expected one drawn without"):
        SAMPLING.draw(KEY, 0, sharding=sharding).packed()

    @jax.jit
    def elsewhere(params, data):
        return grads_of(params, data, SAMPLING.draw(KEY, 0, sharding=sharding)).norms

    with pytest.raises(ValueError, match="in 8 parts with data in 1: expected data that was put"):
        elsewhere(start(), examples(ROWS))
